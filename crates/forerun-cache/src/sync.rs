//! What the index and the epochs add to the types that loom checks.

pub(crate) use forerun_core::sync::modelled::{
    Mutex, MutexGuard,
    atomic::{AtomicPtr, AtomicU64, Ordering},
};

use forerun_core::sync::{LockResult, PoisonError};

/// What a lock guards, also where a thread panicked with it: no operation of this crate leaves it half done.
pub(crate) fn unpoisoned<G>(locked: LockResult<G>) -> G {
    locked.unwrap_or_else(PoisonError::into_inner)
}

/// Reads a word in the one order of all sequentially consistent operations.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn load_seq_cst(word: &AtomicU64) -> u64 {
    word.load(Ordering::SeqCst)
}

/// The same for loom, which takes such a load for an acquire, and may give an old value. A read-modify-write has the last one.
#[cfg(loom)]
pub(crate) fn load_seq_cst(word: &AtomicU64) -> u64 {
    word.fetch_add(0, Ordering::SeqCst)
}
