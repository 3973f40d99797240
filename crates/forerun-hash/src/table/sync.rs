//! The atomics of the buckets: those of the standard library, or loom's when its models are built.

#[cfg(not(loom))]
pub(super) use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(loom)]
pub(super) use loom::sync::atomic::{AtomicU64, Ordering};
