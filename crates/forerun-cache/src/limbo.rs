//! What is out of the index, but may still be read: it waits here until its grace period is over.

use crate::blocks::Blocks;
use crate::epoch::{Epochs, Retired};
use crate::index::{Index, Replaced};
use crate::sync::unpoisoned;
use crate::value::LargeValue;
use forerun_core::sync::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Something that waits.
#[derive(Debug)]
pub(crate) enum Garbage {
    Block(u32),
    Large(Arc<LargeValue>),
    Index(Replaced),
}

/// All that waits, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Limbo {
    queue: Mutex<VecDeque<(Retired, Garbage)>>,
    /// What will be free when all of it is over: blocks and large values.
    waiting_bytes: AtomicUsize,
}

impl Limbo {
    /// Takes what is out of the index.
    pub(crate) fn push(&self, epochs: &Epochs, garbage: Garbage, block_bytes: usize) {
        let mut queue = unpoisoned(self.queue.lock());
        self.waiting_bytes
            .fetch_add(bytes(&garbage, block_bytes), Relaxed);
        // Under the lock, so that the queue is in the order of the epochs.
        queue.push_back((epochs.retire(), garbage));
    }

    /// What waits, in bytes that it will free.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.waiting_bytes.load(Relaxed)
    }

    /// When the oldest that waits was retired.
    pub(crate) fn oldest(&self) -> Option<Retired> {
        let queue = unpoisoned(self.queue.lock());
        queue.front().map(|&(retired, _)| retired)
    }

    /// Frees what no reader can have any more.
    pub(crate) fn collect(&self, epochs: &Epochs, blocks: &Blocks, index: &Index) {
        let mut over = Vec::new();
        {
            let mut queue = unpoisoned(self.queue.lock());
            if queue.is_empty() {
                return;
            }
            let oldest = epochs.oldest();
            while let Some((_, garbage)) = queue.pop_front_if(|(retired, _)| *retired < oldest) {
                self.waiting_bytes
                    .fetch_sub(bytes(&garbage, blocks.len_bytes()), Relaxed);
                over.push(garbage);
            }
        }
        for garbage in over {
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
