//! Limbo holds garbage that has left the index and that readers may still use, until its grace
//! period is over.

use crate::blocks::Blocks;
use crate::epoch::{Epochs, Retired};
use crate::index::{Index, Replaced};
use crate::sync::unpoisoned;
use crate::value::LargeValue;
use forerun_core::sync::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Memory that waits for its readers.
#[derive(Debug)]
pub(crate) enum Garbage {
    Block(u32),
    Large(Arc<LargeValue>),
    Index(Replaced),
}

/// All garbage, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Limbo {
    queue: Mutex<VecDeque<(Retired, Garbage)>>,
    /// Bytes of blocks and large values that will be free when all grace periods are over.
    waiting_bytes: AtomicUsize,
}

impl Limbo {
    /// Adds garbage, which must have left the index.
    pub(crate) fn push(&self, epochs: &Epochs, garbage: Garbage, block_bytes: usize) {
        let mut queue = unpoisoned(self.queue.lock());
        self.waiting_bytes
            .fetch_add(bytes(&garbage, block_bytes), Relaxed);
        // Retired under the lock, so that the queue is ordered by epoch.
        queue.push_back((epochs.retire(), garbage));
    }

    /// Bytes that the waiting garbage will free.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.waiting_bytes.load(Relaxed)
    }

    /// When the oldest garbage was retired.
    pub(crate) fn oldest(&self) -> Option<Retired> {
        let queue = unpoisoned(self.queue.lock());
        queue.front().map(|&(retired, _)| retired)
    }

    /// Frees the garbage that no reader can hold any more.
    pub(crate) fn collect(&self, epochs: &Epochs, blocks: &Blocks, index: &Index) {
        let mut freed = Vec::new();
        {
            let mut queue = unpoisoned(self.queue.lock());
            if queue.is_empty() {
                return;
            }
            let oldest = epochs.oldest();
            while let Some((_, garbage)) = queue.pop_front_if(|(retired, _)| *retired < oldest) {
                self.waiting_bytes
                    .fetch_sub(bytes(&garbage, blocks.len_bytes()), Relaxed);
                freed.push(garbage);
            }
        }
        for garbage in freed {
            match garbage {
                Garbage::Block(block) => blocks.free(block),
                Garbage::Large(value) => drop(value),
                Garbage::Index(replaced) => index.release(replaced),
            }
        }
    }
}

fn bytes(garbage: &Garbage, block_bytes: usize) -> usize {
    match garbage {
        Garbage::Block(_) => block_bytes,
        Garbage::Large(value) => value.charged_bytes(),
        Garbage::Index(_) => 0,
    }
}
