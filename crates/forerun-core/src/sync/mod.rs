//! Locks, condition variables, channels, cells that are set once, threads, and the monotonic clock:
//! every crate of Forerun takes them from here and not from the standard library, so that one build
//! replaces them all.
//!
//! ```text
//!   build          back end
//!   plain          plain.rs    the standard library's own types: this module costs nothing
//!   feature `sim`  sim/        wrappers: in a simulation one seeded scheduler runs all threads; elsewhere as plain
//!   --cfg loom     plain.rs, but loom's types in `modelled`, for the structures that have loom models
//!   --cfg tsan     tsan/       parking_lot's locks, compiled from source, so that ThreadSanitizer sees them
//! ```
//!
//! The names and signatures are the standard library's, with these additions:
//!
//! - [`time::now`] and [`time::elapsed`] stand for `Instant::now` and `Instant::elapsed`,
//!   [`time::system_now`] for `SystemTime::now`;
//! - [`random_seed`] is the source of all randomness: salts, seeds of hash functions, heights of
//!   list nodes;
//! - [`thread_number`] spreads threads over what they would else share.
//!
//! [`Arc`] and [`Weak`] are the standard library's in every back end, and [`atomic`] in all but a
//! simulation's; code may name them by either path. Only the operations of those from here are
//! points at which a simulation switches.

mod number;
#[cfg(not(feature = "sim"))]
#[cfg_attr(
    tsan,
    allow(unused_imports, reason = "the locks are another back end's")
)]
mod plain;
#[cfg(feature = "sim")]
pub mod sim;
#[cfg(all(tsan, not(feature = "sim")))]
mod tsan;

/// The types of the structures whose memory orderings loom checks: those of this module, or loom's
/// when its models are built. No others are loom's then, because loom's types work inside a model
/// alone: a `static` cannot hold them. A simulation, which is not there to check orderings,
/// switches at none of these atomics.
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

/// Locks at which no simulation switches: for what stands in for the system below a simulation,
/// such as a disk in memory. They may not be held across a point of the simulation.
pub mod unscheduled {
    #[cfg(any(not(tsan), feature = "sim"))]
    pub use std::sync::{Mutex, MutexGuard};

    #[cfg(all(tsan, not(feature = "sim")))]
    pub use super::tsan::{Mutex, MutexGuard};
}

/// Whether this is a build whose threads can be simulated: its locks and atomics are wrappers, and
/// slower.
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
