//! Counts of each command of RESP, for `INFO commandstats`. Each thread has its own, as those of
//! `counters.rs`.
//!
//! ```text
//!   GET GET GET SET     one batch of three, one request     calls: each; time: of some batches and requests
//!   └── timed ──┘       the first calls of a command, then one in 16
//! ```
//!
//! To read the clock twice takes as long as a tenth of a short request, so a call that is timed
//! stands for those before it that were not. The sum of the times therefore never falls.

use std::ops::Sub;
use std::time::{Duration, Instant};

use forerun_core::sync::time;

use crate::counters::Counter;
use crate::error_counters::ErrorCounters;
use crate::resp::command_spec::{COMMANDS_LEN, Command};

/// The first calls of a command are timed, as many as this, and then one in as many.
const TIMED_ONE_IN: u64 = 16;

/// One command's counts.
#[derive(Debug, Default)]
struct CommandCounter {
    calls: Counter,
    failed: Counter,
    rejected: Counter,
    /// The number of calls from which on the next one is timed. A batch adds many calls at once, so
    /// no exact number may be waited for.
    timed_from: Counter,
    /// The calls up to the last one that was timed, and the time of all these.
    covered_calls: Counter,
    covered_ns: Counter,
}

/// The counts of one thread.
#[derive(Debug)]
pub(crate) struct CommandCounters {
    commands: Box<[CommandCounter]>,
    /// The errors among the replies of all commands.
    pub(crate) errors: ErrorCounters,
}

impl Default for CommandCounters {
    fn default() -> Self {
        Self {
            commands: (0..COMMANDS_LEN).map(|_| Default::default()).collect(),
            errors: ErrorCounters::default(),
        }
    }
}

impl CommandCounters {
    fn of(&self, command: Command) -> &CommandCounter {
        &self.commands[command as usize]
    }

    /// Begins a call, or a batch of calls. `None`: this one is not timed.
    #[inline]
    pub(crate) fn begin(&self, command: Command) -> Option<Instant> {
        let counter = self.of(command);
        let (calls, timed_from) = (counter.calls.get(), counter.timed_from.get());
        if calls < timed_from {
            return None;
        }
        let next = if calls < TIMED_ONE_IN {
            1
        } else {
            TIMED_ONE_IN
        };
        counter.timed_from.add(calls + next - timed_from);
        Some(time::now())
    }

    /// Counts calls that were executed.
    #[inline]
    pub(crate) fn add(&self, command: Command, calls: u64) {
        self.of(command).calls.add(calls);
    }

    /// Notes what the last calls have taken, which are counted already. Those since the last time
    /// that was noted are taken to be as long.
    pub(crate) fn add_time(&self, command: Command, calls: u64, taken: Duration) {
        let counter = self.of(command);
        let new_calls = counter.calls.get() - counter.covered_calls.get();
        let ns = taken.as_nanos() * u128::from(new_calls) / u128::from(calls.max(1));
        counter.covered_calls.add(new_calls);
        counter.covered_ns.add(ns as u64);
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
    covered_calls: u64,
    covered_ns: u64,
}

impl CommandStats {
    /// Adds a thread's counts of all commands.
    pub(crate) fn add(all: &mut [CommandStats; COMMANDS_LEN], counters: &CommandCounters) {
        for (sum, counter) in all.iter_mut().zip(&counters.commands) {
            sum.calls = sum.calls.wrapping_add(counter.calls.get());
            sum.failed = sum.failed.wrapping_add(counter.failed.get());
            sum.rejected = sum.rejected.wrapping_add(counter.rejected.get());
            sum.covered_calls = sum.covered_calls.wrapping_add(counter.covered_calls.get());
            sum.covered_ns = sum.covered_ns.wrapping_add(counter.covered_ns.get());
        }
    }

    /// The microseconds of all calls, up to the last one that was timed.
    pub(crate) fn us(&self) -> u64 {
        self.covered_ns / 1000
    }

    /// The microseconds of a call.
    pub(crate) fn us_per_call(&self) -> f64 {
        self.covered_ns as f64 / 1000.0 / self.covered_calls.max(1) as f64
    }
}

impl Sub for CommandStats {
    type Output = CommandStats;

    fn sub(self, before: CommandStats) -> CommandStats {
        CommandStats {
            calls: self.calls.wrapping_sub(before.calls),
            failed: self.failed.wrapping_sub(before.failed),
            rejected: self.rejected.wrapping_sub(before.rejected),
            covered_calls: self.covered_calls.wrapping_sub(before.covered_calls),
            covered_ns: self.covered_ns.wrapping_sub(before.covered_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts a batch of calls that takes so long. Returns whether it was timed.
    fn call(counters: &CommandCounters, calls: u64, us: u64) -> bool {
        let began = counters.begin(Command::Get);
        counters.add(Command::Get, calls);
        if began.is_some() {
            counters.add_time(Command::Get, calls, Duration::from_micros(us));
        }
        began.is_some()
    }

    #[test]
    fn batches_of_any_length_are_timed_again_and_again() {
        for calls in 1..40 {
            let counters = CommandCounters::default();
            call(&counters, 1, 1);
            let timed = (0..320).filter(|_| call(&counters, calls, 1)).count();
            assert!(timed >= 20, "{timed} of 320 batches of {calls}");
        }
    }

    #[test]
    fn the_time_of_all_calls_never_falls() {
        let counters = CommandCounters::default();
        let mut before = 0;
        // The first calls are slow, as they often are.
        for us in std::iter::repeat_n(1_000, 16).chain(std::iter::repeat_n(1, 200)) {
            call(&counters, 1, us);
            let mut all = [CommandStats::default(); COMMANDS_LEN];
            CommandStats::add(&mut all, &counters);
            let now = all[Command::Get as usize].us();
            assert!(now >= before, "{before} became {now}");
            before = now;
        }
        assert_eq!(before, 16_000 + 193);
    }

    #[test]
    fn some_calls_are_timed_and_stand_for_all() {
        let counters = CommandCounters::default();
        let timed = (0..1_600).filter(|_| call(&counters, 1, 3)).count();
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
