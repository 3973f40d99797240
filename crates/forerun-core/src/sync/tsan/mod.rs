//! The back end of `--cfg tsan`. Everything that ThreadSanitizer must see is compiled here from
//! source, because the standard library that comes with Rust is compiled without the sanitizer.
//!
//! ```text
//!   lock.rs     Mutex, RwLock, Condvar: parking_lot's locks with the standard library's poisoning
//!   once.rs     OnceLock, LazyLock: based on parking_lot's Once
//!   channel.rs  mpsc: a queue behind a Mutex
//!   thread.rs   scope, which joins its threads; the rest is the standard library's
//!   harness.rs  runs tests instead of the standard library's harness
//!   arc.rs      makes the last owner of an Arc see the other owners' writes
//! ```
//!
//! Starting and joining threads needs no replacement: the sanitizer intercepts `pthread_create` and
//! `pthread_join`.

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

/// Channels with many senders and one receiver.
pub mod mpsc {
    pub use super::channel::{Receiver, Sender, channel};
    pub use std::sync::mpsc::{RecvError, RecvTimeoutError, SendError, TryRecvError};
}
