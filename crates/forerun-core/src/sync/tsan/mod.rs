//! The back end of `--cfg tsan`: what ThreadSanitizer must see is compiled here, from source, and
//! not taken from the standard library that comes with Rust, which is compiled without it.
//!
//! ```text
//!   lock.rs     Mutex, RwLock, Condvar: parking_lot's, with the standard library's poisoning
//!   once.rs     OnceLock, LazyLock: over parking_lot's Once
//!   channel.rs  mpsc: a queue behind a Mutex
//!   thread.rs   scope, which joins its threads; the rest is the standard library's
//!   harness.rs  runs tests in place of the standard library's harness
//!   arc.rs      how the last owner of an Arc comes to see what the others did
//! ```
//!
//! A thread's start and its join need nothing: the sanitizer watches `pthread_create` and
//! `pthread_join` themselves.

mod arc;
mod channel;
pub mod harness;
mod lock;
mod once;
pub mod thread;

pub use lock::{
    Barrier, BarrierWaitResult, Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard,
    RwLockWriteGuard, WaitTimeoutResult,
};
pub use once::{LazyLock, OnceLock};

pub use super::plain::{hint, random_seed, time};

/// Channels of many senders and one receiver.
pub mod mpsc {
    pub use super::channel::{Receiver, Sender, channel};
    pub use std::sync::mpsc::{RecvError, RecvTimeoutError, SendError, TryRecvError};
}
