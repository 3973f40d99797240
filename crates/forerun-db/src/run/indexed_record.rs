//! Reads the record that a run's index has found, in a leaf that is in memory.
//!
//! ```text
//!   address ─> leaf's slot: frame, head (the keys' common prefix) ─> record ─> compare ─> answer
//!                                                tag with its key's length, key, value
//! ```
//!
//! If the leaf has no head, the prefix is in its first line, which is prefetched with the record.
//! Everything that this cannot decide is left to a search through the pages: another key with the
//! same tag, a newest version that is too new for the reader, a long key, a page that is not in
//! memory.

use forerun_core::arch::prefetch_read;

use super::lookup::Found;
use super::page::{
    INLINE_PREFIX_BYTES, LEAF_RECORD_BYTES, LINE_BYTES, LONG_TAG_SUFFIX, Page, sequence_of,
};
use super::page_search::{mask, packed};
use super::reader::Run;
use super::record_index::RecordAddress;
use super::{SearchKey, page::VALUE};
use crate::cache::driver::Reads;

/// The longest record to prefetch; the hardware prefetcher follows longer ones.
const PREFETCH_BYTES_MAX: usize = 4 * LINE_BYTES;

/// The record at an address that an index has found, in a leaf in memory.
#[derive(Clone, Copy)]
pub(crate) struct IndexedRecord<'g> {
    run: &'g Run,
    leaf: &'g [u8],
    head: u64,
    address: RecordAddress,
}

impl<'g> IndexedRecord<'g> {
    /// The record at an address, whose leaf is `leaf` with this [head](super::leaf_head), or 0.
    #[inline(always)]
    pub(crate) fn in_leaf(
        run: &'g Run,
        leaf: &'g [u8],
        head: u64,
        address: RecordAddress,
    ) -> IndexedRecord<'g> {
        IndexedRecord {
            run,
            leaf,
            head,
            address,
        }
    }

    /// The record at this address, if its leaf is in memory. Prefetches what [`find`](Self::find)
    /// reads, and the start of the value.
    #[inline(always)]
    pub(crate) fn prefetched(
        run: &'g Run,
        reads: &Reads<'g>,
        address: RecordAddress,
    ) -> Option<IndexedRecord<'g>> {
        let (leaf, head) = match run.meta().pages() {
            // The root is not in the cache.
            1 => (run.root().bytes(), 0),
            _ => reads.resident_with_head(run.slots(), address.page)?,
        };
        if head == 0 {
            prefetch_read(leaf.as_ptr());
        }
        // The steps depend on the run and not on the record, so the branches are predictable.
        let record = leaf.as_ptr().wrapping_add(address.offset as usize);
        let last = run.average_record_bytes().min(PREFETCH_BYTES_MAX) - 1;
        for at in (0..last).step_by(LINE_BYTES) {
            prefetch_read(record.wrapping_add(at));
        }
        prefetch_read(record.wrapping_add(last));
        Some(IndexedRecord::in_leaf(run, leaf, head, address))
    }

    /// The answer of the record. `None` if a search has to find it.
    #[inline(always)]
    pub(crate) fn find(self, key: &SearchKey<'_>) -> Option<Found<'g>> {
        let IndexedRecord {
            run,
            leaf,
            head,
            address,
        } = self;
        let at = address.offset as usize;
        let prefix = match run.shared_prefix().prefix(head) {
            // The index does not know where the record begins.
            _ if at == 0 => return None,
            Some((len, prefix)) => Prefix::Short(len, prefix),
            None => prefix_in(Page::new(leaf), at)?,
        };
        answer(run, leaf.get(at..)?, prefix, key)
    }
}

/// The prefix in a leaf's first line, for a record at `at`. `None` if no record can be there.
fn prefix_in(page: Page<'_>, at: usize) -> Option<Prefix<'_>> {
    (at >= page.records_start()).then(|| match page.prefix_len() {
        len if len <= INLINE_PREFIX_BYTES => {
            Prefix::Short(len, u128::from_be_bytes(*page.inline_prefix()))
        }
        _ => Prefix::Long(page.prefix()),
    })
}

/// The bytes with which all keys of a leaf begin.
#[derive(Clone, Copy)]
pub(super) enum Prefix<'a> {
    /// At most 16 bytes: their number, and [`packed`].
    Short(usize, u128),
    Long(&'a [u8]),
}

/// The length of the record that begins here. `None` if it has a long key.
pub(super) fn record_len(record: &[u8]) -> Option<usize> {
    let (suffix_len, value_len) = lens(record.first_chunk()?);
    (suffix_len < LONG_TAG_SUFFIX).then_some(LEAF_RECORD_BYTES + suffix_len + value_len)
}

/// The lengths of a record's suffix, as its tag has it, and of its value.
#[inline(always)]
fn lens(head: &[u8; LEAF_RECORD_BYTES]) -> (usize, usize) {
    let [low, .., a, b, c, d] = *head;
    (
        usize::from(low >> 1),
        u32::from_le_bytes([a, b, c, d]) as usize,
    )
}

/// The answer of the record that begins here. `None` if a search has to find it.
#[inline(always)]
pub(super) fn answer<'b>(
    run: &Run,
    record: &'b [u8],
    prefix: Prefix<'_>,
    key: &SearchKey<'_>,
) -> Option<Found<'b>> {
    let (head, rest) = record.split_first_chunk::<LEAF_RECORD_BYTES>()?;
    let tag = u64::from_le_bytes(*head.first_chunk()?);
    let (suffix_len, value_len) = lens(head);
    let prefix_len = match prefix {
        Prefix::Short(len, _) => len,
        Prefix::Long(prefix) => prefix.len(),
    };
    if suffix_len >= LONG_TAG_SUFFIX || key.key.len() != prefix_len + suffix_len {
        return None;
    }
    let (start, suffix) = key.key.split_at(prefix_len);
    let same_prefix = match prefix {
        // The prefix is padded with zeros.
        Prefix::Short(len, prefix) => packed(key.key) & mask(len) == prefix,
        Prefix::Long(prefix) => start == prefix,
    };
    let same_suffix = if suffix_len <= size_of::<u128>() {
        // This also reads bytes after the suffix; the mask removes them.
        packed(rest) & mask(suffix_len) == packed(suffix)
    } else {
        rest.get(..suffix_len)? == suffix
    };
    let sequence = sequence_of(tag);
    if !(same_prefix && same_suffix && sequence <= key.sequence) {
        return None;
    }
    // If this version has expired, older ones have too.
    if tag as u8 & 1 != VALUE || run.sequence(sequence) <= key.expired_sequence {
        return Some(Found::Deleted);
    }
    let value = rest.get(suffix_len..suffix_len + value_len)?;
    Some(Found::Value(value))
}
