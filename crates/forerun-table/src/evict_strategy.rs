//! Eviction strategies: which rows a tier evicts first.
//!
//! ```text
//!   host tier     mark, one byte per row      Lru: generation of the last use    Lfu: uses, at most 15    Customized: unused
//!   device tier   score, up to 8 bytes      Lru: the device's clock            Lfu: epoch and uses      Customized: the caller's
//! ```
//!
//! A new strategy is a variant of [`EvictStrategy`] and an arm in each function here. It also needs
//! a variant in `forerun_gpu::table` and its CUDA kernels, and its name in the type stub of the
//! Python package and in the help text of `forerun-bench table`. The command line and Python parse
//! the names that are defined here. The terms are HierarchicalKV's.

#[cfg(feature = "gpu")]
use forerun_gpu::table::GpuEvictStrategy;

/// The maximum count of a row's uses.
pub(crate) const USES_MAX: u8 = 15;

/// The maximum age of a row in generations. Generations count modulo 256; this keeps the oldest
/// rows from wrapping around to the newest.
const AGE_MAX: u8 = 128;

/// Which rows leave a tier first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum EvictStrategy {
    /// The least recently used. The host tier measures recency in sixteenths of a turnover of its
    /// rows.
    Lru,
    /// The least frequently used, with aging: the clock halves the count of a row that it passes.
    /// On the device every count of a later turnover ranks above every count of an earlier one.
    #[default]
    Lfu,
    /// The lowest score, which the caller supplies with each row and the store keeps. A row without
    /// a score has 0.
    Customized,
}

impl EvictStrategy {
    /// All strategies.
    pub const ALL: [EvictStrategy; 3] = [
        EvictStrategy::Lru,
        EvictStrategy::Lfu,
        EvictStrategy::Customized,
    ];

    /// The name of the strategy.
    pub const fn name(self) -> &'static str {
        match self {
            EvictStrategy::Lru => "lru",
            EvictStrategy::Lfu => "lfu",
            EvictStrategy::Customized => "customized",
        }
    }

    /// Whether the caller supplies the scores.
    pub(crate) fn is_custom(self) -> bool {
        self == EvictStrategy::Customized
    }

    /// Whether a row in use always outranks a row in the tier.
    pub(crate) fn admits_all(self) -> bool {
        self == EvictStrategy::Lru
    }

    /// Whether [`Admission::ByScore`](crate::Admission) has to count the lookups of keys that are
    /// not in the tier.
    pub(crate) fn counts_lookups(self) -> bool {
        self == EvictStrategy::Lfu
    }

    /// Whether hits change the rank of a row.
    pub(crate) fn follows_use(self) -> bool {
        self != EvictStrategy::Customized
    }

    /// The mark of a row that is linked in generation `now`, given the number of its earlier uses.
    pub(crate) fn first_mark(self, uses: u8, now: u8) -> u8 {
        match self {
            EvictStrategy::Lru => now,
            EvictStrategy::Lfu | EvictStrategy::Customized => uses,
        }
    }

    /// The mark of a row after a hit.
    #[inline]
    pub(crate) fn used_mark(self, mark: u8, now: u8) -> u8 {
        match self {
            EvictStrategy::Lru => now,
            EvictStrategy::Lfu => (mark + 1).min(USES_MAX),
            EvictStrategy::Customized => mark,
        }
    }

    /// The mark of a row that the clock passes without evicting it.
    pub(crate) fn aged_mark(self, mark: u8, now: u8) -> u8 {
        match self {
            EvictStrategy::Lru if now.wrapping_sub(mark) > AGE_MAX => now.wrapping_sub(AGE_MAX),
            EvictStrategy::Lfu => mark / 2,
            EvictStrategy::Lru | EvictStrategy::Customized => mark,
        }
    }

    /// The mark of a row to be evicted among the first.
    #[cfg(any(test, feature = "gpu"))]
    pub(crate) fn coldest_mark(self, now: u8) -> u8 {
        match self {
            EvictStrategy::Lru => now.wrapping_sub(AGE_MAX),
            EvictStrategy::Lfu | EvictStrategy::Customized => 0,
        }
    }

    /// The mark of a row to be evicted among the last.
    pub(crate) fn hottest_mark(self, now: u8) -> u8 {
        match self {
            EvictStrategy::Lru => now,
            EvictStrategy::Lfu | EvictStrategy::Customized => USES_MAX,
        }
    }

    /// The number of uses in a mark, if it counts them.
    #[cfg(feature = "gpu")]
    pub(crate) fn uses_of_mark(self, mark: u8) -> u8 {
        match self {
            EvictStrategy::Lfu => mark,
            EvictStrategy::Lru | EvictStrategy::Customized => 0,
        }
    }

    /// The rank of a row in the host tier: the lowest is evicted first. `custom` is the caller's
    /// score.
    pub(crate) fn host_rank(self, mark: u8, now: u8, custom: u64) -> u64 {
        match self {
            EvictStrategy::Lru => u64::from(u8::MAX - now.wrapping_sub(mark)),
            EvictStrategy::Lfu => u64::from(mark),
            EvictStrategy::Customized => custom,
        }
    }

    /// The rank with which a row competes for a place in the host tier.
    pub(crate) fn candidate_rank(self, uses: u16, custom: u64) -> u64 {
        match self {
            EvictStrategy::Customized => custom,
            EvictStrategy::Lfu | EvictStrategy::Lru => u64::from(uses),
        }
    }

    /// The strategy of the device's table.
    #[cfg(feature = "gpu")]
    pub(crate) fn device_strategy(self) -> GpuEvictStrategy {
        match self {
            EvictStrategy::Lru => GpuEvictStrategy::Lru,
            // Counts of an epoch rank above all counts of earlier ones: uses fade, as they do in
            // the host tier.
            EvictStrategy::Lfu => GpuEvictStrategy::EpochLfu,
            EvictStrategy::Customized => GpuEvictStrategy::Customized,
        }
    }

    /// Whether rows take a score along to the device.
    #[cfg(feature = "gpu")]
    pub(crate) fn sends_scores(self) -> bool {
        self != EvictStrategy::Lru
    }

    /// The score that a row takes along to the device.
    #[cfg(feature = "gpu")]
    pub(crate) fn device_score(self, uses: u8, custom: u64) -> u64 {
        match self {
            EvictStrategy::Customized => custom,
            EvictStrategy::Lru | EvictStrategy::Lfu => u64::from(uses.max(1)),
        }
    }

    /// The number of uses of a row that the device evicted, from its score there.
    #[cfg(feature = "gpu")]
    pub(crate) fn uses_of_device_score(self, score: u64) -> u16 {
        match self {
            EvictStrategy::Lfu => (score & 0xffff_ffff).min(u64::from(u16::MAX)) as u16,
            EvictStrategy::Lru | EvictStrategy::Customized => 1,
        }
    }
}

forerun_core::names! {
    EvictStrategy, "eviction strategy";
    /// A name that no eviction strategy has.
    UnknownEvictStrategy
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_an_unknown_one_lists_the_known() {
        for strategy in EvictStrategy::ALL {
            assert_eq!(strategy.name().parse(), Ok(strategy));
        }
        let error = "mru".parse::<EvictStrategy>().unwrap_err().to_string();
        assert_eq!(
            error,
            "unknown eviction strategy \"mru\"; available: lru, lfu, customized"
        );
    }

    #[test]
    fn a_hit_never_lowers_a_rank_and_age_never_raises_it() {
        for strategy in EvictStrategy::ALL {
            for now in [0u8, 5, 127, 128, 255] {
                // Only generations up to the maximum age occur.
                let oldest = if strategy == EvictStrategy::Lru {
                    AGE_MAX
                } else {
                    USES_MAX
                };
                for step in 0..=oldest {
                    let mark = if strategy == EvictStrategy::Lru {
                        now.wrapping_sub(step)
                    } else {
                        step
                    };
                    let rank = |mark| strategy.host_rank(mark, now, 7);
                    assert!(
                        rank(strategy.used_mark(mark, now)) >= rank(mark),
                        "{strategy:?} {mark}"
                    );
                    assert!(
                        rank(strategy.aged_mark(mark, now)) <= rank(mark),
                        "{strategy:?} {mark}"
                    );
                    assert!(
                        rank(strategy.coldest_mark(now)) <= rank(mark),
                        "{strategy:?} {mark}"
                    );
                    assert!(
                        rank(strategy.hottest_mark(now)) >= rank(mark),
                        "{strategy:?} {mark}"
                    );
                }
            }
        }
    }

    #[test]
    fn the_oldest_rows_stay_the_oldest_when_generations_wrap_around() {
        let mut mark = 10;
        for now in 11..=u8::MAX {
            mark = EvictStrategy::Lru.aged_mark(mark, now);
        }
        for now in 0..=200 {
            mark = EvictStrategy::Lru.aged_mark(mark, now);
            assert_eq!(
                EvictStrategy::Lru.host_rank(mark, now, 0),
                u64::from(u8::MAX - AGE_MAX)
            );
        }
    }
}
