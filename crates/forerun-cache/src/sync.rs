//! The atomics of the index and of the epochs: those of the standard library, or loom's when its models are built.

#[cfg(not(loom))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicPtr, AtomicU64, Ordering},
};

#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicPtr, AtomicU64, Ordering},
};

use std::sync::{LockResult, PoisonError};

/// What a lock guards, also where a thread panicked with it: no operation of this crate leaves it half done.
pub(crate) fn unpoisoned<G>(locked: LockResult<G>) -> G {
    locked.unwrap_or_else(PoisonError::into_inner)
}

/// Reads a word in the one order of all sequentially consistent operations.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn load_in_order(word: &AtomicU64) -> u64 {
    word.load(Ordering::SeqCst)
}

/// The same for loom, which takes such a load for an acquire, and may give an old value. A read-modify-write has the last one.
#[cfg(loom)]
pub(crate) fn load_in_order(word: &AtomicU64) -> u64 {
    word.fetch_add(0, Ordering::SeqCst)
}
