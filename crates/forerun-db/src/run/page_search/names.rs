//! Names of the searches, for tests and measurements.

use std::fmt;
use std::str::FromStr;

use super::PageSearch;

impl PageSearch {
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

impl fmt::Display for PageSearch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that does not belong to any search.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown page search {0:?}; available: {list}",
    list = PageSearch::ALL.map(PageSearch::name).join(", ")
)]
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
