//! The back end of the simulator: the program's own threads, run one at a time by a scheduler that
//! a seed drives.
//!
//! ```text
//!   body ── spawn ──> thread          each a thread of the operating system; exactly one has the baton and runs
//!    │                  │
//!    └── lock, wait, send, sleep, read the clock, point() ──> scheduler ──> the same thread goes on, or another one
//! ```
//!
//! - [`run`] runs a body as the main thread of a simulation. Threads that simulated threads start
//!   belong to it. All other threads use the same types as if they were the standard library's,
//!   which they wrap.
//! - Every operation of [`sync`](super) is a *scheduling point*: the seeded [`Policy`] decides
//!   whether another thread runs first. [`point`] is one more, for what else is worth an
//!   interruption: a call of the operating system.
//! - Between two points a thread runs alone. What [`atomic`] does is a point, at which switches are
//!   rarer; of the standard library's atomics the scheduler knows nothing. Memory orderings are
//!   loom's to check.
//! - Whoever cannot go on waits in the scheduler, which knows what for. When nobody can run,
//!   *simulated time* passes until the earliest deadline; if there is none, that is a deadlock, and
//!   [`End::Deadlock`] says who waits where, for what, and who holds it.
//! - A loop that spins must say so, by [`yield_now`](thread::yield_now) or
//!   [`spin_loop`](hint::spin_loop): its thread then goes on after others have run, and time passes
//!   if all who can run do nothing else.
//! - A thread ends when its thread-locals are destroyed: their destructors are part of the
//!   simulation.
//! - Epoch-based reclamation has a collector of its own in each simulation; what still waits in it
//!   runs at the very end.
//!
//! Equal configurations give equal simulations, which [`Outcome::trace`] shows, as long as the
//! program draws its randomness from [`random_seed`] and [`random`], its time from [`time`], and
//! depends neither on addresses nor on what an earlier simulation left in a static.

pub mod atomic;
mod barrier;
mod condvar;
mod mutex;
mod once;
mod policy;
mod random;
mod report;
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
pub use mutex::{Mutex, MutexGuard};
pub use once::{LazyLock, Once, OnceLock};
pub use policy::Policy;
pub use report::{Blocked, Config, End, Event, Operation, Outcome, Panicked, WaitsFor};
pub use rwlock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use scheduler::run;

use scheduler::Here;

/// Hints to the CPU.
pub mod hint {
    use super::*;

    /// Tells that the thread spins: in a simulation, others run before it goes on.
    #[inline]
    #[track_caller]
    pub fn spin_loop() {
        match Here::get() {
            None => std::hint::spin_loop(),
            Some(here) => here.point(Operation::Yield, Location::caller()),
        }
    }
}

/// The calling thread's part in the epochs of its simulation, if it is in one.
pub(crate) fn register_in_epochs() -> Option<crossbeam_epoch::LocalHandle> {
    Here::get().map(Here::register)
}

/// The calling thread's index, if it is in a simulation: 0 is the body's, and the others count in
/// the order of their creation.
pub(super) fn thread_index() -> Option<usize> {
    Here::get().map(|here| here.thread)
}

/// Whether the calling thread is part of a simulation.
#[inline]
pub fn is_running() -> bool {
    Here::get().is_some()
}

/// A scheduling point. Outside a simulation, nothing.
#[inline]
#[track_caller]
pub fn point() {
    if let Some(here) = Here::get() {
        here.point(Operation::Point, Location::caller());
    }
}

/// A number below `below`, drawn from the seed.
///
/// # Panics
///
/// Panics outside a simulation, or if `below` is 0.
pub fn random(below: u64) -> u64 {
    assert!(below > 0, "no number is below 0");
    let here = Here::get().expect("only a simulation has a seed");
    here.with(|state| state.program.below(below))
}

/// Lets simulated time pass, and then others run. Outside a simulation, nothing.
#[track_caller]
pub fn advance(time: Duration) {
    if let Some(here) = Here::get() {
        here.point_after(Operation::Clock, Location::caller(), |state| {
            state.now_ns = state.deadline_after(time);
        });
    }
}

/// Sets the simulated wall clock to so many nanoseconds before or after what the monotonic clock
/// implies. Outside a simulation, nothing.
pub fn set_wall_clock(offset_ns: i64) {
    if let Some(here) = Here::get() {
        here.with(|state| state.wall_offset_ns = offset_ns);
    }
}

/// A random number that nobody outside this process can guess, another one at each call; in a
/// simulation it comes from the seed.
pub fn random_seed() -> u64 {
    match Here::get() {
        None => RandomState::new().build_hasher().finish(),
        Some(here) => here.with(|state| state.program.next()),
    }
}
