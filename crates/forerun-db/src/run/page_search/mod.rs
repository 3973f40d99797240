//! Searching a page for a key. To add a search, write its file and register it here: a variant of
//! [`PageSearch`], its name, and its arm in [`rows_before`].
//!
//! ```text
//!   bisection.rs          Plain, Prefetch1, Prefetch2: bisect all rows
//!   key_prefixes.rs       KeyPrefixes: compares the first bytes of keys as integers, bisects ties only
//!   compare.rs            three ways to compare two keys; every search uses them
//!   prefetch_distance.rs  how many rows must be left for a bisection to prefetch
//! ```
//!
//! Every search works with every order and both kinds of pages.

mod bisection;
mod compare;
mod key_prefixes;
mod prefetch_distance;

use std::fmt;
use std::str::FromStr;

pub(super) use compare::shared_len;
pub(super) use key_prefixes::{Step, among, find_among, group_of, head_of, tied};

use super::page::Page;
use crate::comparator::KeyOrder;

/// How a page is searched for a key. All searches give the same answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PageSearch {
    /// Bisects the rows. Each step reads the row's entry, then its key.
    Plain,
    /// Bisects, and prefetches the two keys that the next step may compare.
    Prefetch1,
    /// Like [`Prefetch1`](Self::Prefetch1), and also prefetches the row entries of the step after
    /// the next. WiredTiger's row search does the same on leaf and internal pages.
    Prefetch2,
    /// Compares four bytes of each key as integers, those that follow the prefix that all keys of
    /// the page share: first to find the group of rows, then the row in the group. Compares whole
    /// keys only where those bytes are equal.
    #[default]
    KeyPrefixes,
}

impl PageSearch {
    /// Every search, for tests and measurements.
    pub const ALL: [PageSearch; 4] = [
        PageSearch::Plain,
        PageSearch::Prefetch1,
        PageSearch::Prefetch2,
        PageSearch::KeyPrefixes,
    ];

    /// The search's name, as [`FromStr`] reads it.
    pub fn name(self) -> &'static str {
        match self {
            PageSearch::Plain => "plain",
            PageSearch::Prefetch1 => "prefetch1",
            PageSearch::Prefetch2 => "prefetch2",
            PageSearch::KeyPrefixes => "key-prefixes",
        }
    }
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
        PageSearch::Plain => bisection::rows_before::<0>(page, order, key, sequence),
        PageSearch::Prefetch1 => bisection::rows_before::<1>(page, order, key, sequence),
        PageSearch::Prefetch2 => bisection::rows_before::<2>(page, order, key, sequence),
        PageSearch::KeyPrefixes => key_prefixes::rows_before(page, order, key, sequence),
    }
}

/// The first row of a leaf at or behind (`key`, `sequence`); the number of rows if all are before.
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
/// is not behind it.
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
        // Returns before reading a record if no row has the key's head.
        return key_prefixes::find(page, order, key, sequence);
    }
    let row = rows_before(page, order, key, sequence, search);
    (row < page.rows() && page.key_is(order, row, key)).then_some(row)
}

impl fmt::Display for PageSearch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that does not belong to any search.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown page search {0:?}; available: {list}", list = PageSearch::ALL.map(PageSearch::name).join(", "))]
pub struct UnknownPageSearch(pub String);

impl FromStr for PageSearch {
    type Err = UnknownPageSearch;

    fn from_str(name: &str) -> Result<Self, UnknownPageSearch> {
        PageSearch::ALL
            .into_iter()
            .find(|search| search.name() == name)
            .ok_or_else(|| UnknownPageSearch(name.to_owned()))
    }
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
