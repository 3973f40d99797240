//! The back end of the plain build: the standard library's types under the same names.

pub use std::sync::{
    Barrier, BarrierWaitResult, Condvar, LazyLock, Mutex, MutexGuard, Once, OnceLock, RwLock,
    RwLockReadGuard, RwLockWriteGuard, WaitTimeoutResult, mpsc,
};

use std::hash::{BuildHasher, Hasher, RandomState};

/// Threads: functions to start them, wait for them, sleep and yield.
pub mod thread {
    pub use std::thread::{
        AccessError, Builder, JoinHandle, LocalKey, Result, Scope, ScopedJoinHandle, Thread,
        ThreadId, available_parallelism, current, panicking, park, park_timeout, scope, sleep,
        spawn, yield_now,
    };
}

/// Hints to the CPU.
pub mod hint {
    pub use std::hint::spin_loop;
}

/// The clocks.
pub mod time {
    use std::time::{Duration, Instant, SystemTime};

    /// Returns the time of the monotonic clock.
    #[inline]
    pub fn now() -> Instant {
        Instant::now()
    }

    /// Returns the time since `since`, by the monotonic clock.
    #[inline]
    pub fn elapsed(since: Instant) -> Duration {
        since.elapsed()
    }

    /// Returns the time of the wall clock.
    #[inline]
    pub fn system_now() -> SystemTime {
        SystemTime::now()
    }
}

/// Returns a random number that cannot be guessed outside this process, different at each call. It
/// has the same source as the seeds of the standard library's hash maps.
pub fn random_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}
