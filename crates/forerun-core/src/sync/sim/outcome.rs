//! The outcome of a simulation.

use std::fmt;
use std::panic::Location;
use std::time::Duration;

/// How a simulation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// All threads finished.
    Finished,
    /// These threads wait, and nothing will ever wake them.
    Deadlock(Vec<Blocked>),
    /// The step limit was reached before these threads finished.
    StepLimit(Vec<Blocked>),
    /// The body panicked.
    Panicked(String),
    /// A thread reached no scheduling point for [`silence_max`](super::Config::silence_max) of real
    /// time. These threads had not finished.
    Silent(Vec<Blocked>),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, threads) = match self {
            End::Finished => return f.write_str("all threads finished"),
            End::Panicked(message) => return write!(f, "panicked: {message}"),
            End::Deadlock(threads) => ("deadlock", threads),
            End::StepLimit(threads) => ("the step limit was reached", threads),
            End::Silent(threads) => ("a thread reached no scheduling point for too long", threads),
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
    /// The reason why it waits.
    pub waits_for: WaitsFor,
    /// The source location where it waits, or where it was last.
    pub at: &'static Location<'static>,
    /// How long it has waited, in simulated time.
    pub waited: Duration,
    /// The threads that hold the lock, and the locations where they took it.
    pub held_by: Vec<(String, &'static Location<'static>)>,
    /// The thread that it joins.
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

/// The reasons to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitsFor {
    /// Nothing: it can run.
    Nothing,
    /// A mutex.
    Lock,
    /// A reader-writer lock, for reading.
    Read,
    /// A reader-writer lock, for writing.
    Write,
    /// A notification of a condition variable.
    Notification,
    /// Another thread's initialisation of a cell.
    Initialisation,
    /// A message in a channel.
    Message,
    /// Space in a channel.
    Capacity,
    /// The end of a thread.
    Join,
    /// The end of a sleep.
    Sleep,
    /// A call of `unpark`.
    Unpark,
}

impl fmt::Display for WaitsFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WaitsFor::Nothing => "nothing",
            WaitsFor::Lock => "a mutex",
            WaitsFor::Read => "a read lock",
            WaitsFor::Write => "a write lock",
            WaitsFor::Notification => "a notification",
            WaitsFor::Initialisation => "the initialisation of a cell",
            WaitsFor::Message => "a message",
            WaitsFor::Capacity => "space in a channel",
            WaitsFor::Join => "the end of",
            WaitsFor::Sleep => "the end of a sleep",
            WaitsFor::Unpark => "to be unparked",
        })
    }
}

/// The operation of a thread at a scheduling point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it all")]
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
    /// The number of the point, from 1.
    pub step: u64,
    /// The index of the thread. 0 is the main thread; the others are numbered in the order of their
    /// creation.
    pub thread: usize,
    /// The operation.
    pub operation: Operation,
    /// The source location.
    pub at: &'static Location<'static>,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Event { step, thread, .. } = self;
        write!(f, "{step:>8} {thread:>3} {:?} {}", self.operation, self.at)
    }
}

/// A panic of a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Panicked {
    /// The name of the thread.
    pub thread: String,
    /// The panic's message and location.
    pub message: String,
}

/// The outcome of a simulation.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// How it ended.
    pub end: End,
    /// Threads that panicked and were never joined. A panic of the body is [`End::Panicked`].
    pub panics: Vec<Panicked>,
    /// All panics, in order, including those that were caught and those of joined threads.
    pub raised: Vec<Panicked>,
    /// Number of scheduling points.
    pub steps: u64,
    /// Number of switches to another thread.
    pub switches: u64,
    /// Number of threads.
    pub threads: u64,
    /// Simulated time that has passed.
    pub elapsed: Duration,
    /// A hash of the schedule: which thread did what, in which order. Equal configurations give
    /// equal hashes.
    pub trace: u64,
    /// The last [`Config::events_max`](super::Config::events_max) events.
    pub events: Vec<Event>,
}
