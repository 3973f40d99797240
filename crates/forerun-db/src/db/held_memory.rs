//! The memory of memtables that were frozen and that a flush or a reader still holds.

use std::sync::Arc;

use forerun_core::sync::atomic::{AtomicUsize, Ordering};

use super::background_work::BackgroundWork;

/// The bytes of frozen memtables that are still held.
#[derive(Debug)]
pub(super) struct HeldMemory {
    bytes: AtomicUsize,
    /// Wakes the threads that wait for memory.
    work: Arc<BackgroundWork>,
}

/// A memtable's share of the held memory, until it is dropped.
#[derive(Debug)]
pub(super) struct HeldBytes {
    memory: Arc<HeldMemory>,
    bytes: usize,
}

impl HeldMemory {
    pub(super) fn new(work: Arc<BackgroundWork>) -> HeldMemory {
        HeldMemory {
            bytes: AtomicUsize::new(0),
            work,
        }
    }

    /// Counts a memtable until the returned value is dropped.
    pub(super) fn hold(self: &Arc<Self>, bytes: usize) -> HeldBytes {
        // A thread that adds to the sum holds the lock needed to make a memtable set. Concurrent
        // subtractions only leave more memory free. Release, with the acquire in `bytes`: whoever
        // sees the share also sees the memtable set that replaced this memtable.
        self.bytes.fetch_add(bytes, Ordering::Release);
        HeldBytes {
            memory: Arc::clone(self),
            bytes,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Acquire)
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        // Relaxed: a smaller sum allows nothing but to use the memory, which is free already.
        self.memory.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.memory.work.notify();
    }
}
