//! The simulator's back end: a seeded scheduler runs the program's own threads one at a time.
//!
//! ```text
//!   body ── spawn ──> thread          each is an OS thread; exactly one has the baton and runs
//!    │                  │
//!    └── lock, wait, send, sleep, read the clock, point() ──> scheduler ──> continues this thread or another one
//! ```
//!
//! - [`run`] runs a body as the main thread of a simulation. Threads that simulated threads start
//!   belong to the simulation. For all other threads, these types behave like the standard
//!   library's, which they wrap.
//! - Every operation of [`sync`](super) is a *scheduling point*: the seeded [`Policy`] decides
//!   whether another thread runs first. [`point`] adds a scheduling point anywhere else, such as at
//!   a system call.
//! - Between two points a thread runs alone. Operations of [`atomic`] are points at which switches
//!   are rarer. The scheduler does not see the standard library's own atomics. Memory orderings are
//!   loom's to check.
//! - A thread that cannot continue waits in the scheduler, which knows what it waits for. When no
//!   thread can run, *simulated time* advances to the earliest deadline. Without a deadline, that
//!   is a deadlock, and [`End::Deadlock`] says which thread waits where and for what, and who holds
//!   it. Now and then time also advances while other threads can run.
//! - A loop that spins must call [`yield_now`](thread::yield_now) or
//!   [`spin_loop`](hint::spin_loop). Its thread then continues only after others have run, and time
//!   passes if all runnable threads spin.
//! - A thread ends after its thread-locals are destroyed, so their destructors are part of the
//!   simulation.
//! - Each simulation has its own collector for epoch-based reclamation. Work that is still deferred
//!   runs at the very end.
//!
//! Equal configurations give equal simulations, as [`Outcome::trace`] shows. This requires that the
//! program takes its randomness from [`random_seed`] and [`random`] and its time from [`time`], and
//! that it depends neither on addresses nor on values that an earlier simulation left in a static.

pub mod atomic;
mod barrier;
mod choice;
mod condvar;
mod config;
mod mutex;
mod once;
mod outcome;
mod policy;
mod random;
mod rwlock;
mod scheduler;
mod state;

pub mod mpsc;
pub mod thread;
pub mod time;

#[cfg(test)]
mod tests;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::panic::Location;
use std::time::Duration;

pub use barrier::{Barrier, BarrierWaitResult};
pub use condvar::{Condvar, WaitTimeoutResult};
pub use config::Config;
pub use mutex::{Mutex, MutexGuard};
pub use once::{LazyLock, Once, OnceLock};
pub use outcome::{Blocked, End, Event, Operation, Outcome, Panicked, WaitsFor};
pub use policy::Policy;
pub use rwlock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use scheduler::run;

use scheduler::Here;

/// Hints to the CPU.
pub mod hint {
    use super::*;

    /// Announces that the thread spins. In a simulation, other threads run before it continues.
    #[inline]
    #[track_caller]
    pub fn spin_loop() {
        match Here::get() {
            None => std::hint::spin_loop(),
            Some(here) => here.point(Operation::Yield, Location::caller()),
        }
    }
}

/// Registers the calling thread with the epochs of its simulation, if it is in one.
pub(crate) fn register_in_epochs() -> Option<crossbeam_epoch::LocalHandle> {
    Here::get().map(Here::register)
}

/// The calling thread's index if it is in a simulation. 0 is the main thread; the others are
/// numbered in the order of their creation.
pub(super) fn thread_index() -> Option<usize> {
    Here::get().map(|here| here.thread)
}

/// Whether the calling thread is part of a simulation.
#[inline]
pub fn is_running() -> bool {
    Here::get().is_some()
}

/// A scheduling point. Does nothing outside a simulation.
#[inline]
#[track_caller]
pub fn point() {
    if let Some(here) = Here::get() {
        here.point(Operation::Point, Location::caller());
    }
}

/// Returns a number below `below`, drawn from the seed.
///
/// # Panics
///
/// Panics outside a simulation, or if `below` is 0.
pub fn random(below: u64) -> u64 {
    assert!(below > 0, "no number is below 0");
    let here = Here::get().expect("only a simulation has a seed");
    here.with(|state| state.program.below(below))
}

/// Advances the simulated time, then lets others run. Does nothing outside a simulation.
#[track_caller]
pub fn advance(time: Duration) {
    if let Some(here) = Here::get() {
        here.point_after(Operation::Clock, Location::caller(), |state| {
            state.now_ns = state.deadline_after(time);
        });
    }
}

/// Sets the simulated wall clock to this many nanoseconds before or after the time that the
/// monotonic clock implies. Does nothing outside a simulation.
pub fn set_wall_clock(offset_ns: i64) {
    if let Some(here) = Here::get() {
        here.with(|state| state.wall_offset_ns = offset_ns);
    }
}

/// Returns a random number that cannot be guessed outside this process, different at each call. In
/// a simulation it comes from the seed.
pub fn random_seed() -> u64 {
    match Here::get() {
        None => RandomState::new().build_hasher().finish(),
        Some(here) => here.with(|state| state.program.next()),
    }
}
