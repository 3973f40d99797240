//! A limit on lines of the log that clients can cause as often as they like.

use forerun_core::sync::{Mutex, PoisonError};

/// Lines of one kind that are logged in each interval.
const LINES_MAX: u64 = 10;
/// The interval.
const INTERVAL_S: u64 = 60;

/// Limits the lines of one kind.
#[derive(Debug, Default)]
pub(crate) struct LogLimit(Mutex<Interval>);

/// The lines of an interval.
#[derive(Debug, Default)]
struct Interval {
    began_s: u64,
    lines: u64,
}

impl LogLimit {
    /// Whether to log a line at `now_s`, in seconds on any clock. The first line of an interval
    /// also gets the number of lines that were left out before it, if there are any.
    pub(crate) fn admit(&self, now_s: u64) -> Option<Option<u64>> {
        // A panic under this lock leaves nothing half done.
        let mut interval = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut left_out = 0;
        if now_s.saturating_sub(interval.began_s) >= INTERVAL_S {
            left_out = interval.lines.saturating_sub(LINES_MAX);
            *interval = Interval {
                began_s: now_s,
                lines: 0,
            };
        }
        interval.lines += 1;
        (interval.lines <= LINES_MAX).then(|| (left_out > 0).then_some(left_out))
    }
}

/// Logs a line at a level (`info`, `warn`, `error`) within a [`LogLimit`]. What exceeds the limit
/// is logged at the level of `-v`.
macro_rules! log_within {
    ($level:ident, $limit:expr, $now_s:expr, $($line:tt)+) => {
        match $limit.admit($now_s) {
            Some(left_out) => tracing::$level!(left_out, $($line)+),
            None => tracing::debug!($($line)+),
        }
    };
}
pub(crate) use log_within;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_has_ten_lines_and_the_next_one_tells_how_many_were_left_out() {
        let limit = LogLimit::default();
        let admitted = |now_s| limit.admit(now_s);
        for _ in 0..LINES_MAX {
            assert_eq!(admitted(7), Some(None));
        }
        for _ in 0..4990 {
            assert_eq!(admitted(59), None);
        }
        assert_eq!(admitted(60), Some(Some(4990)));
        assert_eq!(admitted(60), Some(None));
        assert_eq!(admitted(600), Some(None));
    }
}
