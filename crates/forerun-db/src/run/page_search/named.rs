//! The searches of a page by name, for tests and measurements. To add a search, write its file and
//! register it here: a variant of [`PageSearch`], its name, and its arm in `rows_before`.

use super::super::page::Page;
use super::{key_prefixes, plain_bisection};
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
    /// keys only where those bytes are equal. The search of every store.
    #[default]
    KeyPrefixes,
}

impl PageSearch {
    /// Every search.
    pub const ALL: [PageSearch; 4] = [
        PageSearch::Plain,
        PageSearch::Prefetch1,
        PageSearch::Prefetch2,
        PageSearch::KeyPrefixes,
    ];

    /// The search's name, as [`FromStr`](std::str::FromStr) reads it.
    pub fn name(self) -> &'static str {
        match self {
            PageSearch::Plain => "plain",
            PageSearch::Prefetch1 => "prefetch1",
            PageSearch::Prefetch2 => "prefetch2",
            PageSearch::KeyPrefixes => "key-prefixes",
        }
    }

    /// See [`super::lower_bound`].
    #[inline]
    pub(crate) fn lower_bound(
        self,
        page: Page<'_>,
        order: &KeyOrder,
        key: &[u8],
        sequence: u64,
    ) -> usize {
        self.rows_before(page, order, key, sequence)
    }

    /// See [`super::child`].
    #[inline]
    pub(crate) fn child(
        self,
        page: Page<'_>,
        order: &KeyOrder,
        key: &[u8],
        sequence: u64,
    ) -> usize {
        self.rows_before(page, order, key, sequence)
            .saturating_sub(1)
    }

    /// The row of a leaf that answers a lookup: the newest version of `key` that is not newer than
    /// `sequence`.
    #[inline]
    pub(crate) fn find(
        self,
        page: Page<'_>,
        order: &KeyOrder,
        key: &[u8],
        sequence: u64,
    ) -> Option<usize> {
        if self == PageSearch::KeyPrefixes {
            // Returns before reading a record if no row has the key's prefix.
            return key_prefixes::find(page, order, key, sequence);
        }
        let row = self.rows_before(page, order, key, sequence);
        (row < page.rows() && page.key_is(order, row, key)).then_some(row)
    }

    #[inline(always)]
    fn rows_before(self, page: Page<'_>, order: &KeyOrder, key: &[u8], sequence: u64) -> usize {
        match self {
            PageSearch::Plain => plain_bisection::rows_before::<0>(page, order, key, sequence),
            PageSearch::Prefetch1 => plain_bisection::rows_before::<1>(page, order, key, sequence),
            PageSearch::Prefetch2 => plain_bisection::rows_before::<2>(page, order, key, sequence),
            PageSearch::KeyPrefixes => key_prefixes::rows_before(page, order, key, sequence),
        }
    }
}

forerun_core::names! {
    PageSearch, "page search";
    /// A name that does not belong to any search.
    UnknownPageSearch
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
