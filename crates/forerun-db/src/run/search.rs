//! Where a key is in a page: one bisection for every search, order and kind of page.
//!
//! ```text
//!   Plain, Prefetch1, Prefetch2            Heads
//!   bisect all rows                        group_of    line 0: which group of 16 rows
//!                                          tied        the group's line of heads: which rows have the sought head
//!                                          among       bisect those: one row, or none
//! ```
//!
//! How two keys are compared is a type ([`compare`]): short ones as integers, longer ones behind the bytes that both bounds
//! share, those of another order by their comparator. How far ahead lines are asked for is a constant. So the nine searches
//! are one loop, compiled nine times.
//!
//! A lookup that is one of a batch takes the three steps of `Heads` one by one and lets the others run between them, when
//! it has asked for the lines of the next step.

mod ahead;
mod compare;

use std::ops::Range;

use forerun_core::arch::{word_bounds, words_below};

use ahead::{entries_ahead_from, keys_ahead_from};
use compare::{ByComparator, Compare, Short, Skipping, packed};

pub(super) use compare::shared_len;

use super::RowSearch;
use super::page::{GROUP_ROWS, PREFIX_HEAD_BYTES, Page, PageKind};
use crate::comparator::KeyOrder;

/// The first row of a leaf that is not before (`key`, `sequence`); `rows` if all are before.
#[inline]
pub(crate) fn lower_bound(
    page: Page<'_>,
    order: &KeyOrder,
    key: &[u8],
    sequence: u64,
    search: RowSearch,
) -> usize {
    rows_before(page, order, key, sequence, search)
}

/// The row of an internal page that leads to where (`key`, `sequence`) is: the last one whose separator is not behind.
#[inline]
pub(crate) fn child(
    page: Page<'_>,
    order: &KeyOrder,
    key: &[u8],
    sequence: u64,
    search: RowSearch,
) -> usize {
    rows_before(page, order, key, sequence, search).saturating_sub(1)
}

/// The row of a leaf that answers a lookup: the newest version of `key` that is not newer than `sequence`.
#[inline]
pub(crate) fn find(
    page: Page<'_>,
    order: &KeyOrder,
    key: &[u8],
    sequence: u64,
    search: RowSearch,
) -> Option<usize> {
    if search == RowSearch::Heads {
        return match group_of(page, order, key) {
            Step::Row(_) => None,
            Step::Group(group) => {
                page.prefetch_group(group.index);
                let tied = tied(page, key, group);
                find_among(page, order, key, sequence, tied)
            }
        };
    }
    let row = rows_before(page, order, key, sequence, search);
    (row < page.rows() && page.key_is(order, row, key)).then_some(row)
}

/// How many rows are before (`key`, `sequence`); in an internal page, where a row is a separator, how many are not behind.
#[inline]
fn rows_before(
    page: Page<'_>,
    order: &KeyOrder,
    key: &[u8],
    sequence: u64,
    search: RowSearch,
) -> usize {
    if search == RowSearch::Heads {
        return match group_of(page, order, key) {
            Step::Row(row) => row,
            Step::Group(group) => {
                page.prefetch_group(group.index);
                let tied = tied(page, key, group);
                among(page, order, key, sequence, tied)
            }
        };
    }
    let suffix = match behind_prefix(page, key) {
        Ok(suffix) => suffix,
        Err(row) => return row,
    };
    let (rows, sought) = (0..page.rows(), (suffix, sequence));
    match search {
        RowSearch::Plain | RowSearch::Heads => bisect_by_order::<0>(page, order, sought, rows),
        RowSearch::Prefetch1 => bisect_by_order::<1>(page, order, sought, rows),
        RowSearch::Prefetch2 => bisect_by_order::<2>(page, order, sought, rows),
    }
}

/// What the head of a key is, given what it has behind the prefix.
#[inline(always)]
pub(super) fn head_of(order: &KeyOrder, suffix: &[u8]) -> u32 {
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

/// What the first step of `Heads` has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// How many rows are before the sought one: no more of the page must be read, and no row has the key.
    Row(usize),
    /// The sought row is in this group or the first of the next.
    Group(Group),
}

/// A group of rows, and the head that is sought there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// The group's number, for [`Page::prefetch_group`].
    pub(crate) index: usize,
    head: u32,
}

/// The first step of `Heads`, which reads the page's first line, or few: which group.
///
/// Of a prefix of more than 16 bytes the rest is taken to be the key's; [`tied`] compares it.
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
    // Behind all rows, if the rest of a long prefix is the key's too: then the last group says the same.
    match page.groups().checked_sub(1) {
        Some(last) if prefix_len > PREFIX_HEAD_BYTES => Step::Group(Group { index: last, head }),
        _ => Step::Row(page.rows()),
    }
}

/// The second step of `Heads`, which reads the lines of a group: the rows whose head is the sought one. All rows before
/// are before the sought one, all behind are behind it; so where there are none, that is where it would be.
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
    // What pads the last group is not below any head, but may be equal. What was read was checked; so this does not
    // end before it starts.
    let up_to = up_to.min(page.rows() - start);
    if up_to == GROUP_ROWS && before < GROUP_ROWS {
        return start + before..end_of_tie(page, group);
    }
    start + before..start + up_to
}

/// The end of a tie that goes on to the end of its group.
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

/// The third step of `Heads`, which reads records: how many rows are before the sought one, or in an internal page not
/// behind it, given the rows that may be either.
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
    bisect_by_order::<0>(page, order, (suffix, sequence), tied)
}

/// The third step of `Heads` in a leaf, for a lookup: the row that answers it.
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
        // Mostly it is the row itself that is tied.
        1 => tied.start,
        _ => among(page, order, key, sequence, tied.clone()),
    };
    if row >= tied.end {
        return None;
    }
    let suffix = key.get(page.prefix_len()..).unwrap_or(&[]);
    let record = page.record(row);
    let same = match order {
        KeyOrder::Bytewise if suffix.len() <= Short::MOST_BYTES => {
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

/// What a key has behind the page's prefix; if it begins otherwise, how many rows are before it: none or all.
#[inline(always)]
fn behind_prefix<'k>(page: Page<'_>, key: &'k [u8]) -> Result<&'k [u8], usize> {
    let prefix = page.prefix();
    match key.split_at_checked(prefix.len()) {
        Some((start, suffix)) if start == prefix => Ok(suffix),
        _ if key < prefix => Err(0),
        _ => Err(page.rows()),
    }
}

/// Bisects by the order's way of comparing.
#[inline(always)]
fn bisect_by_order<const AHEAD: u8>(
    page: Page<'_>,
    order: &KeyOrder,
    (suffix, sequence): (&[u8], u64),
    rows: Range<usize>,
) -> usize {
    match order {
        KeyOrder::Bytewise if suffix.len() <= Short::MOST_BYTES => {
            bisect::<_, AHEAD>(page, Short::new(suffix), sequence, rows)
        }
        KeyOrder::Bytewise => bisect::<_, AHEAD>(page, Skipping::new(suffix), sequence, rows),
        KeyOrder::Custom(comparator) => {
            let compare = ByComparator::new(&**comparator, suffix);
            bisect::<_, AHEAD>(page, compare, sequence, rows)
        }
    }
}

/// Bisects rows of which the first ones are before the sought key and sequence number (in an internal page: not behind),
/// and returns where those end.
fn bisect<C: Compare, const AHEAD: u8>(
    page: Page<'_>,
    mut compare: C,
    sequence: u64,
    rows: Range<usize>,
) -> usize {
    let internal = page.kind() == PageKind::Internal;
    // An internal page's first row is before everything.
    let (mut low, mut high) = (rows.start.max(usize::from(internal)), rows.end);
    while low < high {
        let middle = low + (high - low) / 2;
        ask_ahead::<AHEAD>(page, low, middle, high);
        let record = page.record(middle);
        let stands = compare
            .compare(page, &record)
            .then_with(|| sequence.cmp(&page.record_sequence(&record)));
        if stands.is_lt() || (internal && stands.is_eq()) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

/// Asks for what the next two steps read, whichever way this one turns out.
#[inline(always)]
fn ask_ahead<const AHEAD: u8>(page: Page<'_>, low: usize, middle: usize, high: usize) {
    let rows = high - low;
    if AHEAD == 0 || rows < keys_ahead_from() {
        return;
    }
    // The rows that the next step compares, and by these those of the step after.
    let (left, right) = (
        low + (middle - low) / 2,
        middle + 1 + (high - middle - 1) / 2,
    );
    if AHEAD > 1 && rows >= entries_ahead_from() {
        // An entry's line holds sixteen of them: being off by one costs nothing.
        let eighth = rows / 8;
        for row in [left - eighth, left + eighth, right - eighth, right + eighth] {
            page.prefetch_entry(row);
        }
    }
    page.prefetch_key(&page.record(left));
    page.prefetch_key(&page.record(right));
}
