//! The scheduler's state: the threads, what each one waits for, the time, and the schedule so far.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::Location;
use std::time::Duration;

use crossbeam_epoch::Collector;

use super::config::Config;
use super::outcome::{Blocked, End, Event, Operation, Outcome, Panicked, WaitsFor};
use super::policy::Chooser;
use super::random::Random;

pub(super) type At = &'static Location<'static>;

/// How much time passes at most while a thread that can run does not.
const SLOW_NS_MAX: u64 = 1_000_000_000;
/// Simulated time of an atomic operation.
const ATOMIC_NS: u64 = 10;

/// A simulated thread.
pub(super) struct Thread {
    pub(super) index: usize,
    pub(super) name: String,
    pub(super) status: Status,
    /// Why its last wait ended.
    pub(super) wake: Wake,
    pub(super) priority: u64,
    /// Whether it waits for other threads, as a spinning loop does.
    pub(super) has_yielded: bool,
    /// Whether `unpark` was called since its last `park`.
    pub(super) is_unparked: bool,
    /// The message of the panic that ended it, if any.
    pub(super) panic: Option<String>,
    pub(super) is_joined: bool,
    /// The address of the scope that waits for it.
    scope: Option<usize>,
    /// Its last location.
    pub(super) at: At,
    /// The handle that wakes the OS thread.
    pub(super) os: Option<std::thread::Thread>,
}

impl Thread {
    pub(super) fn can_run(&self) -> bool {
        matches!(self.status, Status::Runnable)
    }
}

pub(super) enum Status {
    Runnable,
    Blocked(Wait),
    Finished,
}

/// A wait of a thread: its reason, its deadline and its place.
pub(super) struct Wait {
    pub(super) kind: WaitsFor,
    /// The address of the lock, condition variable, cell or channel, or the index of a thread.
    pub(super) key: usize,
    pub(super) deadline_ns: Option<u64>,
    pub(super) at: At,
    pub(super) since_ns: u64,
}

impl Wait {
    pub(super) fn may_wake_spuriously(&self) -> bool {
        self.kind == WaitsFor::Notification
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wake {
    Notified,
    TimedOut,
}

/// The holder of a lock.
struct Holder {
    key: usize,
    thread: usize,
    at: At,
}

/// The state of a running simulation.
pub(super) struct State {
    config: Config,
    /// Random stream for the scheduler's choices.
    pub(super) schedule: Random,
    /// Random stream for the program.
    pub(super) program: Random,
    pub(super) chooser: Chooser,
    /// Mean number of switches per spurious wake-up; 0 for none.
    spurious_every: u64,
    /// Mean number of scheduling points after which time advances although threads can run; 0 for
    /// never.
    pub(super) time_every: u64,
    pub(super) threads: Vec<Thread>,
    /// The threads that have not finished.
    pub(super) live: Vec<usize>,
    pub(super) running: usize,
    /// The step at which the running thread was chosen.
    pub(super) running_since: u64,
    pub(super) steps: u64,
    switches: u64,
    pub(super) now_ns: u64,
    /// A lower bound of all deadlines.
    deadline_ns: u64,
    /// Offset of the wall clock, in nanoseconds.
    pub(super) wall_offset_ns: i64,
    trace: u64,
    holders: Vec<Holder>,
    events: VecDeque<Event>,
    /// The collector for the simulation's epochs.
    pub(super) collector: Option<Collector>,
    pub(super) end: Option<End>,
    /// The thread that called `run`.
    pub(super) runner: Option<std::thread::Thread>,
}

impl State {
    /// Creates a simulation with one runnable thread, the main thread, whose index is 0.
    #[track_caller]
    pub(super) fn new(config: Config) -> State {
        let mut schedule = Random::new(config.seed, 1);
        let chooser = Chooser::new(config.policy, &mut schedule);
        let spurious_every = match schedule.below(4) {
            0 => 32,
            _ => 0,
        };
        let time_every = match schedule.below(4) {
            0 => 0,
            often => 32 << (3 * often),
        };
        let mut state = State {
            program: Random::new(config.seed, 2),
            schedule,
            chooser,
            spurious_every,
            time_every,
            config,
            threads: Vec::new(),
            live: Vec::new(),
            running: 0,
            running_since: 0,
            steps: 0,
            switches: 0,
            now_ns: 0,
            deadline_ns: u64::MAX,
            wall_offset_ns: 0,
            trace: 0,
            holders: Vec::new(),
            events: VecDeque::new(),
            collector: None,
            end: None,
            runner: Some(std::thread::current()),
        };
        state.add_thread(Some("main".into()), None, Location::caller());
        state
    }

    pub(super) fn add_thread(
        &mut self,
        name: Option<String>,
        scope: Option<usize>,
        at: At,
    ) -> usize {
        let index = self.threads.len();
        self.threads.push(Thread {
            index,
            name: name.unwrap_or_else(|| format!("thread {index}")),
            status: Status::Runnable,
            wake: Wake::Notified,
            priority: Chooser::new_priority(&mut self.schedule),
            has_yielded: false,
            is_unparked: false,
            panic: None,
            is_joined: false,
            scope,
            at,
            os: None,
        });
        self.live.push(index);
        self.chooser.more_can_run();
        index
    }

    /// Counts a step of `me`, and advances the time a little.
    #[inline]
    pub(super) fn step(&mut self, me: usize, operation: Operation, at: At) {
        self.steps += 1;
        let word = (me as u64) << 40 | (operation as u64) << 32 | u64::from(at.line());
        self.trace = (self.trace ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.trace ^= self.trace >> 29;
        self.threads[me].at = at;
        if self.config.events_max > 0 {
            self.record(me, operation, at);
        }
        self.now_ns += match operation {
            Operation::Atomic => ATOMIC_NS,
            _ => self.config.step_ns,
        };
        if self.now_ns >= self.deadline_ns {
            self.wake_overdue();
        }
    }

    #[cold]
    fn record(&mut self, me: usize, operation: Operation, at: At) {
        if self.events.len() == self.config.events_max {
            self.events.pop_front();
        }
        self.events.push_back(Event {
            step: self.steps,
            thread: me,
            operation,
            at,
        });
    }

    /// Returns an unfinished thread of `scope`.
    pub(super) fn live_of(&self, scope: usize) -> Option<usize> {
        let mut live = self.live.iter().copied();
        live.find(|thread| self.threads[*thread].scope == Some(scope))
    }

    pub(super) fn deadline_after(&self, wait: Duration) -> u64 {
        let wait_ns = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        self.now_ns.saturating_add(wait_ns)
    }

    pub(super) fn is_over_limit(&self) -> bool {
        self.steps >= self.config.steps_max
    }

    pub(super) fn switch_to(&mut self, next: usize) {
        self.switches += 1;
        self.running = next;
        self.running_since = self.steps;
        if self.spurious_every > 0 && self.schedule.once_in(self.spurious_every) {
            self.wake_spuriously();
        }
    }

    pub(super) fn set_blocked(&mut self, me: usize, wait: Wait) {
        if let Some(deadline_ns) = wait.deadline_ns {
            self.deadline_ns = self.deadline_ns.min(deadline_ns);
        }
        self.threads[me].status = Status::Blocked(wait);
    }

    /// Wakes all threads that wait for `kinds` at `key`.
    pub(super) fn wake_all(&mut self, kinds: &[WaitsFor], key: usize) {
        for at in 0..self.live.len() {
            let thread = self.live[at];
            if self.waits_for(thread, kinds, key) {
                self.make_runnable(thread, Wake::Notified);
            }
        }
    }

    /// Wakes one of the threads that wait for `kind` at `key`. The seed decides which.
    pub(super) fn wake_one(&mut self, kind: WaitsFor, key: usize) {
        let waits = |thread: &Thread| {
            matches!(&thread.status, Status::Blocked(wait) if wait.key == key
                && wait.kind == kind)
        };
        if let Some(thread) = self.pick(waits) {
            self.make_runnable(thread, Wake::Notified);
        }
    }

    fn waits_for(&self, thread: usize, kinds: &[WaitsFor], key: usize) -> bool {
        matches!(&self.threads[thread].status, Status::Blocked(wait) if wait.key == key
            && kinds.contains(&wait.kind))
    }

    pub(super) fn has_waiting(&self, kind: WaitsFor, key: usize) -> bool {
        let mut live = self.live.iter();
        live.any(|thread| self.waits_for(*thread, &[kind], key))
    }

    pub(super) fn make_runnable(&mut self, thread: usize, wake: Wake) {
        self.threads[thread].status = Status::Runnable;
        self.threads[thread].wake = wake;
        self.chooser.more_can_run();
    }

    /// Wakes all threads whose deadline has passed.
    #[cold]
    pub(super) fn wake_overdue(&mut self) {
        self.deadline_ns = u64::MAX;
        for at in 0..self.live.len() {
            let thread = self.live[at];
            let Status::Blocked(Wait {
                deadline_ns: Some(deadline_ns),
                ..
            }) = self.threads[thread].status
            else {
                continue;
            };
            if deadline_ns <= self.now_ns {
                self.make_runnable(thread, Wake::TimedOut)
            } else {
                self.deadline_ns = self.deadline_ns.min(deadline_ns)
            }
        }
    }

    /// Advances the time to the earliest deadline, because no thread can run. Returns false if
    /// there is none.
    fn pass_time(&mut self) -> bool {
        self.pass_time_up_to(u64::MAX)
    }

    /// Advances the time while threads can run: to the earliest deadline, if that is soon.
    pub(super) fn pass_some_time(&mut self) {
        self.pass_time_up_to(self.now_ns.saturating_add(SLOW_NS_MAX));
    }

    fn pass_time_up_to(&mut self, latest_ns: u64) -> bool {
        // The cached value may be the deadline of a thread that was already woken.
        let deadlines = self
            .live
            .iter()
            .filter_map(|thread| match &self.threads[*thread].status {
                Status::Blocked(wait) => wait.deadline_ns,
                _ => None,
            });
        let Some(deadline_ns) = deadlines.min() else {
            return false;
        };
        self.now_ns = self.now_ns.max(deadline_ns.min(latest_ns));
        self.wake_overdue();
        true
    }

    /// Chooses a thread when the running thread cannot continue. Returns `None` if no thread can
    /// run and no deadline will change that.
    pub(super) fn choose_next(&mut self) -> Option<usize> {
        loop {
            match self.choose_any() {
                Some(next) => return Some(next),
                None if self.pass_time() => {}
                None => return None,
            }
        }
    }

    pub(super) fn add_holder(&mut self, key: usize, thread: usize, at: At) {
        self.holders.push(Holder { key, thread, at });
    }

    pub(super) fn remove_holder(&mut self, key: usize, thread: usize) {
        let is_it = |holder: &Holder| holder.key == key && holder.thread == thread;
        if let Some(at) = self.holders.iter().rposition(is_it) {
            self.holders.remove(at);
        }
    }

    /// The waiting threads, for a report.
    pub(super) fn blocked(&self) -> Vec<Blocked> {
        let blocked = self.live.iter().map(|thread| {
            let thread = &self.threads[*thread];
            let (waits_for, at, since_ns, key) = match &thread.status {
                Status::Blocked(wait) => (wait.kind, wait.at, wait.since_ns, Some(wait.key)),
                _ => (WaitsFor::Nothing, thread.at, self.now_ns, None),
            };
            let holders = self.holders.iter().filter(|held| Some(held.key) == key);
            let is_lock = matches!(waits_for, WaitsFor::Lock | WaitsFor::Read | WaitsFor::Write);
            Blocked {
                thread: thread.name.clone(),
                waits_for,
                at,
                waited: Duration::from_nanos(self.now_ns - since_ns),
                held_by: holders
                    .filter(|_| is_lock)
                    .map(|held| (self.threads[held.thread].name.clone(), held.at))
                    .collect(),
                joins: match waits_for {
                    WaitsFor::Join => key.map(|index| self.threads[index].name.clone()),
                    _ => None,
                },
            }
        });
        blocked.collect()
    }

    /// The end of the simulation when all threads have finished, or when none of the others can
    /// ever run.
    pub(super) fn final_end(&self) -> End {
        match &self.threads[0].panic {
            Some(message) => End::Panicked(message.clone()),
            None if self.live.is_empty() => End::Finished,
            None => End::Deadlock(self.blocked()),
        }
    }

    /// The outcome. `raised` is every panic: the thread and what it said.
    pub(super) fn outcome(&mut self, end: End, raised: Vec<(usize, String)>) -> Outcome {
        let panicked = self.threads.iter().skip(1).filter(|one| !one.is_joined);
        let panics = panicked.filter_map(|one| {
            Some(Panicked {
                thread: one.name.clone(),
                message: one.panic.clone()?,
            })
        });
        let raised = raised.into_iter().map(|(thread, message)| Panicked {
            thread: self.threads[thread].name.clone(),
            message,
        });
        Outcome {
            end,
            panics: panics.collect(),
            raised: raised.collect(),
            steps: self.steps,
            switches: self.switches,
            threads: self.threads.len() as u64,
            elapsed: Duration::from_nanos(self.now_ns),
            trace: self.trace,
            events: std::mem::take(&mut self.events).into(),
        }
    }
}

/// The message of a panic.
pub(super) fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| text.to_string());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".into())
}
