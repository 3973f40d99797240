//! Bisection over the rows of a page: one loop, compiled once for each comparison and prefetch
//! distance.

use std::ops::Range;

use super::super::page::{Page, PageKind};
use super::compare::{ByComparator, Compare, Short, Skipping};
use super::prefetch_distance::{entries_ahead_from, keys_ahead_from};
use crate::comparator::KeyOrder;

/// How many rows of the page are before (`key`, `sequence`). In an internal page, rows at the
/// target count too.
///
/// `AHEAD` is how many steps ahead the bisection prefetches: 0, 1 or 2.
#[inline(always)]
pub(super) fn rows_before<const AHEAD: u8>(
    page: Page<'_>,
    order: &KeyOrder,
    key: &[u8],
    sequence: u64,
) -> usize {
    match behind_prefix(page, key) {
        Ok(suffix) => bisect_by_order::<AHEAD>(page, order, (suffix, sequence), 0..page.rows()),
        Err(row) => row,
    }
}

/// The key's bytes after the common prefix. If the key has another prefix: how many rows are before
/// it, none or all.
#[inline(always)]
pub(super) fn behind_prefix<'k>(page: Page<'_>, key: &'k [u8]) -> Result<&'k [u8], usize> {
    let prefix = page.prefix();
    match key.split_at_checked(prefix.len()) {
        Some((start, suffix)) if start == prefix => Ok(suffix),
        _ if key < prefix => Err(0),
        _ => Err(page.rows()),
    }
}

/// Bisects with the cheapest comparison that fits the order and the key.
#[inline(always)]
pub(super) fn bisect_by_order<const AHEAD: u8>(
    page: Page<'_>,
    order: &KeyOrder,
    (suffix, sequence): (&[u8], u64),
    rows: Range<usize>,
) -> usize {
    match order {
        KeyOrder::Bytewise if suffix.len() <= Short::MAX_BYTES => {
            bisect::<_, AHEAD>(page, Short::new(suffix), sequence, rows)
        }
        KeyOrder::Bytewise => bisect::<_, AHEAD>(page, Skipping::new(suffix), sequence, rows),
        KeyOrder::Custom(comparator) => {
            let compare = ByComparator::new(&**comparator, suffix);
            bisect::<_, AHEAD>(page, compare, sequence, rows)
        }
    }
}

/// Finds the first row of a range that is at or behind the target; in an internal page, the first
/// row behind it.
fn bisect<C: Compare, const AHEAD: u8>(
    page: Page<'_>,
    mut compare: C,
    sequence: u64,
    rows: Range<usize>,
) -> usize {
    let internal = page.kind() == PageKind::Internal;
    // An internal page's first row is before every key.
    let (mut low, mut high) = (rows.start.max(usize::from(internal)), rows.end);
    while low < high {
        let middle = low + (high - low) / 2;
        prefetch_ahead::<AHEAD>(page, low, middle, high);
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

/// Prefetches what the next two steps may read, whichever half this step picks.
#[inline(always)]
fn prefetch_ahead<const AHEAD: u8>(page: Page<'_>, low: usize, middle: usize, high: usize) {
    let rows = high - low;
    if AHEAD == 0 || rows < keys_ahead_from() {
        return;
    }
    // The two rows that the next step may compare. The step after picks from the four rows around
    // them.
    let (left, right) = (
        low + (middle - low) / 2,
        middle + 1 + (high - middle - 1) / 2,
    );
    if AHEAD > 1 && rows >= entries_ahead_from() {
        // A line holds sixteen entries, so being off by one costs nothing.
        let eighth = rows / 8;
        for row in [left - eighth, left + eighth, right - eighth, right + eighth] {
            page.prefetch_entry(row);
        }
    }
    page.prefetch_key(&page.record(left));
    page.prefetch_key(&page.record(right));
}
