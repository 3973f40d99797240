//! Tracks which blocks are free, returned to the system, or in use.

use super::Blocks;
use super::block_queue::BlockQueue;
use crate::budget::Purpose;
use crate::eviction::Queue;
use std::sync::atomic::{AtomicU32, Ordering};

/// Every block is in one of these places, except a victim that is being emptied.
#[derive(Debug, Default)]
pub(super) struct Pool {
    /// Empty and charged.
    pub(super) free: Vec<u32>,
    /// Empty and returned to the system.
    released: Vec<u32>,
    /// This block and all blocks after it have never been used.
    unused: u32,
    /// In use.
    pub(super) queues: [BlockQueue; 2],
    /// The place, counted over both queues, at which the next search for a victim begins.
    pub(super) cursor: usize,
    /// The second and the flush count at which no block's items were all gone.
    pub(super) none_gone_at: Option<(u32, u64)>,
}

impl Pool {
    /// The places of both queues.
    pub(super) fn places(&self) -> usize {
        self.queues.iter().map(BlockQueue::places).sum()
    }

    /// A place, counted over both queues.
    pub(super) fn position(&self, place: usize) -> (Queue, usize) {
        let small = self.queues[Queue::Small as usize].places();
        match place.checked_sub(small) {
            None => (Queue::Small, place),
            Some(place) => (Queue::Main, place),
        }
    }
}

impl Blocks {
    /// Takes a free block if at least `free_min` stay free, or else charges another one.
    pub(super) fn allocate_block(&self, pool: &mut Pool, free_min: usize) -> Option<u32> {
        let block = if pool.free.len() > free_min {
            pool.free.pop()
        } else {
            self.charge_one(pool)
        };
        self.update_available(pool);
        block
    }

    /// Charges an empty block, if the limit allows another one.
    pub(super) fn charge_one(&self, pool: &mut Pool) -> Option<u32> {
        if !self.has_uncharged(pool) || !self.budget.try_charge(Purpose::Blocks, self.block_bytes) {
            return None;
        }
        pool.released.pop().or_else(|| {
            pool.unused += 1;
            Some(pool.unused - 1)
        })
    }

    fn has_uncharged(&self, pool: &Pool) -> bool {
        !pool.released.is_empty() || (pool.unused as usize) < self.metas.len()
    }

    /// Charges a block that was never used and faults its pages in, so that no writer has to wait
    /// for that: the first touch of a 2 MiB page costs as much as thousands of stores. `false`:
    /// `ahead` blocks are available already, every block has been used, or nothing was ever stored.
    pub(crate) fn prefault_one(&self, ahead: usize) -> bool {
        let block = {
            let mut pool = self.pool();
            let is_in_use = pool.queues.iter().any(|queue| !queue.is_empty());
            // A block was released because something else needed its memory. Taking it back would
            // repeat that.
            let is_fresh = pool.released.is_empty();
            if !is_in_use || !is_fresh || pool.free.len() >= self.reserve + ahead {
                return false;
            }
            match self.charge_one(&mut pool) {
                Some(block) => block,
                None => return false,
            }
        };
        self.region
            .populate(block as usize * self.block_bytes, self.block_bytes);
        self.free(block);
        true
    }

    fn update_available(&self, pool: &Pool) {
        // Relaxed: a hint.
        let available = pool.free.len().saturating_sub(self.reserve);
        self.available.store(available, Ordering::Relaxed);
    }

    /// Number of free blocks that writers can take, not counting those that the budget still
    /// allows.
    pub(crate) fn available(&self) -> usize {
        self.available.load(Ordering::Relaxed)
    }

    /// Frees an empty block that has no readers any more.
    pub(crate) fn free(&self, block: u32) {
        let mut pool = self.pool();
        pool.free.push(block);
        self.update_available(&pool);
    }

    /// Returns the memory of a free block to the system, so that something else can be charged.
    /// `false`: no block is free, or the system refused and the block stays charged.
    pub(crate) fn release_one(&self) -> bool {
        let mut pool = self.pool();
        if pool.free.len() <= self.reserve {
            return false;
        }
        let Some(block) = pool.free.pop() else {
            return false;
        };
        let offset = block as usize * self.block_bytes;
        // SAFETY: the block is within the region, and free: nothing refers to its bytes.
        let is_released = unsafe { self.region.release(offset, self.block_bytes) };
        if is_released {
            pool.released.push(block);
            self.budget.uncharge(Purpose::Blocks, self.block_bytes);
        } else {
            pool.free.push(block);
        }
        self.update_available(&pool);
        // Relaxed: a hint.
        self.is_release_refused
            .store(!is_released, Ordering::Relaxed);
        is_released
    }

    /// Whether blocks are free whose memory the system refuses to take back.
    pub(crate) fn has_unreleasable(&self) -> bool {
        self.is_release_refused.load(Ordering::Relaxed) && self.available() > 0
    }

    /// Whether a replacement of this many bytes finds memory now.
    pub(crate) fn has_room_for_replacement(&self, bytes: usize) -> bool {
        let free = self.pool().free.len();
        let has_room = |open: &AtomicU32| {
            // Relaxed: a guess. The replacement asks again if another writer is faster.
            let meta = self.metas.get(open.load(Ordering::Relaxed) as usize);
            meta.is_some_and(|meta| meta.has_room(bytes, self.block_bytes))
        };
        free > 1
            || self.can_charge_one()
            || has_room(&self.reserve_open)
            || self.open.iter().flatten().any(has_room)
    }

    /// Whether another block could be charged now.
    pub(crate) fn can_charge_one(&self) -> bool {
        self.has_uncharged(&self.pool()) && self.budget.left_bytes() >= self.block_bytes
    }

    /// Blocks in use.
    pub(crate) fn in_use_len(&self) -> usize {
        self.pool().queues.iter().map(BlockQueue::len).sum()
    }
}
