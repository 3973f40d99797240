//! The search by key prefixes. A page stores the first four bytes of each key after the common
//! prefix as an integer, its *head*, and for each group of 16 rows a *fence*, the head of the
//! group's last row.
//!
//! ```text
//!   group_of    line 0: which group of 16 rows
//!   tied        the group's line of heads: which rows have the target's head
//!   among       bisect those rows: one, or none
//! ```
//!
//! A lookup in a batch calls the three steps one by one. After each step it prefetches the lines of
//! the next one and lets the other lookups run.

use std::ops::Range;

use forerun_core::arch::{word_bounds, words_below};

use super::super::page::{GROUP_ROWS, PREFIX_HEAD_BYTES, Page};
use super::bisection::{behind_prefix, bisect_by_order};
use super::compare::{self, Compare, Short, packed};
use crate::comparator::KeyOrder;

/// How many rows of the page are before (`key`, `sequence`). In an internal page, rows at the
/// target count too.
#[inline(always)]
pub(super) fn rows_before(page: Page<'_>, order: &KeyOrder, key: &[u8], sequence: u64) -> usize {
    match group_of(page, order, key) {
        Step::Row(row) => row,
        Step::Group(group) => {
            page.prefetch_group(group.index);
            let tied = tied(page, key, group);
            among(page, order, key, sequence, tied)
        }
    }
}

/// The row of a leaf that answers a lookup: the newest version of `key` that is not newer than
/// `sequence`.
#[inline(always)]
pub(super) fn find(page: Page<'_>, order: &KeyOrder, key: &[u8], sequence: u64) -> Option<usize> {
    match group_of(page, order, key) {
        Step::Row(_) => None,
        Step::Group(group) => {
            page.prefetch_group(group.index);
            let tied = tied(page, key, group);
            find_among(page, order, key, sequence, tied)
        }
    }
}

/// The head of a key, given its bytes after the common prefix.
#[inline(always)]
pub(in super::super) fn head_of(order: &KeyOrder, suffix: &[u8]) -> u32 {
    match order {
        KeyOrder::Bytewise => match suffix.first_chunk() {
            Some(head) => u32::from_be_bytes(*head),
            None => {
                let mut head = [0; 4];
                head[..suffix.len()].copy_from_slice(suffix);
                u32::from_be_bytes(head)
            }
        },
        KeyOrder::Custom(comparator) => (comparator.prefix(suffix) >> 32) as u32,
    }
}

/// The result of the first step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// No row has the key, and this many rows are before it. The search does not have to read more
    /// of the page.
    Row(usize),
    /// The row is in this group, or it is the first of the next.
    Group(Group),
}

/// A group of rows, and the head to search it for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// The group's number, for [`Page::prefetch_group`].
    pub(crate) index: usize,
    head: u32,
}

/// The first step finds the group. It reads the page's first line, and a few more if there are many
/// fences.
///
/// If the common prefix is longer than 16 bytes, this step assumes that the key has the rest of it;
/// [`tied`] compares it.
#[inline(always)]
pub(crate) fn group_of(page: Page<'_>, order: &KeyOrder, key: &[u8]) -> Step {
    let prefix_len = page.prefix_len();
    if prefix_len > 0 {
        let mask = compare::mask(prefix_len);
        let prefix = u128::from_be_bytes(*page.prefix_head());
        let start = packed(key) & mask;
        if start != prefix || key.len() < prefix_len.min(PREFIX_HEAD_BYTES) {
            return Step::Row(if start > prefix { page.rows() } else { 0 });
        }
        if prefix_len > PREFIX_HEAD_BYTES {
            page.prefetch_prefix();
        }
    }
    let head = head_of(order, key.get(prefix_len..).unwrap_or(&[]));
    let index = words_below(page.fences(), head);
    if index < page.groups() {
        return Step::Group(Group { index, head });
    }
    // The key is behind all rows, provided it has the rest of a long prefix. The last group gives
    // the same answer.
    match page.groups().checked_sub(1) {
        Some(last) if prefix_len > PREFIX_HEAD_BYTES => Step::Group(Group { index: last, head }),
        _ => Step::Row(page.rows()),
    }
}

/// The second step reads a group's two lines and returns the rows with the target's head. All
/// earlier rows are before the target and all later rows behind it, so an empty range is the
/// target's insertion point.
#[inline(always)]
pub(crate) fn tied(page: Page<'_>, key: &[u8], group: Group) -> Range<usize> {
    if page.prefix_len() > PREFIX_HEAD_BYTES
        && let Err(row) = behind_prefix(page, key)
    {
        return row..row;
    }
    let heads = page.heads(group.index);
    let start = group.index * GROUP_ROWS;
    let (before, up_to) = word_bounds(heads, group.head);
    // The last group's padding is not below any head, but may equal one. The page has been checked,
    // so the range does not end before it starts.
    let up_to = up_to.min(page.rows() - start);
    if up_to == GROUP_ROWS && before < GROUP_ROWS {
        return start + before..end_of_tie(page, group);
    }
    start + before..start + up_to
}

/// The end of a tie that reaches the end of its group.
#[cold]
fn end_of_tie(page: Page<'_>, group: Group) -> usize {
    let next = (group.index + 1..page.groups())
        .map(|index| (index, word_bounds(page.heads(index), group.head).1))
        .find(|(_, up_to)| *up_to < GROUP_ROWS);
    match next {
        Some((index, up_to)) => (index * GROUP_ROWS + up_to).min(page.rows()),
        None => page.rows(),
    }
}

/// The third step reads records: of the rows that tie, it finds how many are before the target. In
/// an internal page, rows at the target count too.
#[inline(always)]
pub(crate) fn among(
    page: Page<'_>,
    order: &KeyOrder,
    key: &[u8],
    sequence: u64,
    tied: Range<usize>,
) -> usize {
    if tied.is_empty() {
        return tied.start;
    }
    let suffix = key.get(page.prefix_len()..).unwrap_or(&[]);
    bisect_by_order(page, order, (suffix, sequence), tied, |_, _| ())
}

/// The third step of a lookup in a leaf: finds the row that answers it.
#[inline(always)]
pub(crate) fn find_among(
    page: Page<'_>,
    order: &KeyOrder,
    key: &[u8],
    sequence: u64,
    tied: Range<usize>,
) -> Option<usize> {
    let row = match tied.len() {
        0 => return None,
        // The usual case: only one row ties.
        1 => tied.start,
        _ => among(page, order, key, sequence, tied.clone()),
    };
    if row >= tied.end {
        return None;
    }
    let suffix = key.get(page.prefix_len()..).unwrap_or(&[]);
    let record = page.record(row);
    let same = match order {
        KeyOrder::Bytewise if suffix.len() <= Short::MAX_BYTES => {
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
