//! Scores by the table's eviction strategy: `kernels/table/score.cuh` in Rust.

use super::evict_strategy::GpuEvictStrategy;
use super::params::{SCORE_AS_GIVEN, TableOp};

const LOW_32: u64 = 0xffff_ffff;
/// Times of epoch-LRU scores are in units of 2^20 ns.
const TIME_SHIFT: u32 = 20;
/// How far in the future a time may be, in these units, about 39 hours: another multiprocessor may
/// read its clock later than the one that compares.
const AHEAD: u32 = 1 << 27;

/// Saturates a score to this width.
pub(crate) fn held(score_bytes: u32, score: u64) -> u64 {
    if score_bytes == 4 {
        score.min(LOW_32)
    } else {
        score
    }
}

/// The order in which entries are evicted, the lowest rank first.
///
/// The rank of a score is the score itself, except for [`GpuEvictStrategy::EpochLru`]. That
/// strategy holds 32 bits of a time, which begin again at 0 every 52 days. The rank has the time's
/// distance from now instead:
///
/// ```text
///   time      now + AHEAD ... 2^32 - 1 | 0 ........... now ..... now + AHEAD - 1
///   rank      0, the oldest, 50 days ago ............. now ..... the youngest
/// ```
///
/// A time before that looks like one ahead.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EvictOrder {
    oldest: u32,
}

impl EvictOrder {
    pub(crate) fn of(policy: u32, now_ns: impl FnOnce() -> u64) -> EvictOrder {
        let oldest = match GpuEvictStrategy::of(policy) {
            Some(GpuEvictStrategy::EpochLru) => units(now_ns()).wrapping_add(AHEAD),
            _ => 0,
        };
        EvictOrder { oldest }
    }

    pub(crate) fn rank(self, score: u64) -> u64 {
        (score & !LOW_32) | u64::from((score as u32).wrapping_sub(self.oldest))
    }
}

/// A time as epoch-LRU scores hold it.
fn units(ns: u64) -> u32 {
    (ns >> TIME_SHIFT) as u32
}

/// A score from a file, as this table's clock would have given it to an entry of the same age when
/// the file was saved. `saved_ns` is the other clock at that time; 0 if the file does not have it.
///
/// Without this, scores of a clock that is ahead would exceed those of all new entries.
pub(crate) fn rebased(strategy: GpuEvictStrategy, score: u64, saved_ns: u64, now_ns: u64) -> u64 {
    let saved_ns = if saved_ns == 0 { now_ns } else { saved_ns };
    match strategy {
        GpuEvictStrategy::Lru => now_ns.saturating_sub(saved_ns.saturating_sub(score)),
        GpuEvictStrategy::EpochLru => {
            let age = units(saved_ns).wrapping_sub(score as u32);
            // No score is later than now.
            let age = if age > u32::MAX - AHEAD { 0 } else { age };
            (score & !LOW_32) | u64::from(units(now_ns).wrapping_sub(age))
        }
        _ => score,
    }
}

/// The score of an entry that a key creates (`before` is `None`) or finds. `given` is the batch's
/// score for it.
pub(crate) fn score_of(
    op: &TableOp,
    given: Option<u64>,
    before: Option<u64>,
    time_ns: impl FnOnce() -> u64,
) -> u64 {
    let strategy = match op.actions & SCORE_AS_GIVEN {
        0 => GpuEvictStrategy::of(op.table.policy).unwrap_or(GpuEvictStrategy::Customized),
        _ => GpuEvictStrategy::Customized,
    };
    let epoch = op.epoch << 32;
    let score = match strategy {
        GpuEvictStrategy::Lru => time_ns(),
        GpuEvictStrategy::Lfu => before.unwrap_or(0).saturating_add(given.unwrap_or(1)),
        GpuEvictStrategy::EpochLru => epoch | u64::from(units(time_ns())),
        GpuEvictStrategy::EpochLfu => {
            let low = before.unwrap_or(0) & LOW_32;
            epoch | low.saturating_add(given.unwrap_or(1)).min(LOW_32)
        }
        GpuEvictStrategy::Customized => given.or(before).unwrap_or(0),
    };
    held(op.table.score_bytes, score)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_NS: u64 = 3_600_000_000_000;
    const WRAP_NS: u64 = 1 << 52;

    fn epoch_lru(epoch: u64, ns: u64) -> u64 {
        epoch << 32 | u64::from(units(ns))
    }

    #[test]
    fn epoch_lru_ranks_by_age_across_the_wrap_of_its_clock() {
        let policy = GpuEvictStrategy::EpochLru as u32;
        for now in [WRAP_NS * 397, WRAP_NS * 397 + HOUR_NS, WRAP_NS * 398 - 1] {
            let order = EvictOrder::of(policy, || now);
            // From 50 days ago to an hour ahead, the later the greater.
            let times = (0..=50 * 24).rev().map(|age| now - age * HOUR_NS);
            let times = times.chain([now + HOUR_NS]);
            let ranks: Vec<u64> = times.map(|ns| order.rank(epoch_lru(3, ns))).collect();
            assert!(ranks.is_sorted_by(|a, b| a < b), "at {now}");
            // Any entry of an earlier epoch goes first.
            assert!(order.rank(epoch_lru(2, now + HOUR_NS)) < ranks[0]);
        }
        // Plain scores would be in the wrong order.
        assert!(epoch_lru(3, WRAP_NS * 397) < epoch_lru(3, WRAP_NS * 397 - HOUR_NS));
    }

    #[test]
    fn other_strategies_rank_by_the_score_itself() {
        for strategy in GpuEvictStrategy::ALL {
            let order = EvictOrder::of(strategy as u32, || 12 * WRAP_NS + 5 * HOUR_NS);
            for score in [0, 1, u64::from(u32::MAX), 1 << 32, u64::MAX] {
                let same = order.rank(score) == score;
                assert_eq!(same, strategy != GpuEvictStrategy::EpochLru, "{score}");
            }
        }
    }

    #[test]
    fn scores_of_another_clock_keep_their_ages() {
        let (lru, epoch) = (GpuEvictStrategy::Lru, GpuEvictStrategy::EpochLru);
        // A clock that is an hour ahead, and one that has just begun.
        for (saved, now) in [(9 * HOUR_NS, 8 * HOUR_NS), (2 * HOUR_NS, 500 * HOUR_NS)] {
            assert_eq!(rebased(lru, saved - HOUR_NS, saved, now), now - HOUR_NS);
            assert_eq!(
                rebased(lru, saved + 5, saved, now),
                now,
                "no score is later than now"
            );
            let score = epoch_lru(7, saved - HOUR_NS);
            let moved = rebased(epoch, score, saved, now);
            assert_eq!(moved >> 32, 7);
            let off = units(now - HOUR_NS).wrapping_sub(moved as u32) as i32;
            assert!(off.abs() <= 1, "{off}");
        }
        assert_eq!(rebased(lru, 5, 100, 50), 0, "older than this clock");
        // A file without its clock.
        assert_eq!(rebased(lru, 100, 0, 50), 50);
        assert_eq!(rebased(lru, 40, 0, 50), 40);
        assert_eq!(rebased(epoch, 7 << 32 | 100, 0, 50), 7 << 32);
        assert_eq!(rebased(GpuEvictStrategy::Lfu, 100, 70, 50), 100);
    }
}
