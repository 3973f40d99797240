//! Searching a page for a key. To add a search, write its file and register it here: a variant of
//! [`PageSearch`], its name, and its arm in [`rows_before`].
//!
//! ```text
//!   key_prefixes.rs       KeyPrefixes: compares the first bytes of keys as integers, bisects only where they are equal
//!   bisection.rs          bisects rows; compare.rs: three ways to compare two keys
//!   plain_bisection.rs    Plain, Prefetch1, Prefetch2: bisect all rows; only for tests and measurements
//!   prefetch_distance.rs  how many rows must be left for Prefetch1 and Prefetch2 to prefetch
//! ```
//!
//! Every search works with every order and both kinds of pages.

mod bisection;
mod compare;
mod key_prefixes;
#[cfg(any(test, feature = "study"))]
mod plain_bisection;
#[cfg(any(test, feature = "study"))]
mod prefetch_distance;

pub(super) use compare::{mask, packed, shared_len};
pub(super) use key_prefixes::{
    Step, find_group, find_in, key_prefix_of, prefix_matches, rows_before_in,
};

use super::page::Page;
use crate::comparator::KeyOrder;

/// The number of searches that exist only in tests and measurements.
const STUDY: usize = if cfg!(any(test, feature = "study")) {
    3
} else {
    0
};

/// How a page is searched for a key. All searches give the same answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum PageSearch {
    /// Bisects the rows. Each step reads the row's entry, then its key.
    #[cfg(any(test, feature = "study"))]
    Plain,
    /// Bisects, and prefetches the two keys that the next step may compare.
    #[cfg(any(test, feature = "study"))]
    Prefetch1,
    /// Like [`Prefetch1`](Self::Prefetch1), and also prefetches the row entries of the step after
    /// the next. WiredTiger's row search does the same on leaf and internal pages.
    #[cfg(any(test, feature = "study"))]
    Prefetch2,
    /// Compares four bytes of each key as integers, those that follow the prefix that all keys of
    /// the page share: first to find the group of rows, then the row in the group. Compares whole
    /// keys only where those bytes are equal.
    #[default]
    KeyPrefixes,
}

impl PageSearch {
    /// Every search, for tests and measurements.
    pub const ALL: [PageSearch; 1 + STUDY] = [
        #[cfg(any(test, feature = "study"))]
        PageSearch::Plain,
        #[cfg(any(test, feature = "study"))]
        PageSearch::Prefetch1,
        #[cfg(any(test, feature = "study"))]
        PageSearch::Prefetch2,
        PageSearch::KeyPrefixes,
    ];

    /// The search's name, as [`FromStr`](std::str::FromStr) reads it.
    #[cfg(any(test, feature = "study"))]
    pub fn name(self) -> &'static str {
        match self {
            PageSearch::Plain => "plain",
            PageSearch::Prefetch1 => "prefetch1",
            PageSearch::Prefetch2 => "prefetch2",
            PageSearch::KeyPrefixes => "key-prefixes",
        }
    }
}

#[cfg(any(test, feature = "study"))]
forerun_core::names! {
    PageSearch, "page search";
    /// A name that does not belong to any search.
    UnknownPageSearch
}

/// How many rows of the page are before (`key`, `sequence`). In an internal page, rows at the
/// target count too.
#[inline(always)]
fn rows_before(
    page: Page<'_>,
    order: &KeyOrder,
    key: &[u8],
    sequence: u64,
    search: PageSearch,
) -> usize {
    match search {
        #[cfg(any(test, feature = "study"))]
        PageSearch::Plain => plain_bisection::rows_before::<0>(page, order, key, sequence),
        #[cfg(any(test, feature = "study"))]
        PageSearch::Prefetch1 => plain_bisection::rows_before::<1>(page, order, key, sequence),
        #[cfg(any(test, feature = "study"))]
        PageSearch::Prefetch2 => plain_bisection::rows_before::<2>(page, order, key, sequence),
        PageSearch::KeyPrefixes => key_prefixes::rows_before(page, order, key, sequence),
    }
}

/// The first row of a leaf at or after (`key`, `sequence`); the number of rows if all are before.
#[inline]
pub(crate) fn lower_bound(
    page: Page<'_>,
    order: &KeyOrder,
    key: &[u8],
    sequence: u64,
    search: PageSearch,
) -> usize {
    rows_before(page, order, key, sequence, search)
}

/// The row of an internal page whose child covers (`key`, `sequence`): the last one whose separator
/// is not after it.
#[inline]
pub(crate) fn child(
    page: Page<'_>,
    order: &KeyOrder,
    key: &[u8],
    sequence: u64,
    search: PageSearch,
) -> usize {
    rows_before(page, order, key, sequence, search).saturating_sub(1)
}

/// The row of a leaf that answers a lookup: the newest version of `key` that is not newer than
/// `sequence`.
#[inline]
pub(crate) fn find(
    page: Page<'_>,
    order: &KeyOrder,
    key: &[u8],
    sequence: u64,
    search: PageSearch,
) -> Option<usize> {
    if search == PageSearch::KeyPrefixes {
        // Returns before reading a record if no row has the key's prefix.
        return key_prefixes::find(page, order, key, sequence);
    }
    let row = rows_before(page, order, key, sequence, search);
    (row < page.rows() && page.key_is(order, row, key)).then_some(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_an_unknown_one_lists_the_known() {
        for search in PageSearch::ALL {
            assert_eq!(search.name().parse(), Ok(search));
        }
        let error = "fast".parse::<PageSearch>().unwrap_err().to_string();
        assert!(
            error.contains("\"fast\"") && error.contains("prefetch2"),
            "{error}"
        );
    }
}
