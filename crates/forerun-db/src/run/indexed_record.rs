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
use super::record_index::Place;
use super::{SearchKey, page::VALUE};
use crate::cache::driver::Reads;

/// The leaf of a place, if it is in memory.
#[inline(always)]
pub(crate) fn resident<'g>(run: &'g Run, reads: &Reads<'g>, place: Place) -> Option<&'g [u8]> {
    match run.meta().pages() {
        // The root is not in the cache.
        1 => Some(run.root().bytes()),
        _ => reads.resident(run.slots(), place.page),
    }
}

/// Prefetches what [`find_at`] reads, and the start of the value.
#[inline(always)]
pub(crate) fn prefetch(run: &Run, leaf: &[u8], place: Place) {
    prefetch_read(leaf.as_ptr());
    let mut at = place.offset as usize;
    let end = at + run.usual_record_bytes();
    while at < end {
        prefetch_read(leaf.as_ptr().wrapping_add(at));
        at = (at + LINE_BYTES) & !(LINE_BYTES - 1);
    }
}

/// The answer of the record at a place. `None` if a search has to find it.
#[inline(always)]
pub(crate) fn find_at<'g>(
    run: &Run,
    leaf: &'g [u8],
    place: Place,
    key: &SearchKey<'_>,
) -> Option<Found<'g>> {
    let page = Page::new(leaf);
    let at = place.offset as usize;
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
