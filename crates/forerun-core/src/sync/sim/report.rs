//! What a simulation is told, and what it tells.

use std::fmt;
use std::panic::Location;
use std::time::Duration;

use super::Policy;

/// What a simulation is run with. Equal ones give equal simulations.
#[derive(Debug, Clone)]
pub struct Config {
    /// What all choices come from.
    pub seed: u64,
    /// The simulation is given up after so many steps.
    pub steps_max: u64,
    /// How the scheduler chooses who runs.
    pub policy: Policy,
    /// The simulated time that each step takes.
    pub step_ns: u64,
    /// The simulation is given up when a thread comes to no scheduling point for so long, in real
    /// time.
    pub silence_max: Duration,
    /// So many of the last events are kept in the outcome.
    pub events_max: usize,
}

impl Config {
    /// The usual configuration for `seed`.
    pub fn new(seed: u64) -> Config {
        Config {
            seed,
            steps_max: 1_000_000,
            policy: Policy::Seeded,
            step_ns: 500,
            silence_max: Duration::from_secs(60),
            events_max: 0,
        }
    }
}

/// How a simulation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// All threads have finished.
    Finished,
    /// These threads wait, and nothing will ever wake them.
    Deadlock(Vec<Blocked>),
    /// The limit of steps was reached, while these threads had not finished.
    StepLimit(Vec<Blocked>),
    /// The body panicked.
    Panicked(String),
    /// A thread came to no scheduling point for [`Config::silence_max`] of real time: these had not
    /// finished.
    Silent(Vec<Blocked>),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, threads) = match self {
            End::Finished => return f.write_str("all threads finished"),
            End::Panicked(message) => return write!(f, "panicked: {message}"),
            End::Deadlock(threads) => ("deadlock", threads),
            End::StepLimit(threads) => ("the limit of steps was reached", threads),
            End::Silent(threads) => ("a thread came to no scheduling point for long", threads),
        };
        f.write_str(what)?;
        for thread in threads {
            write!(f, "\n  {thread}")?;
        }
        Ok(())
    }
}

/// A thread that had not finished when the simulation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocked {
    /// Its name.
    pub thread: String,
    /// What it waits for.
    pub waits_for: WaitsFor,
    /// Where in the source it waits, or last was.
    pub at: &'static Location<'static>,
    /// How long it has waited, in simulated time.
    pub waited: Duration,
    /// Who holds the lock that it waits for, and where they took it.
    pub held_by: Vec<(String, &'static Location<'static>)>,
    /// The thread whose end it waits for.
    pub joins: Option<String>,
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.waits_for == WaitsFor::Nothing {
            return write!(f, "{}: can run, last at {}", self.thread, self.at);
        }
        write!(f, "{}: waits for {}", self.thread, self.waits_for)?;
        if let Some(thread) = &self.joins {
            write!(f, " {thread}")?;
        }
        write!(f, " since {:?} at {}", self.waited, self.at)?;
        for (thread, at) in &self.held_by {
            write!(f, ", held by {thread} since {at}")?;
        }
        Ok(())
    }
}

/// What a thread may wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitsFor {
    /// Nothing: it can run.
    Nothing,
    /// A mutex.
    Lock,
    /// A reader-writer lock, to read.
    Read,
    /// A reader-writer lock, to write.
    Write,
    /// A notification of a condition variable.
    Notification,
    /// Another thread that initialises a cell.
    Initialisation,
    /// A message of a channel.
    Message,
    /// Room in a channel.
    Room,
    /// The end of a thread.
    Join,
    /// The end of a sleep.
    Sleep,
    /// To be unparked.
    Unpark,
}

impl fmt::Display for WaitsFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WaitsFor::Nothing => "nothing",
            WaitsFor::Lock => "a mutex",
            WaitsFor::Read => "a lock to read",
            WaitsFor::Write => "a lock to write",
            WaitsFor::Notification => "a notification",
            WaitsFor::Initialisation => "the initialisation of a cell",
            WaitsFor::Message => "a message",
            WaitsFor::Room => "room in a channel",
            WaitsFor::Join => "the end of",
            WaitsFor::Sleep => "the end of a sleep",
            WaitsFor::Unpark => "to be unparked",
        })
    }
}

/// What a thread does at a scheduling point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "each says what it is")]
pub enum Operation {
    Point,
    Atomic,
    Lock,
    TryLock,
    Unlock,
    Read,
    Write,
    Wait,
    Notify,
    Initialise,
    Send,
    Receive,
    Spawn,
    Join,
    Sleep,
    Yield,
    Park,
    Unpark,
    Clock,
    Exit,
}

/// One scheduling point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Its number, from 1.
    pub step: u64,
    /// The index of the thread: 0 is the body's, and the others count in the order of their
    /// creation.
    pub thread: usize,
    /// What the thread does there.
    pub operation: Operation,
    /// Where.
    pub at: &'static Location<'static>,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Event { step, thread, .. } = self;
        write!(f, "{step:>8} {thread:>3} {:?} {}", self.operation, self.at)
    }
}

/// A thread that panicked and that nobody joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Panicked {
    /// Its name.
    pub thread: String,
    /// What the panic said, and where it was.
    pub message: String,
}

/// What came of a simulation.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// How it ended.
    pub end: End,
    /// The threads that panicked and that nobody joined; the body's panic is [`End::Panicked`].
    pub panics: Vec<Panicked>,
    /// The scheduling points.
    pub steps: u64,
    /// How often another thread went on.
    pub switches: u64,
    /// The threads that there were.
    pub threads: u64,
    /// The simulated time that passed.
    pub elapsed: Duration,
    /// A hash of the schedule: who did what, in which order. Equal configurations give equal ones.
    pub trace: u64,
    /// The last [`Config::events_max`] events.
    pub events: Vec<Event>,
}
