//! The searches that `KeyPrefixes` was chosen from, for measurements: bisection over all rows, with
//! and without prefetching.

use std::ops::Range;

use super::super::page::Page;
use super::bisection::{behind_prefix, bisect_by_order};
use crate::comparator::KeyOrder;

/// From this many rows on, a bisection prefetches the keys of both rows that the next step may
/// compare.
const KEYS_AHEAD_FROM: usize = 4;

/// From this many rows on, a bisection also prefetches the entries of the four rows that the step
/// after may compare. With fewer rows, those entries lie in the line of the current row's entry or
/// in a neighboring one.
const ENTRIES_AHEAD_FROM: usize = 32;

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
    let rows = 0..page.rows();
    let ahead = |rows, middle| prefetch_ahead::<AHEAD>(page, rows, middle);
    match behind_prefix(page, key) {
        Ok(suffix) => bisect_by_order(page, order, (suffix, sequence), rows, ahead),
        Err(row) => row,
    }
}

/// Prefetches what the next two steps may read, whichever half of the rows this step picks.
#[inline(always)]
fn prefetch_ahead<const AHEAD: u8>(page: Page<'_>, rows: Range<usize>, middle: usize) {
    if AHEAD == 0 || rows.len() < KEYS_AHEAD_FROM {
        return;
    }
    // The two rows that the next step may compare. The step after picks from the four rows around
    // them.
    let (left, right) = (
        rows.start + (middle - rows.start) / 2,
        middle + 1 + (rows.end - middle - 1) / 2,
    );
    if AHEAD > 1 && rows.len() >= ENTRIES_AHEAD_FROM {
        // A line holds sixteen entries, so being off by one costs nothing.
        let eighth = rows.len() / 8;
        for row in [left - eighth, left + eighth, right - eighth, right + eighth] {
            page.prefetch_entry(row);
        }
    }
    page.prefetch_key(&page.record(left));
    page.prefetch_key(&page.record(right));
}
