//! Searching a page for a key.
//!
//! ```text
//!   key_prefixes.rs     compares the first bytes of keys as integers, bisects only where they are equal
//!   bisection.rs        bisects rows; compare.rs: three ways to compare two keys
//!   plain_bisection.rs  bisects all rows; only for tests and measurements
//!   named.rs            the searches by name; only for tests and measurements
//! ```
//!
//! Every search works with every order and both kinds of pages.

mod bisection;
mod compare;
mod key_prefixes;
#[cfg(any(test, feature = "study"))]
mod named;
#[cfg(any(test, feature = "study"))]
mod plain_bisection;

pub(super) use compare::{mask, packed, shared_len};
pub(super) use key_prefixes::{
    GroupSearch, find_group, find_in, key_prefix_of, prefix_matches, rows_before_in,
};
#[cfg(any(test, feature = "study"))]
pub use named::PageSearch;

use super::page::Page;
use crate::comparator::KeyOrder;

/// The first row of a leaf at or after (`key`, `sequence`); the number of rows if all are before.
#[inline]
pub(crate) fn lower_bound(page: Page<'_>, order: &KeyOrder, key: &[u8], sequence: u64) -> usize {
    key_prefixes::rows_before(page, order, key, sequence)
}

/// The row of an internal page whose child covers (`key`, `sequence`): the last one whose separator
/// is not after it.
#[inline]
pub(crate) fn child(page: Page<'_>, order: &KeyOrder, key: &[u8], sequence: u64) -> usize {
    key_prefixes::rows_before(page, order, key, sequence).saturating_sub(1)
}
