//! How a row is searched for in a page.

use std::fmt;
use std::str::FromStr;

/// How a row is searched for in a page. All give the same answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RowSearch {
    /// Bisection over the rows: the row's entry, then the key behind it.
    Plain,
    /// Bisection; the keys that the next step may compare are asked for while this one is compared.
    Prefetch1,
    /// [`Prefetch1`](Self::Prefetch1), and the row entries of the step after are asked for too (the scheme of
    /// WiredTiger's row search on leaf and internal pages).
    Prefetch2,
    /// By the heads of the keys: which group, which row in it, and only a row whose head is the sought one's is compared.
    #[default]
    Heads,
}

impl RowSearch {
    /// Every search, for tests and measurements.
    pub const ALL: [RowSearch; 4] = [
        RowSearch::Plain,
        RowSearch::Prefetch1,
        RowSearch::Prefetch2,
        RowSearch::Heads,
    ];

    /// The search's name, as [`FromStr`] reads it.
    pub fn name(self) -> &'static str {
        match self {
            RowSearch::Plain => "plain",
            RowSearch::Prefetch1 => "prefetch1",
            RowSearch::Prefetch2 => "prefetch2",
            RowSearch::Heads => "heads",
        }
    }
}

impl fmt::Display for RowSearch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is no search's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no row search is called {0:?}: there are {list}", list = RowSearch::ALL.map(RowSearch::name).join(", "))]
pub struct UnknownRowSearch(pub String);

impl FromStr for RowSearch {
    type Err = UnknownRowSearch;

    fn from_str(name: &str) -> Result<Self, UnknownRowSearch> {
        RowSearch::ALL
            .into_iter()
            .find(|search| search.name() == name)
            .ok_or_else(|| UnknownRowSearch(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_an_unknown_one_lists_the_known() {
        for search in RowSearch::ALL {
            assert_eq!(search.name().parse(), Ok(search));
        }
        let error = "fast".parse::<RowSearch>().unwrap_err().to_string();
        assert!(
            error.contains("\"fast\"") && error.contains("prefetch2"),
            "{error}"
        );
    }
}
