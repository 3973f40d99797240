//! How scores follow from uses.

/// How an entry's score is derived from its uses. The lowest score is evicted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Policy {
    /// The time of the last write or touch, in nanoseconds of the device's clock.
    Lru = 0,
    /// The number of writes and touches; if scores are given, their sum.
    Lfu = 1,
    /// The operation's epoch in the upper half, the time in units of 2^20 ns in the lower half.
    EpochLru = 2,
    /// The operation's epoch in the upper half, the number of uses in the lower half.
    EpochLfu = 3,
    /// The score that the caller gives.
    Custom = 4,
}

impl Policy {
    /// All policies.
    pub const ALL: [Policy; 5] = [
        Policy::Lru,
        Policy::Lfu,
        Policy::EpochLru,
        Policy::EpochLfu,
        Policy::Custom,
    ];

    /// The policy with this number.
    pub(crate) fn of(number: u32) -> Option<Policy> {
        Policy::ALL.into_iter().find(|p| *p as u32 == number)
    }
}
