//! When items expire: as callers say it, and as items store it.
//!
//! ```text
//!   caller          second   ms         expires
//!   Never           0        0          never
//!   At(s), In(…)    s        0          at the beginning of second s, as the clock's second has it
//!   AtMs(t)         s        1..=1000   at millisecond t = 1000 s + ms, by the precise clock
//! ```
//!
//! A whole second of [`Expiry::AtMs`] is millisecond 1000 of the second before, so that 0 tells the
//! items that only look at the clock's second.

use std::time::Duration;

/// When an item expires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Expiry {
    /// Never: the item stays until it is deleted or evicted.
    #[default]
    Never,
    /// At this second of the cache's clock ([`Cache::now`](crate::Cache::now)). If that second has
    /// already come, the item expires at once.
    At(u32),
    /// At this millisecond of the cache's clock ([`Cache::now_ms`](crate::Cache::now_ms)), and
    /// never earlier. If it has already come, the item expires at once. Times beyond 2^32 seconds
    /// are that time.
    AtMs(u64),
    /// After this time from now, rounded up to seconds of the cache's clock. The first of them has
    /// begun already, so an item may expire up to a second earlier. Zero expires at once.
    In(Duration),
}

impl Expiry {
    /// The second of the clock by which an item that is stored in second `now` has expired, rounded
    /// up; `None` means never.
    ///
    /// ```
    /// use forerun_cache::Expiry;
    /// use std::time::Duration;
    ///
    /// assert_eq!(Expiry::In(Duration::from_millis(1500)).second(10), Some(12));
    /// assert_eq!(Expiry::AtMs(12_001).second(10), Some(13));
    /// assert_eq!(Expiry::Never.second(10), None);
    /// ```
    pub fn second(self, now: u32) -> Option<u32> {
        match self {
            Expiry::Never => None,
            Expiry::At(second) => Some(second),
            Expiry::AtMs(ms) => Some(clamped(ms.div_ceil(1000))),
            Expiry::In(time) => {
                let has_rest = time.subsec_nanos() > 0;
                let seconds = time.as_secs().saturating_add(u64::from(has_rest));
                Some(now.saturating_add(clamped(seconds)))
            }
        }
    }

    /// The millisecond of the clock at which an item that is stored in second `now` expires; `None`
    /// means never.
    ///
    /// ```
    /// use forerun_cache::Expiry;
    ///
    /// assert_eq!(Expiry::AtMs(12_001).ms(10), Some(12_001));
    /// assert_eq!(Expiry::At(12).ms(10), Some(12_000));
    /// ```
    pub fn ms(self, now: u32) -> Option<u64> {
        match self {
            Expiry::AtMs(ms) => Some(ms),
            _ => self.second(now).map(|second| 1000 * u64::from(second)),
        }
    }
}

fn clamped(seconds: u64) -> u32 {
    u32::try_from(seconds).unwrap_or(u32::MAX)
}

/// When an item expires, in the form that items store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deadline {
    /// 0 means never.
    pub(crate) second: u32,
    /// 0 means the beginning of the second, by a clock that counts seconds.
    pub(crate) ms: u16,
}

impl Deadline {
    pub(crate) const NEVER: Deadline = Deadline { second: 0, ms: 0 };

    /// The deadline of an item that is stored in second `now`.
    #[inline]
    pub(crate) fn of(expiry: Expiry, now: u32) -> Deadline {
        match expiry {
            // The clock begins at 1000 ms, so second 1 is always past.
            Expiry::AtMs(..=1000) => Deadline::at_second(1),
            Expiry::AtMs(ms) => {
                let before = (ms - 1).min(1000 * (u64::from(u32::MAX) + 1) - 1);
                Deadline {
                    second: (before / 1000) as u32,
                    ms: (before % 1000) as u16 + 1,
                }
            }
            Expiry::Never => Deadline::NEVER,
            Expiry::At(second) => Deadline::at_second(second),
            Expiry::In(_) => Deadline::at_second(expiry.second(now).unwrap_or(u32::MAX)),
        }
    }

    fn at_second(second: u32) -> Deadline {
        Deadline {
            second: second.max(1),
            ms: 0,
        }
    }

    /// A second whose beginning the item does not survive; 0 means never.
    pub(crate) fn last_second(self) -> u32 {
        self.second.saturating_add(u32::from(self.ms > 0))
    }

    /// The millisecond at which an item with a part of a second expires.
    pub(crate) fn in_ms(self) -> u64 {
        1000 * u64::from(self.second) + u64::from(self.ms)
    }
}

impl From<Deadline> for Expiry {
    fn from(deadline: Deadline) -> Expiry {
        match deadline {
            Deadline { second: 0, .. } => Expiry::Never,
            Deadline { second, ms: 0 } => Expiry::At(second),
            _ => Expiry::AtMs(deadline.in_ms()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_keep_every_millisecond_up_to_the_end_of_the_clock() {
        let end_ms = 1000 << 32;
        for ms in [1001, 1999, 2000, 2001, 86_400_000, end_ms - 1, end_ms] {
            let deadline = Deadline::of(Expiry::AtMs(ms), 7);
            assert!((1..=1000).contains(&deadline.ms), "{deadline:?}");
            assert_eq!(Expiry::from(deadline), Expiry::AtMs(ms));
            assert!(1000 * (u64::from(deadline.last_second()) + 1) >= ms);
        }
        for later in [end_ms + 1, u64::MAX] {
            let deadline = Deadline::of(Expiry::AtMs(later), 7);
            assert_eq!(Expiry::from(deadline), Expiry::AtMs(end_ms));
        }
    }

    #[test]
    fn what_is_past_is_not_never() {
        for past in [Expiry::AtMs(0), Expiry::AtMs(1000), Expiry::At(0)] {
            assert_eq!(Deadline::of(past, 7), Deadline { second: 1, ms: 0 });
        }
        let zero = Expiry::In(Duration::ZERO);
        assert_eq!(Deadline::of(zero, 7), Deadline { second: 7, ms: 0 });
        assert_eq!(Deadline::of(Expiry::Never, 7), Deadline::NEVER);
    }
}
