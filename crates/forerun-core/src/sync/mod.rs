//! Locks, condition variables, channels, once cells, threads, and the monotonic clock. Every crate
//! of Forerun takes them from here and not from the standard library, so that a build can replace
//! all of them at once.
//!
//! ```text
//!   build          back end
//!   plain          plain.rs    the standard library's own types: this module costs nothing
//!   feature `sim`  sim/        wrappers: in a simulation one seeded scheduler runs all threads; elsewhere like plain
//!   --cfg loom     plain.rs, but loom's types in `modelled`, for the structures that have loom models
//!   --cfg tsan     tsan/       parking_lot's locks, compiled from source, so that ThreadSanitizer sees them
//! ```
//!
//! The names and signatures are those of the standard library, with these additions:
//!
//! - [`time::now`] and [`time::elapsed`] replace `Instant::now` and `Instant::elapsed`, and
//!   [`time::system_now`] replaces `SystemTime::now`;
//! - [`random_seed`] is the source of all randomness: salts, seeds of hash functions, heights of
//!   list nodes;
//! - [`thread_number`] distributes threads over structures that they would otherwise share.
//!
//! [`Arc`] and [`Weak`] are the standard library's in every back end, and so is [`atomic`], except
//! in a simulation. Code may name them by either path, but a simulation switches threads only at
//! the operations defined here.

#[cfg(loom)]
pub mod loom_model;
mod number;
#[cfg(not(feature = "sim"))]
#[cfg_attr(
    tsan,
    allow(unused_imports, reason = "another back end provides the locks")
)]
mod plain;
#[cfg(feature = "sim")]
pub mod sim;
#[cfg(all(tsan, not(feature = "sim")))]
mod tsan;

/// The types of the structures whose memory orderings loom checks. They are the types of this
/// module, or loom's when loom models are built. Only these are replaced, because loom's types work
/// only inside a model: a `static` cannot hold them. A simulation does not check orderings, so it
/// does not switch threads at these atomics.
pub mod modelled {
    #[cfg(not(loom))]
    pub use super::{Mutex, MutexGuard, hint, thread};
    #[cfg(loom)]
    pub use loom::{
        hint,
        sync::{Mutex, MutexGuard, atomic},
        thread,
    };
    #[cfg(not(loom))]
    pub use std::sync::atomic;
}

/// Locks at which a simulation never switches threads. They are for code that replaces the system
/// below a simulation, such as a disk in memory. They must not be held across a scheduling point.
pub mod unscheduled {
    #[cfg(any(not(tsan), feature = "sim"))]
    pub use std::sync::{Mutex, MutexGuard};

    #[cfg(all(tsan, not(feature = "sim")))]
    pub use super::tsan::{Mutex, MutexGuard};
}

/// Whether this build can simulate threads. Its locks and atomics are wrappers, and slower.
pub const SIMULATED: bool = cfg!(feature = "sim");

pub use number::thread_number;
#[cfg(not(any(tsan, feature = "sim")))]
pub use plain::*;
#[cfg(feature = "sim")]
pub use sim::{
    Barrier, BarrierWaitResult, Condvar, LazyLock, Mutex, MutexGuard, Once, OnceLock, RwLock,
    RwLockReadGuard, RwLockWriteGuard, WaitTimeoutResult, atomic, hint, mpsc, random_seed, thread,
    time,
};
#[cfg(not(feature = "sim"))]
pub use std::sync::atomic;
pub use std::sync::{Arc, LockResult, PoisonError, TryLockError, TryLockResult, Weak};
#[cfg(all(tsan, not(feature = "sim")))]
pub use tsan::*;
