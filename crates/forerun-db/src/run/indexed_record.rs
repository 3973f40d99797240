//! Reads the record that a run's index has found, in a leaf that is in memory.
//!
//! ```text
//!   place ─> page's first line (the keys' common prefix) ─┬─> compare ─> answer
//!         └> record: tag with its key's length, key, value┘
//! ```
//!
//! Both are prefetched together. Everything that this cannot decide is left to a search through the
//! pages: another key with the same tag, a newest version that is too new for the reader, a long
//! key, a page that is not in memory.

use forerun_core::arch::prefetch_read;

use super::lookup::Found;
use super::page::{
    INLINE_PREFIX_BYTES, LEAF_RECORD_BYTES, LINE_BYTES, LONG_TAG_SUFFIX, Page, TAG_BYTES,
    sequence_of,
};
use super::page_search::{mask, packed};
use super::reader::Run;
use super::record_index::RecordAddress;
use super::{SearchKey, page::VALUE};
use crate::cache::driver::Reads;

/// The record at an address that an index has found, in a leaf in memory.
#[derive(Clone, Copy)]
pub(crate) struct IndexedRecord<'g> {
    run: &'g Run,
    leaf: &'g [u8],
    address: RecordAddress,
}

impl<'g> IndexedRecord<'g> {
    /// The record at an address, whose leaf is `leaf`.
    #[inline(always)]
    pub(crate) fn in_leaf(
        run: &'g Run,
        leaf: &'g [u8],
        address: RecordAddress,
    ) -> IndexedRecord<'g> {
        IndexedRecord { run, leaf, address }
    }

    /// The record at this address, if its leaf is in memory. Prefetches what [`find`](Self::find)
    /// reads, and the start of the value.
    #[inline(always)]
    pub(crate) fn prefetched(
        run: &'g Run,
        reads: &Reads<'g>,
        address: RecordAddress,
    ) -> Option<IndexedRecord<'g>> {
        let leaf = match run.meta().pages() {
            // The root is not in the cache.
            1 => run.root().bytes(),
            _ => reads.resident(run.slots(), address.page)?,
        };
        prefetch_read(leaf.as_ptr());
        let mut at = address.offset as usize;
        let end = at + run.usual_record_bytes();
        while at < end {
            prefetch_read(leaf.as_ptr().wrapping_add(at));
            at = (at + LINE_BYTES) & !(LINE_BYTES - 1);
        }
        Some(IndexedRecord::in_leaf(run, leaf, address))
    }

    /// The answer of the record. `None` if a search has to find it.
    #[inline(always)]
    pub(crate) fn find(self, key: &SearchKey<'_>) -> Option<Found<'g>> {
        let IndexedRecord { run, leaf, address } = self;
        let page = Page::new(leaf);
        let at = address.offset as usize;
        if at < page.records_start() {
            return None;
        }
        let tag = u64::from(page.u32_at(at)) | u64::from(page.u32_at(at + 4)) << 32;
        let suffix_len = usize::from(tag as u8 >> 1);
        let prefix_len = page.prefix_len();
        if suffix_len >= LONG_TAG_SUFFIX || key.key.len() != prefix_len + suffix_len {
            return None;
        }
        let (prefix, suffix) = key.key.split_at(prefix_len);
        let suffix_at = at + LEAF_RECORD_BYTES;
        let same_prefix = if prefix_len <= INLINE_PREFIX_BYTES {
            // The header's part is padded with zeros.
            packed(key.key) & mask(prefix_len) == u128::from_be_bytes(*page.inline_prefix())
        } else {
            prefix == page.prefix()
        };
        let same_suffix = if suffix_len <= size_of::<u128>() {
            // This also reads bytes after the suffix; the mask removes them.
            packed(leaf.get(suffix_at..)?) & mask(suffix_len) == packed(suffix)
        } else {
            page.slice(suffix_at..suffix_at + suffix_len) == suffix
        };
        let sequence = sequence_of(tag);
        if !(same_prefix && same_suffix && sequence <= key.sequence) {
            return None;
        }
        // If this version has expired, older ones have too.
        if tag as u8 & 1 != VALUE || run.sequence(sequence) <= key.expired_sequence {
            return Some(Found::Deleted);
        }
        let start = suffix_at + suffix_len;
        let value_len = page.u32_at(at + TAG_BYTES) as usize;
        Some(Found::Value(page.slice(start..start + value_len)))
    }
}
