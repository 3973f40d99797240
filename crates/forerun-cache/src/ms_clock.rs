//! The time of a cache: a second, which every lookup reads, and milliseconds, which are computed
//! when an item is about to expire.
//!
//! ```text
//!   second        1 ──────────── 2 ──────────── 3       stored by the ticker or by the caller
//!   milliseconds  1000 … 1999 … 2000 …                  from the system's clock, or the last that a caller has set
//! ```
//!
//! The milliseconds are never behind the second. The second may be behind them, by as much as the
//! ticker is late, but never ahead of the system's clock unless a caller has advanced it.

use forerun_core::sync::time;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// The clock of a cache.
#[derive(Debug)]
pub(crate) struct MsClock {
    second: AtomicU32,
    /// The time that a caller has set.
    set_ms: AtomicU64,
    started: Instant,
    /// Whether it reads the system's clock.
    runs: bool,
}

// Relaxed, throughout: each word only grows and stands alone, and no other data depends on it.
impl MsClock {
    /// A clock that begins now, in second 1. If it does not run, it stands still until it is
    /// advanced.
    pub(crate) fn new(runs: bool) -> MsClock {
        MsClock {
            second: AtomicU32::new(1),
            set_ms: AtomicU64::new(0),
            started: time::now(),
            runs,
        }
    }

    /// The current second.
    #[inline(always)]
    pub(crate) fn second(&self) -> u32 {
        self.second.load(Relaxed)
    }

    /// The current millisecond.
    pub(crate) fn ms(&self) -> u64 {
        let floor_ms = self
            .set_ms
            .load(Relaxed)
            .max(1000 * u64::from(self.second()));
        if self.runs {
            floor_ms.max(self.elapsed_ms())
        } else {
            floor_ms
        }
    }

    /// The time since the beginning.
    fn elapsed_ms(&self) -> u64 {
        1000 + time::elapsed(self.started).as_millis() as u64
    }

    /// How long the current second of the system's clock lasts.
    pub(crate) fn until_next_second_ns(&self) -> u64 {
        1_000_000_000 - u64::from(time::elapsed(self.started).subsec_nanos())
    }

    /// Advances the clock to the time since the beginning.
    pub(crate) fn advance_to_elapsed(&self) {
        self.advance_to_ms(self.elapsed_ms());
    }

    /// Advances the clock to a millisecond, unless that has passed.
    pub(crate) fn advance_to_ms(&self, ms: u64) {
        self.set_ms.fetch_max(ms, Relaxed);
        self.advance_to_second(u32::try_from(ms / 1000).unwrap_or(u32::MAX));
    }

    /// Advances the clock to a second, unless that has passed.
    pub(crate) fn advance_to_second(&self, second: u32) {
        self.second.fetch_max(second, Relaxed);
    }
}
