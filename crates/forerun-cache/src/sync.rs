//! Helpers of the index and the epochs on top of the types that loom checks.

pub(crate) use forerun_core::sync::modelled::{
    Mutex, MutexGuard,
    atomic::{AtomicPtr, AtomicU64, Ordering},
};

use forerun_core::sync::{LockResult, PoisonError};

/// Ignores poisoning: no operation of this crate leaves the data behind a lock half changed.
pub(crate) fn unpoisoned<G>(locked: LockResult<G>) -> G {
    locked.unwrap_or_else(PoisonError::into_inner)
}

/// A sequentially consistent load.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn load_seq_cst(word: &AtomicU64) -> u64 {
    word.load(Ordering::SeqCst)
}

/// The same for loom, which treats such a load as an acquire and may return an old value. A
/// read-modify-write always sees the latest one.
#[cfg(loom)]
pub(crate) fn load_seq_cst(word: &AtomicU64) -> u64 {
    word.fetch_add(0, Ordering::SeqCst)
}
