//! Eviction strategies: how the score of an entry is computed.

/// How the score of an entry is computed. The lowest score is evicted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum GpuEvictStrategy {
    /// The time of the last write or touch, in nanoseconds of the device's clock.
    Lru = 0,
    /// The number of writes and touches; if scores are given, their sum.
    Lfu = 1,
    /// The operation's epoch in the upper half, the time in units of 2^20 ns in the lower half. The
    /// time begins again at 0 every 52 days; entries of one epoch are evicted by their age even
    /// then, up to an age of 50 days. One that was not used for longer looks young among them.
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

    /// Whether scores contain times of the table's clock.
    pub(crate) fn is_by_time(self) -> bool {
        matches!(self, GpuEvictStrategy::Lru | GpuEvictStrategy::EpochLru)
    }

    /// The strategy with this number.
    pub(crate) fn of(number: u32) -> Option<GpuEvictStrategy> {
        GpuEvictStrategy::ALL
            .into_iter()
            .find(|p| *p as u32 == number)
    }
}
