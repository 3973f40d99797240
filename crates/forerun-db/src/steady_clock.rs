//! The system clock, except that it never goes back.
//!
//! ```text
//!   system      … 100 101 102 │  16  17  18  19 │ 107        set back at 102, and set right at 107
//!   readers     … 100 101 102 │ 102 103 104 105 │ 107        at most the true second
//!   writers     … 100 101 102 │ 103 104 105 106 │ 107        at least the true second
//! ```
//!
//! While the system clock shows less than before, seconds are counted with the monotonic clock from
//! the last second that it showed. They are exact to a second: an entry is dated by the latest time
//! that it may be, and expires by the earliest. So it never lives too short, whatever the system
//! clock shows next.
//!
//! A system clock that is set forward, or runs while the machine sleeps, is followed.

use std::sync::Arc;
use std::time::Instant;

use forerun_core::sync::atomic::{AtomicU64, Ordering};
use forerun_core::sync::{Mutex, MutexGuard, PoisonError};

use crate::io::Io;

/// Seconds since 1970 that never decrease.
#[derive(Debug)]
pub(crate) struct SteadyClock {
    io: Arc<dyn Io>,
    /// The last reading, so that most need no lock: what the system clock showed, in the high half,
    /// and what that meant to readers.
    last: AtomicU64,
    anchor: Mutex<Option<Anchor>>,
}

/// A second, with a moment before and one after the system clock showed it.
#[derive(Clone, Copy, Debug)]
struct Anchor {
    second: u64,
    before: Instant,
    after: Instant,
}

/// The present second.
#[derive(Clone, Copy, Debug)]
struct Reading {
    min: u64,
    max: u64,
}

impl SteadyClock {
    /// The clock of a file system, at the time of the system.
    pub(crate) fn new(io: Arc<dyn Io>) -> SteadyClock {
        SteadyClock {
            io,
            last: AtomicU64::new(0),
            anchor: Mutex::new(None),
        }
    }

    /// For readers: the present second, or an earlier one while the system clock is behind.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        let shown = self.io.unix_time_s();
        // Relaxed: one word holds both, and it orders nothing.
        let last = self.last.load(Ordering::Relaxed);
        if last >> 32 == shown {
            return last & u64::from(u32::MAX);
        }
        self.read().min
    }

    /// For writers: the present second, or a later one while the system clock is behind. It does
    /// not rely on the last reading: the clock may have been set back and have come to the same
    /// second again.
    pub(crate) fn now_at_most(&self) -> u64 {
        self.read().max
    }

    /// Goes on from this date of a write, at least. The date may be a second late.
    pub(crate) fn reach(&self, date: u64) {
        let second = date.saturating_sub(1);
        let mut anchor = self.lock();
        if anchor.is_none_or(|anchor| anchor.second < second) {
            let now = self.io.monotonic();
            *anchor = Some(Anchor {
                second,
                before: now,
                after: now,
            });
            self.last.store(0, Ordering::Relaxed);
        }
    }

    #[cold]
    fn read(&self) -> Reading {
        let mut anchor = self.lock();
        // The thread may be stopped between any two of these.
        let before = self.io.monotonic();
        let shown = self.io.unix_time_s();
        let after = self.io.monotonic();
        let seconds = |from, to: Instant| to.saturating_duration_since(from).as_secs();
        let min = |anchor: Anchor| anchor.second.saturating_add(seconds(anchor.after, before));
        let is_behind = |anchor: &Anchor| shown < min(*anchor);
        let reading = match anchor.filter(is_behind) {
            Some(anchor) => Reading {
                min: min(anchor),
                max: anchor
                    .second
                    .saturating_add(1 + seconds(anchor.before, after)),
            },
            None => {
                *anchor = Some(Anchor {
                    second: shown,
                    before,
                    after,
                });
                Reading {
                    min: shown,
                    max: shown,
                }
            }
        };
        // Otherwise no reading equals the high half, or the halves mix.
        if shown <= u64::from(u32::MAX) && reading.min <= u64::from(u32::MAX) {
            self.last
                .store(shown << 32 | reading.min, Ordering::Relaxed);
        }
        reading
    }

    fn lock(&self) -> MutexGuard<'_, Option<Anchor>> {
        // It is replaced as a whole.
        self.anchor.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::fault::FaultIo;

    #[test]
    fn seconds_go_on_while_the_system_clock_is_behind() {
        let io = FaultIo::new();
        io.set_unix_time_s(Some(100));
        let clock = SteadyClock::new(Arc::new(io.clone()));
        let both = || (clock.now(), clock.now_at_most());
        assert_eq!(both(), (100, 100));
        io.pass_time_s(2);
        assert_eq!(both(), (102, 102));
        io.set_unix_time_s(Some(16));
        assert_eq!(both(), (102, 103));
        io.pass_time_s(3);
        assert_eq!(both(), (105, 106));
        io.set_unix_time_s(Some(107));
        assert_eq!(both(), (107, 107));
        // Nobody has looked while it was behind.
        io.set_unix_time_s(Some(97));
        io.pass_time_s(10);
        assert!(clock.now() >= 107);
        assert_eq!(clock.now_at_most(), 118);
        assert_eq!(clock.now(), 117);
    }

    #[test]
    fn a_clock_goes_on_from_the_last_date_of_a_write() {
        let io = FaultIo::new();
        io.set_unix_time_s(Some(100));
        let open = |date| {
            let clock = SteadyClock::new(Arc::new(io.clone()));
            clock.reach(date);
            clock
        };
        assert_eq!(open(99).now_at_most(), 100);
        let mut date = 1_000;
        for _ in 0..10 {
            let clock = open(date);
            assert_eq!(clock.now(), 999, "openings let no time pass");
            date = clock.now_at_most();
        }
        let clock = open(date);
        io.pass_time_s(5);
        assert_eq!((clock.now(), clock.now_at_most()), (1_004, 1_005));
        io.set_unix_time_s(Some(u64::MAX));
        assert_eq!(clock.now(), u64::MAX);
        io.set_unix_time_s(Some(5));
        assert_eq!((clock.now(), clock.now_at_most()), (u64::MAX, u64::MAX));
    }
}
