//! When failed work is retried.
//!
//! ```text
//!   fails ─ 0.5 s ─ fails ─ 1 s ─ fails ─ … ─ 10 s ─ fails ─ 10 s ─  an I/O error, a full disk
//!                                                   … ─ 1 h  ─ fails ─ 1 h  ─  damaged bytes
//! ```
//!
//! A full disk may have space again soon, so the work is retried every few seconds. Damaged bytes
//! seldom become readable again, and a compaction reads and writes a lot before it reaches them.

use std::time::{Duration, Instant};

use crate::Error;

const FIRST_DELAY: Duration = Duration::from_millis(500);
const DELAY_MAX: Duration = Duration::from_secs(10);
const CORRUPTION_DELAY_MAX: Duration = Duration::from_secs(3600);

/// Work that has failed and not succeeded since.
#[derive(Clone, Debug)]
pub(super) struct Failing {
    /// The error of the last attempt.
    pub(super) error: Error,
    /// Consecutive failed attempts.
    attempts: u32,
    retry_at: Instant,
    /// Whether an attempt that began before the failure has succeeded after it.
    has_other_succeeded: bool,
}

impl Failing {
    /// Records the failure of an attempt that began at `begun`. `before` describes the failure
    /// before it, if there was one. Several attempts that were in progress at once, and met the
    /// same fault, are one.
    pub(super) fn again(
        before: Option<&Failing>,
        error: Error,
        begun: Instant,
        now: Instant,
    ) -> Failing {
        if let Some(before) = before.filter(|before| !before.is_retried_by(begun)) {
            return Failing {
                error,
                ..before.clone()
            };
        }
        let attempts = before.map_or(0, |before| before.attempts).saturating_add(1);
        Failing {
            retry_at: now + delay(attempts, &error),
            error,
            attempts,
            has_other_succeeded: false,
        }
    }

    /// Records the success of an attempt that began at `begun`. Returns whether that ends the
    /// failure.
    pub(super) fn ends_with(&mut self, begun: Instant) -> bool {
        let is_retried = self.is_retried_by(begun);
        self.has_other_succeeded |= !is_retried;
        is_retried
    }

    /// Whether the failure is over once there is nothing to retry.
    pub(super) fn has_other_succeeded(&self) -> bool {
        self.has_other_succeeded
    }

    /// When the next attempt is due.
    pub(super) fn retry_at(&self) -> Instant {
        self.retry_at
    }

    /// Whether an attempt that began at this moment is a later one, whose result counts.
    pub(super) fn is_retried_by(&self, begun: Instant) -> bool {
        begun >= self.retry_at
    }

    /// How long until the next attempt.
    pub(super) fn wait_left(&self, now: Instant) -> Duration {
        self.retry_at.saturating_duration_since(now)
    }

    /// Makes the next attempt due at once.
    pub(super) fn retry_now(&mut self, now: Instant) {
        self.retry_at = self.retry_at.min(now);
    }

    /// Whether it has failed since `retry_now` was called at `asked`.
    pub(super) fn has_failed_since(&self, asked: Instant) -> bool {
        self.retry_at > asked
    }

    /// Whether it has failed again when it was retried.
    pub(super) fn is_repeated(&self) -> bool {
        self.attempts > 1
    }
}

fn delay(attempts: u32, error: &Error) -> Duration {
    let longest = match error {
        Error::CorruptFile { .. } | Error::CorruptEntry { .. } => CORRUPTION_DELAY_MAX,
        _ => DELAY_MAX,
    };
    let doublings = attempts.saturating_sub(1).min(20);
    FIRST_DELAY.saturating_mul(1 << doublings).min(longest)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Returns how long work waits after each of `attempts` failures.
    fn delays(error: &Error, attempts: usize) -> Vec<u64> {
        let now = Instant::now();
        let mut failing: Option<Failing> = None;
        let mut fail = || {
            let begun = failing.as_ref().map_or(now, Failing::retry_at);
            let next = Failing::again(failing.as_ref(), error.clone(), begun, begun);
            let delay = next.wait_left(begun);
            failing = Some(next);
            delay.as_millis() as u64
        };
        (0..attempts).map(|_| fail()).collect()
    }

    #[test]
    fn retries_back_off_up_to_a_maximum_delay() {
        let full = Error::io(
            "write",
            Path::new("run"),
            std::io::ErrorKind::StorageFull.into(),
        );
        assert_eq!(
            delays(&full, 7),
            [500, 1000, 2000, 4000, 8000, 10_000, 10_000]
        );
        let damaged = delays(&Error::corrupt_file(Path::new("run"), 0, "x"), 60);
        assert!(damaged.is_sorted());
        assert_eq!((damaged[12], damaged[59]), (2_048_000, 3_600_000));
    }

    #[test]
    fn a_waiter_learns_of_failures_after_its_request() {
        let now = Instant::now();
        let mut failing = Failing::again(None, Error::LogOff, now, now);
        assert!(!failing.is_repeated());
        let asked = now + Duration::from_millis(1);
        failing.retry_now(asked);
        assert_eq!(failing.wait_left(asked), Duration::ZERO);
        assert!(!failing.has_failed_since(asked));
        let failing = Failing::again(Some(&failing), Error::LogOff, asked, asked);
        assert!(failing.has_failed_since(asked) && failing.is_repeated());
    }

    #[test]
    fn attempts_that_meet_one_fault_at_once_are_one() {
        let now = Instant::now();
        let mut failing = Failing::again(None, Error::LogOff, now, now);
        for _ in 0..3 {
            failing = Failing::again(Some(&failing), Error::LogOff, now, now);
            assert!(!failing.is_repeated() && !failing.is_retried_by(now));
            assert_eq!(failing.wait_left(now), FIRST_DELAY);
        }
        let retry_at = failing.retry_at();
        assert!(failing.is_retried_by(retry_at));
        assert!(Failing::again(Some(&failing), Error::LogOff, retry_at, retry_at).is_repeated());
    }

    #[test]
    fn only_a_later_attempt_ends_a_failure_while_there_is_work_to_retry() {
        let now = Instant::now();
        let mut failing = Failing::again(None, Error::LogOff, now, now);
        let retry_at = failing.retry_at();
        assert!(!failing.has_other_succeeded());
        assert!(!failing.ends_with(now) && failing.has_other_succeeded());
        assert!(failing.ends_with(retry_at));
        let again = Failing::again(Some(&failing), Error::LogOff, retry_at, retry_at);
        assert!(!again.has_other_succeeded());
    }
}
