//! Bisection over rows of a page: one loop, compiled once for each comparison.
//!
//! `ahead` is called at each step with the rows that are left and the middle one. A search that
//! prefetches does it there.

use std::ops::Range;

use super::super::page::{Page, PageKind};
use super::compare::{ByComparator, Compare, Short, Skipping};
use crate::comparator::KeyOrder;

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
pub(super) fn bisect_by_order(
    page: Page<'_>,
    order: &KeyOrder,
    (suffix, sequence): (&[u8], u64),
    rows: Range<usize>,
    ahead: impl Fn(Range<usize>, usize),
) -> usize {
    match order {
        KeyOrder::Bytewise if suffix.len() <= Short::BYTES_MAX => {
            bisect(page, Short::new(suffix), sequence, rows, ahead)
        }
        KeyOrder::Bytewise => bisect(page, Skipping::new(suffix), sequence, rows, ahead),
        KeyOrder::Custom(comparator) => {
            let compare = ByComparator::new(&**comparator, suffix);
            bisect(page, compare, sequence, rows, ahead)
        }
    }
}

/// Finds the first row of a range that is at or after the target; in an internal page, the first
/// row after it.
fn bisect<C: Compare>(
    page: Page<'_>,
    mut compare: C,
    sequence: u64,
    rows: Range<usize>,
    ahead: impl Fn(Range<usize>, usize),
) -> usize {
    let internal = page.kind() == PageKind::Internal;
    // An internal page's first row is before every key.
    let (mut low, mut high) = (rows.start.max(usize::from(internal)), rows.end);
    while low < high {
        let middle = low + (high - low) / 2;
        ahead(low..high, middle);
        let record = page.record(middle);
        let ordering = compare
            .compare(page, &record)
            .then_with(|| sequence.cmp(&page.record_sequence(&record)));
        if ordering.is_lt() || (internal && ordering.is_eq()) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}
