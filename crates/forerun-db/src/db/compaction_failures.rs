//! Which compactions of a keyspace have failed.
//!
//! ```text
//!   a run cannot be read      run 7   next attempt in 2 s     compactions that take it wait
//!                             run 12  next attempt in 0.5 s   others go on
//!   anything else             all     next attempt in 1 s     all wait: the disk may be full
//! ```
//!
//! A damaged page in a deep level must not stop the compaction of level 0, for which writers would
//! have to wait. So a run that cannot be read is retried by itself.

use std::collections::BTreeMap;
use std::time::Instant;

use super::backoff::Failing;
use crate::Error;

/// The failures of compactions that have not succeeded since.
#[derive(Debug, Default)]
pub(super) struct CompactionFailures {
    /// A failure that does not come from one of the runs.
    of_all: Option<Failing>,
    /// The runs that could not be read, by number.
    of_runs: BTreeMap<u64, Failing>,
    /// The run of these that the next compaction of level 0 takes.
    blocks_level0: Option<u64>,
}

impl CompactionFailures {
    /// Records the failure of a compaction that began at `begun`, if it comes from reading one run:
    /// of that run. If the system cannot read two, it is likely to read none.
    pub(super) fn note(
        &mut self,
        run: Option<u64>,
        error: Error,
        begun: Instant,
        now: Instant,
    ) -> Failing {
        let run = run.filter(|number| match error {
            Error::Io { .. } => !self.has_io_error_beside(*number),
            _ => true,
        });
        let before = match run {
            Some(number) => self.of_runs.get(&number),
            None => self.of_all.as_ref(),
        };
        let failing = Failing::again(before, error, begun, now);
        match run {
            Some(number) => drop(self.of_runs.insert(number, failing.clone())),
            None => self.of_all = Some(failing.clone()),
        }
        failing
    }

    /// Whether the system could not read another run.
    fn has_io_error_beside(&self, number: u64) -> bool {
        let mut others = self.of_runs.iter().filter(|(other, _)| **other != number);
        others.any(|(_, failing)| matches!(failing.error, Error::Io { .. }))
    }

    /// Records the success of a compaction of these runs that began at `begun`. After one that
    /// began before the last failure, the next may still fail.
    pub(super) fn note_success(&mut self, runs: impl Iterator<Item = u64>, begun: Instant) {
        self.of_all.take_if(|failing| failing.ends_with(begun));
        runs.for_each(|number| drop(self.of_runs.remove(&number)));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.of_all.is_none() && self.of_runs.is_empty()
    }

    /// The failure that stops all compactions.
    pub(super) fn of_all(&self) -> Option<&Failing> {
        self.of_all.as_ref()
    }

    /// The numbers of the runs that could not be read, ascending.
    pub(super) fn runs(&self) -> Vec<u64> {
        self.of_runs.keys().copied().collect()
    }

    /// Those that are not to be tried yet.
    pub(super) fn runs_waiting(&self, now: Instant) -> Vec<u64> {
        let waiting = self.of_runs.iter().filter(|(_, of)| of.retry_at() > now);
        waiting.map(|(number, _)| *number).collect()
    }

    /// All failures, the one that concerns most first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Failing> {
        let blocks_level0 = self.blocks_level0.and_then(|of| self.of_runs.get(&of));
        let of_runs = self.of_runs.iter();
        let others = of_runs.filter(|(number, _)| Some(**number) != self.blocks_level0);
        let others = others.map(|(_, failing)| failing);
        self.of_all.iter().chain(blocks_level0).chain(others)
    }

    /// Notes which run keeps level 0 from being compacted, if any does.
    pub(super) fn note_level0_blocked(&mut self, by: Option<u64>) {
        self.blocks_level0 = by;
    }

    /// Makes the next attempts due at once.
    pub(super) fn retry_now(&mut self, now: Instant) {
        let failing = self.of_all.iter_mut().chain(self.of_runs.values_mut());
        failing.for_each(|failing| failing.retry_now(now));
    }

    /// Forgets the failures of runs that are gone. Returns whether there were any.
    pub(super) fn forget_gone(&mut self, is_there: impl Fn(u64) -> bool) -> bool {
        let before = self.of_runs.len();
        self.of_runs.retain(|number, _| is_there(*number));
        self.of_runs.len() < before
    }

    /// Forgets what nothing will retry: no compaction is due, and none runs. Returns whether there
    /// was any.
    pub(super) fn forget_idle(&mut self, now: Instant) -> bool {
        let before = self.of_runs.len();
        self.of_runs.retain(|_, failing| failing.retry_at() > now);
        let is_over = |failing: &mut Failing| failing.has_other_succeeded();
        self.of_all.take_if(is_over).is_some() || self.of_runs.len() < before
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;

    #[test]
    fn runs_that_cannot_be_read_wait_each_for_itself() {
        let now = Instant::now();
        let later = now + Duration::from_millis(300);
        let mut failures = CompactionFailures::default();
        failures.note(Some(7), Error::LogOff, now, now);
        failures.note(Some(12), Error::LogOff, later, later);
        assert!(failures.of_all().is_none());
        assert_eq!(failures.runs_waiting(later), [7, 12]);
        let retry_at = now + Duration::from_millis(500);
        assert_eq!(failures.runs_waiting(retry_at), [12]);
        // A failed retry waits longer, and does not delay the other one.
        failures.note(Some(7), Error::LogOff, retry_at, retry_at);
        let after = now + Duration::from_millis(800);
        assert_eq!(failures.runs_waiting(after), [7]);
        failures.note_success([12, 13].into_iter(), later);
        assert_eq!(failures.runs(), [7]);
        failures.retry_now(after);
        assert!(failures.runs_waiting(after).is_empty() && !failures.is_empty());
    }

    #[test]
    fn a_second_run_that_the_system_cannot_read_delays_all() {
        let now = Instant::now();
        let failed = |of| Error::io("read", Path::new(of), std::io::ErrorKind::Other.into());
        let mut failures = CompactionFailures::default();
        failures.note(Some(7), failed("7"), now, now);
        failures.note(Some(7), failed("7"), now, now);
        let corrupt = Error::corrupt_file(Path::new("8"), 0, "x");
        failures.note(Some(8), corrupt, now, now);
        assert!(failures.of_all().is_none() && failures.runs() == [7, 8]);
        failures.note(Some(9), failed("9"), now, now);
        assert!(failures.of_all().is_some() && failures.runs() == [7, 8]);
        assert_eq!(failures.iter().count(), 3);
        failures.note_level0_blocked(Some(8));
        let second = failures.iter().nth(1).unwrap();
        assert!(matches!(second.error, Error::CorruptFile { .. }));
    }

    #[test]
    fn failures_are_forgotten_with_their_run_or_when_nothing_is_left_to_retry() {
        let now = Instant::now();
        let mut failures = CompactionFailures::default();
        failures.note(Some(7), Error::LogOff, now, now);
        failures.note(Some(8), Error::LogOff, now, now);
        assert!(failures.forget_gone(|number| number != 7) && failures.runs() == [8]);
        assert!(!failures.forget_gone(|number| number != 7));
        assert!(!failures.forget_idle(now), "it is still waiting");
        failures.retry_now(now);
        assert!(failures.forget_idle(now) && failures.is_empty());
    }
}
