//! The search by key prefixes. A page stores the first four bytes of each key after the common
//! prefix as an integer, its *key prefix*, and for each group of 16 rows a *fence*, the key prefix
//! of the group's last row.
//!
//! ```text
//!   find_group      line 0: which group of 16 rows
//!   prefix_matches  the group's line of key prefixes: which rows have the target's
//!   rows_before_in  bisect those rows: one, or none
//! ```
//!
//! A lookup in a batch calls the three steps one by one. After each step it prefetches the lines of
//! the next one and lets the other lookups run.

use std::ops::Range;

use forerun_core::arch::{word_bounds, words_below};

use super::super::page::{GROUP_ROWS, INLINE_PREFIX_BYTES, Page};
use super::bisection::{behind_prefix, bisect_by_order};
use super::compare::{self, Compare, Short, packed};
use crate::comparator::KeyOrder;

/// How many rows of the page are before (`key`, `sequence`). In an internal page, rows at the
/// target count too.
#[inline(always)]
pub(super) fn rows_before(page: Page<'_>, order: &KeyOrder, key: &[u8], sequence: u64) -> usize {
    match find_group(page, order, key) {
        GroupSearch::Row(row) => row,
        GroupSearch::Group(group) => {
            page.prefetch_group(group.index);
            let matches = prefix_matches(page, key, group);
            rows_before_in(page, order, key, sequence, matches)
        }
    }
}

/// The row of a leaf that answers a lookup: the newest version of `key` that is not newer than
/// `sequence`.
#[cfg(any(test, feature = "study"))]
#[inline(always)]
pub(super) fn find(page: Page<'_>, order: &KeyOrder, key: &[u8], sequence: u64) -> Option<usize> {
    match find_group(page, order, key) {
        GroupSearch::Row(_) => None,
        GroupSearch::Group(group) => {
            page.prefetch_group(group.index);
            let matches = prefix_matches(page, key, group);
            find_in(page, order, key, sequence, matches)
        }
    }
}

/// The key prefix of a key, given its bytes after the common prefix.
#[inline(always)]
pub(in super::super) fn key_prefix_of(order: &KeyOrder, suffix: &[u8]) -> u32 {
    match order {
        KeyOrder::Bytewise => match suffix.first_chunk() {
            Some(bytes) => u32::from_be_bytes(*bytes),
            None => {
                let mut bytes = [0; 4];
                bytes[..suffix.len()].copy_from_slice(suffix);
                u32::from_be_bytes(bytes)
            }
        },
        KeyOrder::Custom(comparator) => (comparator.prefix(suffix) >> 32) as u32,
    }
}

/// The result of [`find_group`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GroupSearch {
    /// No row has the key, and this many rows are before it. The search does not have to read more
    /// of the page.
    Row(usize),
    /// The row is in this group, or it is the first of the next.
    Group(Group),
}

/// A group of rows, and the key prefix to search it for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// The group's number, for [`Page::prefetch_group`].
    pub(crate) index: usize,
    key_prefix: u32,
}

/// The first step finds the group. It reads the page's first line, and a few more if there are many
/// fences.
///
/// If the common prefix is longer than 16 bytes, this step assumes that the key has the rest of it;
/// [`prefix_matches`] compares it.
#[inline(always)]
pub(crate) fn find_group(page: Page<'_>, order: &KeyOrder, key: &[u8]) -> GroupSearch {
    let prefix_len = page.prefix_len();
    if prefix_len > 0 {
        let mask = compare::mask(prefix_len);
        let prefix = u128::from_be_bytes(*page.inline_prefix());
        let start = packed(key) & mask;
        if start != prefix || key.len() < prefix_len.min(INLINE_PREFIX_BYTES) {
            return GroupSearch::Row(if start > prefix { page.rows() } else { 0 });
        }
        if prefix_len > INLINE_PREFIX_BYTES {
            page.prefetch_prefix();
        }
    }
    let key_prefix = key_prefix_of(order, key.get(prefix_len..).unwrap_or(&[]));
    let index = words_below(page.fences(), key_prefix);
    if index < page.groups() {
        return GroupSearch::Group(Group { index, key_prefix });
    }
    // The key is after all rows, provided it has the rest of a long prefix. The last group gives
    // the same answer.
    match page.groups().checked_sub(1) {
        Some(last) if prefix_len > INLINE_PREFIX_BYTES => GroupSearch::Group(Group {
            index: last,
            key_prefix,
        }),
        _ => GroupSearch::Row(page.rows()),
    }
}

/// The second step reads a group's two lines and returns the rows with the target's key prefix. All
/// earlier rows are before the target and all later rows after it, so an empty range is the
/// target's insertion point.
#[inline(always)]
pub(crate) fn prefix_matches(page: Page<'_>, key: &[u8], group: Group) -> Range<usize> {
    if page.prefix_len() > INLINE_PREFIX_BYTES
        && let Err(row) = behind_prefix(page, key)
    {
        return row..row;
    }
    let prefixes = page.key_prefixes(group.index);
    let start = group.index * GROUP_ROWS;
    let (before, up_to) = word_bounds(prefixes, group.key_prefix);
    // The last group's padding is not below any key prefix, but may equal one. The page has been
    // checked, so the range does not end before it starts.
    let up_to = up_to.min(page.rows() - start);
    if up_to == GROUP_ROWS && before < GROUP_ROWS {
        return start + before..end_of_matches(page, group);
    }
    start + before..start + up_to
}

/// The end of matches that reach the end of their group.
#[cold]
fn end_of_matches(page: Page<'_>, group: Group) -> usize {
    let next = (group.index + 1..page.groups())
        .map(|index| {
            (
                index,
                word_bounds(page.key_prefixes(index), group.key_prefix).1,
            )
        })
        .find(|(_, up_to)| *up_to < GROUP_ROWS);
    match next {
        Some((index, up_to)) => (index * GROUP_ROWS + up_to).min(page.rows()),
        None => page.rows(),
    }
}

/// The third step reads records: it finds how many of the matching rows are before the target. In
/// an internal page, rows at the target count too.
#[inline(always)]
pub(crate) fn rows_before_in(
    page: Page<'_>,
    order: &KeyOrder,
    key: &[u8],
    sequence: u64,
    matches: Range<usize>,
) -> usize {
    if matches.is_empty() {
        return matches.start;
    }
    let suffix = key.get(page.prefix_len()..).unwrap_or(&[]);
    bisect_by_order(page, order, (suffix, sequence), matches, |_, _| ())
}

/// The third step of a lookup in a leaf: finds the row that answers it.
#[inline(always)]
pub(crate) fn find_in(
    page: Page<'_>,
    order: &KeyOrder,
    key: &[u8],
    sequence: u64,
    matches: Range<usize>,
) -> Option<usize> {
    let row = match matches.len() {
        0 => return None,
        // The usual case: only one row matches.
        1 => matches.start,
        _ => rows_before_in(page, order, key, sequence, matches.clone()),
    };
    if row >= matches.end {
        return None;
    }
    let suffix = key.get(page.prefix_len()..).unwrap_or(&[]);
    let record = page.record(row);
    let same = match order {
        KeyOrder::Bytewise if suffix.len() <= Short::BYTES_MAX => {
            Short::new(suffix).compare(page, &record).is_eq()
        }
        KeyOrder::Bytewise => page.record_suffix(&record) == suffix,
        KeyOrder::Custom(comparator) => {
            let row = page.record_suffix(&record);
            comparator.compare(row, suffix).is_eq()
        }
    };
    (same && page.record_sequence(&record) <= sequence).then_some(row)
}
