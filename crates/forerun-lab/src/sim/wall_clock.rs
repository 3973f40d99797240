//! The wall clock of the simulation, in seconds since 1970. It may be set back.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The time when a simulation begins.
const START_S: u64 = 1_700_000_000;

/// An interval from one moment to another, counted from the start of the simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    pub start: Duration,
    pub end: Duration,
}

impl Span {
    /// The span from the beginning of this one to the end of `later`.
    pub fn until(self, later: Span) -> Span {
        Span {
            start: self.start,
            end: later.end,
        }
    }

    /// The span from the beginning of the simulation to the end of this one.
    pub fn and_before(self) -> Span {
        Span {
            start: Duration::ZERO,
            end: self.end,
        }
    }
}

/// The clock. It keeps running when the process crashes or the power is lost.
#[derive(Debug, Default)]
pub struct WallClock(Mutex<Vec<Setting>>);

/// From this moment on, the clock is slow by this many seconds.
#[derive(Clone, Copy, Debug)]
struct Setting {
    from: Duration,
    late_s: u64,
}

impl WallClock {
    /// Sets the clock back.
    pub fn set_back(&self, at: Duration, seconds: u64) {
        let mut settings = self.lock();
        let late_s = settings.last().map_or(0, |last| last.late_s) + seconds;
        settings.push(Setting { from: at, late_s });
    }

    /// Whether it was ever set back.
    pub fn was_set_back(&self) -> bool {
        !self.lock().is_empty()
    }

    /// Whether it was set back at that time or later.
    pub fn was_set_back_since(&self, at: Duration) -> bool {
        self.lock().last().is_some_and(|last| last.from >= at)
    }

    /// The time that the clock shows at a moment.
    pub fn at(&self, moment: Duration) -> u64 {
        let settings = self.lock();
        let late_s = settings.last().map_or(0, |last| last.late_s);
        (START_S + moment.as_secs()).saturating_sub(late_s)
    }

    /// The latest date that a store may give to what it writes at a moment, if the clock was set
    /// back before.
    pub fn latest_date(moment: Duration) -> u64 {
        START_S + moment.as_secs() + 1
    }

    /// The lowest and the highest time that it showed in a span, both ends included.
    pub fn extremes(&self, span: Span) -> (u64, u64) {
        let settings = self.lock();
        let first = Setting {
            from: Duration::ZERO,
            late_s: 0,
        };
        let starts = [first].into_iter().chain(settings.iter().copied());
        let ends = settings.iter().map(|setting| setting.from);
        let ends = ends.chain([Duration::MAX]);
        let mut extremes = (u64::MAX, 0);
        for (setting, end) in starts.zip(ends) {
            let (from, to) = (setting.from.max(span.start), end.min(span.end));
            if from <= to {
                let at =
                    |moment: Duration| (START_S + moment.as_secs()).saturating_sub(setting.late_s);
                extremes = (extremes.0.min(at(from)), extremes.1.max(at(to)));
            }
        }
        extremes
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Setting>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extremes_cover_every_setting_of_the_clock_in_a_span() {
        let clock = WallClock::default();
        let seconds = Duration::from_secs;
        let span = |start, ended| Span {
            start: seconds(start),
            end: seconds(ended),
        };
        clock.set_back(seconds(10), 6);
        clock.set_back(seconds(20), 100);
        for (of, lowest, highest) in [
            (span(2, 5), 2, 5),
            (span(2, 10), 2, 10),
            (span(11, 13), 5, 7),
            (span(8, 12), 4, 10),
            (span(15, 20), 0, 14),
        ] {
            let (low, high) = clock.extremes(of);
            let low = (low.max(START_S) - START_S, high - START_S);
            assert_eq!(low, (lowest, highest), "{of:?}");
        }
        assert_eq!(clock.at(seconds(20)), START_S + 20 - 106);
    }
}
