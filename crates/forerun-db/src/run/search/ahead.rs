//! From how many rows on a bisection asks for lines ahead.
//!
//! Constants, but for builds with the feature `sweep`, in which they can be set from outside to be measured:
//! `FORERUN_KEYS_AHEAD_FROM` and `FORERUN_ENTRIES_AHEAD_FROM`, read once. CONTRIBUTING.md has the recipe.

/// From this many rows on, the keys of both rows that the next step may compare are asked for.
const KEYS_AHEAD_FROM: usize = 4;

/// From this many rows on, the entries of the four rows of the step after are asked for as well. Below, they lie in the
/// line of the row that is compared, or in one beside it.
const ENTRIES_AHEAD_FROM: usize = 32;

#[cfg(not(feature = "sweep"))]
#[inline(always)]
pub(super) fn keys_ahead_from() -> usize {
    KEYS_AHEAD_FROM
}

#[cfg(not(feature = "sweep"))]
#[inline(always)]
pub(super) fn entries_ahead_from() -> usize {
    ENTRIES_AHEAD_FROM
}

#[cfg(feature = "sweep")]
pub(super) use swept::{entries_ahead_from, keys_ahead_from};

#[cfg(feature = "sweep")]
mod swept {
    use forerun_core::sync::LazyLock;

    use super::{ENTRIES_AHEAD_FROM, KEYS_AHEAD_FROM};

    static KEYS: LazyLock<usize> =
        LazyLock::new(|| from("FORERUN_KEYS_AHEAD_FROM", KEYS_AHEAD_FROM));
    static ENTRIES: LazyLock<usize> =
        LazyLock::new(|| from("FORERUN_ENTRIES_AHEAD_FROM", ENTRIES_AHEAD_FROM));

    fn from(name: &str, usual: usize) -> usize {
        let set = std::env::var(name).ok().and_then(|text| text.parse().ok());
        set.unwrap_or(usual)
    }

    // Of fewer than four rows the next step has no two to compare, and of fewer than eight the step after no four.

    #[inline(always)]
    pub(in super::super) fn keys_ahead_from() -> usize {
        (*KEYS).max(4)
    }

    #[inline(always)]
    pub(in super::super) fn entries_ahead_from() -> usize {
        (*ENTRIES).max(8)
    }
}
