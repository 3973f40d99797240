//! How many rows must be left for a bisection to prefetch.
//!
//! These are constants. For measurements, a build with the feature `sweep` reads them once from the
//! environment: `FORERUN_KEYS_AHEAD_FROM` and `FORERUN_ENTRIES_AHEAD_FROM`. CONTRIBUTING.md has the
//! recipe.

/// From this many rows on, a bisection prefetches the keys of both rows that the next step may
/// compare.
const KEYS_AHEAD_FROM: usize = 4;

/// From this many rows on, a bisection also prefetches the entries of the four rows that the step
/// after may compare. With fewer rows, those entries lie in the line of the current row's entry or
/// in a neighboring one.
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

    // The next step chooses between two rows only if there are four, and the step after among four
    // only if there are eight.

    #[inline(always)]
    pub(in super::super) fn keys_ahead_from() -> usize {
        (*KEYS).max(4)
    }

    #[inline(always)]
    pub(in super::super) fn entries_ahead_from() -> usize {
        (*ENTRIES).max(8)
    }
}
