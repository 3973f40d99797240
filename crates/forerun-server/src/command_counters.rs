//! Counts of each command of RESP, for `INFO commandstats`. Each thread has its own, as those of
//! `counters.rs`.
//!
//! ```text
//!   GET GET GET SET     one batch of three, one request     calls: each; time: of some batches and requests
//!   └── timed ──┘       the first calls of a command, then one in 16
//! ```
//!
//! To read the clock twice takes as long as a tenth of a short request, so the time of the others
//! is taken to be the mean of those that are timed.

use std::ops::Sub;
use std::time::{Duration, Instant};

use forerun_core::sync::time;

use crate::counters::Counter;
use crate::resp::command_spec::{COMMANDS_LEN, Command};

/// The first calls of a command are timed, as many as this, and then one in as many.
const TIMED_ONE_IN: u64 = 16;

/// One command's counts.
#[derive(Debug, Default)]
struct CommandCounter {
    calls: Counter,
    failed: Counter,
    rejected: Counter,
    timed_calls: Counter,
    timed_ns: Counter,
}

/// The counts of one thread.
#[derive(Debug)]
pub(crate) struct CommandCounters(Box<[CommandCounter]>);

impl Default for CommandCounters {
    fn default() -> Self {
        Self((0..COMMANDS_LEN).map(|_| Default::default()).collect())
    }
}

impl CommandCounters {
    fn of(&self, command: Command) -> &CommandCounter {
        &self.0[command as usize]
    }

    /// Begins a call, or a batch of calls. `None`: this one is not timed.
    #[inline]
    pub(crate) fn begin(&self, command: Command) -> Option<Instant> {
        let calls = self.of(command).calls.get();
        let is_timed = calls < TIMED_ONE_IN || calls.is_multiple_of(TIMED_ONE_IN);
        is_timed.then(time::now)
    }

    /// Counts calls that were executed.
    #[inline]
    pub(crate) fn add(&self, command: Command, calls: u64) {
        self.of(command).calls.add(calls);
    }

    /// Notes what some calls have taken.
    pub(crate) fn add_time(&self, command: Command, calls: u64, taken: Duration) {
        let counter = self.of(command);
        counter.timed_calls.add(calls);
        counter.timed_ns.add(taken.as_nanos() as u64);
    }

    /// Counts a call whose reply is an error.
    pub(crate) fn fail(&self, command: Command) {
        self.of(command).failed.add(1);
    }

    /// How many calls have had errors as replies.
    pub(crate) fn failed(&self, command: Command) -> u64 {
        self.of(command).failed.get()
    }

    /// Counts a call that was not executed.
    pub(crate) fn reject(&self, command: Command) {
        self.of(command).rejected.add(1);
    }
}

/// One command's counts, of all threads together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CommandStats {
    pub(crate) calls: u64,
    pub(crate) failed: u64,
    pub(crate) rejected: u64,
    timed_calls: u64,
    timed_ns: u64,
}

impl CommandStats {
    /// Adds a thread's counts of all commands.
    pub(crate) fn add(all: &mut [CommandStats; COMMANDS_LEN], counters: &CommandCounters) {
        for (sum, counter) in all.iter_mut().zip(&counters.0) {
            sum.calls = sum.calls.wrapping_add(counter.calls.get());
            sum.failed = sum.failed.wrapping_add(counter.failed.get());
            sum.rejected = sum.rejected.wrapping_add(counter.rejected.get());
            sum.timed_calls = sum.timed_calls.wrapping_add(counter.timed_calls.get());
            sum.timed_ns = sum.timed_ns.wrapping_add(counter.timed_ns.get());
        }
    }

    /// The microseconds of a call.
    pub(crate) fn us_per_call(&self) -> f64 {
        self.timed_ns as f64 / 1000.0 / self.timed_calls.max(1) as f64
    }
}

impl Sub for CommandStats {
    type Output = CommandStats;

    fn sub(self, before: CommandStats) -> CommandStats {
        CommandStats {
            calls: self.calls.wrapping_sub(before.calls),
            failed: self.failed.wrapping_sub(before.failed),
            rejected: self.rejected.wrapping_sub(before.rejected),
            timed_calls: self.timed_calls.wrapping_sub(before.timed_calls),
            timed_ns: self.timed_ns.wrapping_sub(before.timed_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_calls_are_timed_and_stand_for_all() {
        let counters = CommandCounters::default();
        let mut timed = 0;
        for _ in 0..1_600 {
            if counters.begin(Command::Get).is_some() {
                timed += 1;
                counters.add_time(Command::Get, 1, Duration::from_micros(3));
            }
            counters.add(Command::Get, 1);
        }
        // The first 16, and each 16th behind them.
        assert_eq!(timed, 16 + 99);
        counters.reject(Command::Set);
        counters.fail(Command::Set);
        let mut all = [CommandStats::default(); COMMANDS_LEN];
        CommandStats::add(&mut all, &counters);
        CommandStats::add(&mut all, &counters);
        let [get, set] = [Command::Get, Command::Set].map(|command| all[command as usize]);
        assert_eq!((get.calls, get.us_per_call()), (3_200, 3.0));
        assert_eq!((set.calls, set.rejected, set.failed), (0, 2, 2));
        assert_eq!((get - get).us_per_call(), 0.0);
    }
}
