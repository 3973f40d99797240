//! Scores by the table's eviction strategy: `kernels/table/score.cuh` in Rust.

use super::evict_strategy::GpuEvictStrategy;
use super::params::{SCORE_AS_GIVEN, TableOp};

const LOW_32: u64 = 0xffff_ffff;

/// Saturates a score to this width.
pub(crate) fn held(score_bytes: u32, score: u64) -> u64 {
    if score_bytes == 4 {
        score.min(LOW_32)
    } else {
        score
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
        GpuEvictStrategy::EpochLru => epoch | ((time_ns() >> 20) & LOW_32),
        GpuEvictStrategy::EpochLfu => {
            let low = before.unwrap_or(0) & LOW_32;
            epoch | low.saturating_add(given.unwrap_or(1)).min(LOW_32)
        }
        GpuEvictStrategy::Customized => given.or(before).unwrap_or(0),
    };
    held(op.table.score_bytes, score)
}
