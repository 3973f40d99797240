//! The back end of the plain build: what the standard library has, under the same names.

pub use std::sync::{
    Barrier, BarrierWaitResult, Condvar, LazyLock, Mutex, MutexGuard, Once, OnceLock, RwLock,
    RwLockReadGuard, RwLockWriteGuard, WaitTimeoutResult, mpsc,
};

use std::hash::{BuildHasher, Hasher, RandomState};

/// Threads: to start them, to wait for them, to sleep and to yield.
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

    /// The monotonic clock's time.
    #[inline]
    pub fn now() -> Instant {
        Instant::now()
    }

    /// How long ago `since` was, by the monotonic clock.
    #[inline]
    pub fn elapsed(since: Instant) -> Duration {
        since.elapsed()
    }

    /// The wall clock's time.
    #[inline]
    pub fn system_now() -> SystemTime {
        SystemTime::now()
    }
}

/// A random number that nobody outside this process can guess, another one at each call: what the
/// standard library seeds its hash maps with.
pub fn random_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}
