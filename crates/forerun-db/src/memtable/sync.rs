//! The atomics of the list: those of the standard library, or loom's when its models are built.

#[cfg(not(loom))]
pub(super) use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

#[cfg(loom)]
pub(super) use loom::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
