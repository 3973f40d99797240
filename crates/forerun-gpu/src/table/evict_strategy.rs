//! Eviction strategies: how the score of an entry is computed.

/// How the score of an entry is computed. The lowest score is evicted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum GpuEvictStrategy {
    /// The time of the last write or touch, in nanoseconds of the device's clock.
    Lru = 0,
    /// The number of writes and touches; if scores are given, their sum.
    Lfu = 1,
    /// The operation's epoch in the upper half, the time in units of 2^20 ns in the lower half.
    EpochLru = 2,
    /// The operation's epoch in the upper half, the number of uses in the lower half.
    EpochLfu = 3,
    /// The score that the caller gives.
    Customized = 4,
}

impl GpuEvictStrategy {
    /// All strategies.
    pub const ALL: [GpuEvictStrategy; 5] = [
        GpuEvictStrategy::Lru,
        GpuEvictStrategy::Lfu,
        GpuEvictStrategy::EpochLru,
        GpuEvictStrategy::EpochLfu,
        GpuEvictStrategy::Customized,
    ];

    /// The strategy with this number.
    pub(crate) fn of(number: u32) -> Option<GpuEvictStrategy> {
        GpuEvictStrategy::ALL
            .into_iter()
            .find(|p| *p as u32 == number)
    }
}
