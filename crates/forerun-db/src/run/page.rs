//! A page: rows in key order, laid out so that a search reads few cache lines.
//!
//! ```text
//!   line 0   │ kind, rows, … │ prefix's first 16 bytes │ fence │ fence │ … │      one fence per group: its last key prefix
//!   …        │ fence │ …                                                  │
//!   group 0  │ key prefix │ key prefix │ … 16                             │      the key's first 4 bytes after the common
//!            │ row entry │ row entry │ … 16                               │      prefix, as an integer
//!   group 1  …
//!            │ prefix │ record │ record │ …                               │
//!
//!   leaf record       │ tag │ value_len │ [suffix_len] │ suffix │ value │
//!   internal record   │ tag │ child's location │ [suffix_len] │ suffix │
//! ```
//!
//! `docs/internals/format-runs.md` defines every byte. A search reads line 0, two lines of one
//! group (its key prefixes, and the row entries next to them), and the record. That makes three
//! dependent cache misses, where a binary search has one or two for each step.
//!
//! [`Page::check`] (`page_check.rs`) validates a page when it is read from disk. Later readers do
//! not check again, and a lookup may trust a leaf of which it checks only the header
//! ([`Page::check_leaf_header`]). This is still safe code: wrong bytes give wrong rows, but no
//! panic and no access outside the page.

use std::ops::Range;

use forerun_core::arch::prefetch_read;

use crate::cache::driver::PageLocation;
#[cfg(any(test, feature = "study"))]
use crate::comparator::KeyOrder;
use crate::versions::Kind;

/// Rows in a group: as many key prefixes as fit into a cache line.
pub(super) const GROUP_ROWS: usize = 16;

/// The cache line size that the layout assumes on every machine.
pub(super) const LINE_BYTES: usize = 64;

/// Bytes in a group: its key prefixes and its row entries.
pub(super) const GROUP_BYTES: usize = 2 * LINE_BYTES;

/// Where the fields of the header are.
pub(super) const KIND_AT: usize = 0;
pub(super) const RESERVED_AT: usize = 1;
pub(super) const PREFIX_LEN_AT: usize = 2;
pub(super) const ROWS_AT: usize = 4;
pub(super) const FIRST_CHILD_AT: usize = 8;
pub(super) const RECORDS_START_AT: usize = 12;
pub(super) const INLINE_PREFIX_AT: usize = 16;

/// Bytes before the fences.
pub(super) const HEADER_BYTES: usize = INLINE_PREFIX_AT + INLINE_PREFIX_BYTES;

/// Bytes of the common prefix that the header holds.
pub(super) const INLINE_PREFIX_BYTES: usize = 16;

/// The longest common prefix.
pub(super) const PREFIX_BYTES_MAX: usize = u16::MAX as usize;

/// Bits of a row entry for the record's offset.
pub(super) const OFFSET_BITS: u32 = 20;

/// A suffix length in a row entry that means "this long or longer": the record has the length.
pub(super) const LONG_SUFFIX: usize = (1 << (32 - OFFSET_BITS)) - 1;

/// Bytes of a record's tag. The value's length, or the child's location, comes after it.
pub(super) const TAG_BYTES: usize = 8;

/// Bytes of a record before the suffix and its length.
pub(super) const LEAF_RECORD_BYTES: usize = TAG_BYTES + 4;
pub(super) const INTERNAL_RECORD_BYTES: usize = TAG_BYTES + 16;

/// Values of the lowest bit of a version's tag. The seven bits above hold the suffix's length.
pub(super) const DELETION: u8 = 0;
pub(super) const VALUE: u8 = 1;

/// A separator's lowest byte of the tag.
pub(super) const SEPARATOR: u8 = 255;

/// A suffix length in a version's tag that means "this long or longer".
pub(super) const LONG_TAG_SUFFIX: usize = 127;

/// The tag of a version, before its suffix is known.
pub(super) fn version_tag(sequence: u64, kind: Kind) -> u64 {
    let kind = match kind {
        Kind::Deletion => DELETION,
        Kind::Value => VALUE,
    };
    sequence << 8 | u64::from(kind)
}

/// A version's tag with the length of its suffix.
#[inline]
pub(super) fn with_suffix_len(tag: u64, suffix_len: usize) -> u64 {
    tag | (suffix_len.min(LONG_TAG_SUFFIX) as u64) << 1
}

/// The tag of a separator.
pub(super) fn separator_tag(sequence: u64) -> u64 {
    sequence << 8 | u64::from(SEPARATOR)
}

/// The sequence number in a tag.
#[inline(always)]
pub(super) fn sequence_of(tag: u64) -> u64 {
    tag >> 8
}

/// Where the groups of a page with this many rows begin: at the next line after the fences.
pub(super) const fn groups_start(rows: usize) -> usize {
    (HEADER_BYTES + 4 * rows.div_ceil(GROUP_ROWS)).next_multiple_of(LINE_BYTES)
}

/// The kind of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageKind {
    /// Rows are versions.
    Leaf,
    /// Rows point to other pages.
    Internal,
}

impl PageKind {
    pub(super) fn byte(self) -> u8 {
        match self {
            PageKind::Leaf => 1,
            PageKind::Internal => 2,
        }
    }

    /// Bytes of a record before the suffix and its length.
    #[inline(always)]
    pub(super) fn record_bytes(self) -> usize {
        match self {
            PageKind::Leaf => LEAF_RECORD_BYTES,
            PageKind::Internal => INTERNAL_RECORD_BYTES,
        }
    }
}

/// A page in memory that has been checked.
#[derive(Clone, Copy)]
pub(crate) struct Page<'a> {
    pub(super) line: &'a [u8; LINE_BYTES],
    pub(super) bytes: &'a [u8],
}

/// An empty page, used in place of missing bytes.
static NO_PAGE: [u8; LINE_BYTES] = [0; LINE_BYTES];

impl<'a> Page<'a> {
    /// Bytes of the smallest page.
    pub(crate) const BYTES_MIN: usize = LINE_BYTES + GROUP_BYTES;

    /// Wraps `bytes`, which have been [checked](Self::check).
    #[inline(always)]
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        match bytes.first_chunk() {
            Some(line) => Page { line, bytes },
            None => Page {
                line: &NO_PAGE,
                bytes: &NO_PAGE,
            },
        }
    }

    /// The whole page.
    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    #[inline(always)]
    pub(crate) fn kind(&self) -> PageKind {
        if self.line[KIND_AT] == PageKind::Internal.byte() {
            PageKind::Internal
        } else {
            PageKind::Leaf
        }
    }

    /// The number of rows; at least 1 in a checked page.
    #[inline(always)]
    pub(crate) fn rows(&self) -> usize {
        self.line_u32(ROWS_AT) as usize
    }

    #[inline(always)]
    pub(super) fn groups(&self) -> usize {
        self.rows().div_ceil(GROUP_ROWS)
    }

    /// The common prefix of all keys in the page.
    #[inline(always)]
    pub(crate) fn prefix(&self) -> &'a [u8] {
        let end = self.records_start();
        self.slice(end.wrapping_sub(self.prefix_len())..end)
    }

    #[inline(always)]
    pub(super) fn prefix_len(&self) -> usize {
        let [low, high] = [self.line[PREFIX_LEN_AT], self.line[PREFIX_LEN_AT + 1]];
        usize::from(u16::from_le_bytes([low, high]))
    }

    /// The first bytes of the common prefix, from the header's line, padded with zeros.
    #[inline(always)]
    pub(super) fn inline_prefix(&self) -> &'a [u8; INLINE_PREFIX_BYTES] {
        let prefix = self.line[INLINE_PREFIX_AT..].first_chunk();
        prefix.expect("the line has more bytes")
    }

    /// The fences, in whole blocks of eight. Unused fences at the end are `u32::MAX`.
    #[inline(always)]
    pub(super) fn fences(&self) -> &'a [[u8; 32]] {
        let end = groups_start(self.rows());
        self.slice(HEADER_BYTES..end).as_chunks().0
    }

    /// The key prefixes of a group's rows.
    #[inline(always)]
    pub(super) fn key_prefixes(&self, group: usize) -> &'a [u8; LINE_BYTES] {
        self.line_at(groups_start(self.rows()) + group * GROUP_BYTES)
    }

    /// The key prefix of a row.
    #[inline(always)]
    pub(super) fn key_prefix(&self, row: usize) -> u32 {
        let prefixes = self.key_prefixes(row / GROUP_ROWS);
        u32_in(prefixes, row % GROUP_ROWS * 4)
    }

    /// Prefetches the two lines of a group.
    #[inline(always)]
    pub(super) fn prefetch_group(&self, group: usize) {
        let at = groups_start(self.rows()) + group * GROUP_BYTES;
        prefetch_read(self.bytes.as_ptr().wrapping_add(at));
        prefetch_read(self.bytes.as_ptr().wrapping_add(at + LINE_BYTES));
    }

    /// Prefetches the line with a row's entry.
    #[cfg(any(test, feature = "study"))]
    #[inline(always)]
    pub(super) fn prefetch_entry(&self, row: usize) {
        prefetch_read(self.bytes.as_ptr().wrapping_add(self.entry_at(row)));
    }

    /// Prefetches the part of the prefix that is not in the header.
    #[inline(always)]
    pub(super) fn prefetch_prefix(&self) {
        let start = self.records_start().wrapping_sub(self.prefix_len());
        let at = start.wrapping_add(INLINE_PREFIX_BYTES);
        prefetch_read(self.bytes.as_ptr().wrapping_add(at));
    }

    /// Locates a row's record and its suffix.
    #[inline(always)]
    pub(super) fn record(&self, row: usize) -> Record {
        let entry = match self.bytes.get(self.entry_at(row)..) {
            Some(rest) => rest
                .first_chunk()
                .map_or(0, |word| u32::from_le_bytes(*word)),
            None => 0,
        };
        let at = self.records_start() + (entry & ((1 << OFFSET_BITS) - 1)) as usize;
        let suffix_at = at + self.kind().record_bytes();
        let suffix_len = (entry >> OFFSET_BITS) as usize;
        if suffix_len == LONG_SUFFIX {
            return self.long_record(at, suffix_at);
        }
        Record {
            at,
            suffix_at,
            suffix_len,
        }
    }

    /// A record's offset in the page.
    pub(crate) fn record_offset(&self, row: usize) -> u32 {
        self.record(row).at as u32
    }

    #[cold]
    fn long_record(&self, at: usize, len_at: usize) -> Record {
        Record {
            at,
            suffix_at: len_at + 4,
            suffix_len: self.u32_at(len_at) as usize,
        }
    }

    /// Prefetches the lines of a record that a comparison reads.
    #[inline(always)]
    pub(super) fn prefetch_key(&self, record: &Record) {
        /// Most comparisons end within this many bytes of the suffix.
        const COMPARED_BYTES: usize = 16;
        let last = record.suffix_at + record.suffix_len.min(COMPARED_BYTES);
        prefetch_read(self.bytes.as_ptr().wrapping_add(record.at));
        prefetch_read(self.bytes.as_ptr().wrapping_add(last));
    }

    /// Prefetches what an answer from this row reads: the record and the start of its value.
    #[inline(always)]
    pub(crate) fn prefetch_record(&self, row: usize) {
        /// Bytes of a record to prefetch; the hardware prefetcher follows longer ones.
        const BYTES_MAX: usize = 4 * LINE_BYTES;
        /// Bytes to prefetch when the record's end is unknown.
        const USUAL_BYTES: usize = 2 * LINE_BYTES;
        let record = self.record(row);
        // The record ends where the next one begins. The next row's entry is in the same line,
        // except after the last row of a group: that line has not been prefetched.
        let last = row % GROUP_ROWS == GROUP_ROWS - 1 || row + 1 >= self.rows();
        let end = if last {
            record.at + USUAL_BYTES
        } else {
            self.record(row + 1).at.min(record.at + BYTES_MAX)
        };
        let mut at = record.at;
        while at < end {
            prefetch_read(self.bytes.as_ptr().wrapping_add(at));
            at = (at + LINE_BYTES) & !(LINE_BYTES - 1);
        }
    }

    /// Prefetches the first `max_bytes` of the value in a leaf's row. Reads the row's header.
    #[inline(always)]
    pub(crate) fn prefetch_value(&self, row: usize, max_bytes: usize) {
        let record = self.record(row);
        let start = record.suffix_at + record.suffix_len;
        let len = (self.u32_at(record.at + TAG_BYTES) as usize).min(max_bytes);
        for at in (start..start + len).step_by(LINE_BYTES) {
            prefetch_read(self.bytes.as_ptr().wrapping_add(at));
        }
    }

    /// A row's key without the common prefix.
    #[inline(always)]
    pub(crate) fn suffix(&self, row: usize) -> &'a [u8] {
        self.record_suffix(&self.record(row))
    }

    #[inline(always)]
    pub(super) fn record_suffix(&self, record: &Record) -> &'a [u8] {
        self.slice(record.suffix_at..record.suffix_at + record.suffix_len)
    }

    /// Replaces `key` with a row's key.
    pub(crate) fn key_into(&self, row: usize, key: &mut Vec<u8>) {
        key.clear();
        key.extend_from_slice(self.prefix());
        key.extend_from_slice(self.suffix(row));
    }

    /// Whether a row has this key.
    #[cfg(any(test, feature = "study"))]
    #[inline(always)]
    pub(crate) fn key_is(&self, order: &KeyOrder, row: usize, key: &[u8]) -> bool {
        match order {
            KeyOrder::Bytewise => {
                let (prefix, suffix) = (self.prefix(), self.suffix(row));
                prefix.len() + suffix.len() == key.len()
                    && key.starts_with(prefix)
                    && key.ends_with(suffix)
            }
            KeyOrder::Custom(comparator) => comparator.compare(self.suffix(row), key).is_eq(),
        }
    }

    /// The sequence number of a row's version or separator.
    #[inline(always)]
    pub(crate) fn sequence(&self, row: usize) -> u64 {
        self.record_sequence(&self.record(row))
    }

    #[inline(always)]
    pub(super) fn record_sequence(&self, record: &Record) -> u64 {
        sequence_of(self.tag(record))
    }

    #[inline(always)]
    pub(super) fn tag(&self, record: &Record) -> u64 {
        u64::from(self.u32_at(record.at)) | u64::from(self.u32_at(record.at + 4)) << 32
    }

    /// The value in a leaf's row, or `None` for a deletion. Wrong bytes give an empty value, which
    /// only [`check`](Self::check) can tell from a real one.
    #[inline(always)]
    pub(crate) fn live_value(&self, row: usize) -> Option<&'a [u8]> {
        let record = self.record(row);
        let start = record.suffix_at + record.suffix_len;
        let value = self.slice(start..start + self.u32_at(record.at + TAG_BYTES) as usize);
        (self.tag(&record) as u8 & 1 == VALUE).then_some(value)
    }

    /// Whether a leaf's row is a value or a deletion.
    #[inline(always)]
    pub(crate) fn version_kind(&self, row: usize) -> Kind {
        match self.live_value(row) {
            Some(_) => Kind::Value,
            None => Kind::Deletion,
        }
    }

    /// The value in a leaf's row; empty for a deletion.
    #[inline(always)]
    pub(crate) fn value(&self, row: usize) -> &'a [u8] {
        self.live_value(row).unwrap_or_default()
    }

    /// A leaf's row with everything in it.
    #[inline(always)]
    pub(crate) fn leaf_row(&self, row: usize) -> LeafRow<'a> {
        let record = self.record(row);
        let tag = self.tag(&record);
        let (kind, value_len) = if tag as u8 & 1 == VALUE {
            (Kind::Value, self.u32_at(record.at + TAG_BYTES) as usize)
        } else {
            (Kind::Deletion, 0)
        };
        let value = record.suffix_at + record.suffix_len;
        LeafRow {
            suffix: self.record_suffix(&record),
            sequence: sequence_of(tag),
            kind,
            value: value..value + value_len,
        }
    }

    /// The number of an internal row's child. Does not read the row.
    #[inline(always)]
    pub(crate) fn child_number(&self, row: usize) -> u32 {
        self.line_u32(FIRST_CHILD_AT).wrapping_add(row as u32)
    }

    /// The number of an internal row's child, and where it is stored.
    #[inline]
    pub(crate) fn child(&self, row: usize) -> (u32, PageLocation) {
        let at = self.record(row).at + TAG_BYTES;
        let location = PageLocation {
            offset: u64::from(self.u32_at(at)) | u64::from(self.u32_at(at + 4)) << 32,
            stored_len: self.u32_at(at + 8),
            raw_len: self.u32_at(at + 12),
        };
        (self.child_number(row), location)
    }

    #[inline(always)]
    pub(super) fn slice(&self, range: Range<usize>) -> &'a [u8] {
        self.bytes.get(range).unwrap_or(&[])
    }

    #[inline(always)]
    pub(super) fn records_start(&self) -> usize {
        self.line_u32(RECORDS_START_AT) as usize
    }

    #[inline(always)]
    pub(super) fn entry_at(&self, row: usize) -> usize {
        let group = groups_start(self.rows()) + row / GROUP_ROWS * GROUP_BYTES;
        group + LINE_BYTES + row % GROUP_ROWS * 4
    }

    #[inline(always)]
    fn line_at(&self, at: usize) -> &'a [u8; LINE_BYTES] {
        let rest = self.bytes.get(at..).and_then(|rest| rest.first_chunk());
        rest.unwrap_or(&NO_PAGE)
    }

    #[inline(always)]
    pub(super) fn line_u32(&self, at: usize) -> u32 {
        u32_in(self.line, at)
    }

    #[inline(always)]
    pub(super) fn u32_at(&self, at: usize) -> u32 {
        let rest = self.bytes.get(at..).and_then(|rest| rest.first_chunk());
        rest.map_or(0, |word| u32::from_le_bytes(*word))
    }
}

/// A row of a leaf.
#[derive(Clone, Debug)]
pub(crate) struct LeafRow<'a> {
    /// The key without the common prefix.
    pub(crate) suffix: &'a [u8],
    /// The sequence number, as it is stored.
    pub(crate) sequence: u64,
    pub(crate) kind: Kind,
    /// Where the value is in the page; empty for a deletion.
    pub(crate) value: Range<usize>,
}

/// Where a row's record is in its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// The record's first byte.
    pub(super) at: usize,
    /// The suffix's first byte.
    pub(super) suffix_at: usize,
    pub(super) suffix_len: usize,
}

#[inline(always)]
fn u32_in(line: &[u8; LINE_BYTES], at: usize) -> u32 {
    u32::from_le_bytes([line[at], line[at + 1], line[at + 2], line[at + 3]])
}
