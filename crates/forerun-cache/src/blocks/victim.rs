//! Chooses the block to empty next: a block whose items have all expired, otherwise a block with
//! many dead bytes, whose live items are compacted into another block, otherwise the block that the
//! eviction policy selects.

#![allow(
    unsafe_code,
    reason = "the items of a block are found one after another"
)]

use super::block_state::Meta;
use super::item_layout::Record;
use super::pool::Pool;
use super::{Blocks, NONE};
use crate::eviction::{Policy, Queue};
use crate::generation::Moment;
use crate::index::item_bucket::ItemRef;
use std::sync::atomic::Ordering;

/// Why a block is emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// All its items have expired or were flushed.
    Expired,
    /// Most of its bytes are dead.
    Sparse,
    /// The eviction policy chose it.
    Evicted,
}

/// A block that is being emptied. No writer uses it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Victim {
    pub(crate) block: u32,
    pub(crate) queue: Queue,
    pub(crate) reason: Reason,
    /// Offset of the end of its items.
    pub(crate) tail: usize,
}

/// The victim that is being emptied in steps, and where the next step begins.
#[derive(Debug)]
pub(crate) struct Evacuation {
    pub(crate) victim: Victim,
    pub(crate) offset: usize,
}

/// A block's queue and its position there.
type Position = (Queue, usize);

impl Blocks {
    /// Chooses a victim and takes it out of its queue. A block with a smaller live share than
    /// `sparse_below` is preferred to the one that `policy` selects. Without a policy, no live
    /// items are evicted.
    pub(crate) fn choose_victim(
        &self,
        moment: Moment,
        sparse_below: f64,
        policy: Option<&Policy>,
    ) -> Option<Victim> {
        let mut pool = self.pool();
        let ((queue, nth), reason) = self
            .expired(&pool, moment)
            .map(|at| (at, Reason::Expired))
            .or_else(|| Some((self.sparsest(&pool, sparse_below)?, Reason::Sparse)))
            .or_else(|| Some((self.oldest(&pool, policy?)?, Reason::Evicted)))?;
        let block = pool.queues[queue as usize].remove(nth)?;
        Some(Victim {
            block,
            queue,
            reason,
            tail: self.metas[block as usize].tail(),
        })
    }

    fn in_queue<'p>(
        &'p self,
        pool: &'p Pool,
        queue: Queue,
    ) -> impl Iterator<Item = (&'p Meta, Position)> {
        let blocks = pool.queues[queue as usize].iter().enumerate();
        blocks.map(move |(nth, &block)| (&self.metas[block as usize], (queue, nth)))
    }

    fn in_use<'p>(&'p self, pool: &'p Pool) -> impl Iterator<Item = (&'p Meta, Position)> {
        let queues = Queue::ALL.into_iter();
        queues.flat_map(move |queue| self.in_queue(pool, queue))
    }

    fn expired(&self, pool: &Pool, moment: Moment) -> Option<Position> {
        let gone = self.in_use(pool).filter(|(meta, _)| meta.is_gone(moment));
        let closed = gone.filter(|(meta, at)| self.close(pool, meta, *at));
        // Each of these frees a whole block; this one takes the least work.
        closed.min_by_key(|(meta, _)| meta.tail()).map(|(_, at)| at)
    }

    fn sparsest(&self, pool: &Pool, below: f64) -> Option<Position> {
        let complete = self.in_use(pool).filter(|(meta, _)| meta.is_complete());
        let (meta, at) = complete.min_by_key(|(meta, _)| meta.live_bytes())?;
        let is_sparse = (meta.live_bytes() as f64) < below * self.block_bytes as f64;
        is_sparse.then_some(at)
    }

    /// The oldest block of the queue that the policy prefers, if no writer is pending in it.
    fn oldest(&self, pool: &Pool, policy: &Policy) -> Option<Position> {
        let lens = Queue::ALL.map(|queue| pool.queues[queue as usize].len());
        policy.eviction_order(lens).into_iter().find_map(|queue| {
            let mut blocks = self.in_queue(pool, queue);
            blocks.find_map(|(meta, at)| self.close(pool, meta, at).then_some(at))
        })
    }

    /// Seals a block. `false`: an item is still being written in it.
    fn close(&self, _: &Pool, meta: &Meta, (queue, _): Position) -> bool {
        if !meta.is_sealed() {
            meta.seal();
            let block = (std::ptr::from_ref(meta) as usize - self.metas.as_ptr() as usize)
                / size_of::<Meta>();
            let open = &self.open[queue as usize][meta.ttl_class()];
            // Relaxed: it only changes under the pool's lock, which is held, and NONE publishes
            // nothing.
            if open.load(Ordering::Relaxed) == block as u32 {
                open.store(NONE, Ordering::Relaxed);
            }
        }
        meta.is_complete()
    }

    /// Seals the open blocks, so that later items go to other blocks.
    pub(crate) fn close_open(&self) {
        let _pool = self.pool();
        for open in self.open.iter().flatten() {
            // Relaxed: it only changes under the pool's lock, which is held, and NONE publishes
            // nothing.
            let block = open.load(Ordering::Relaxed);
            if let Some(meta) = self.metas.get(block as usize) {
                meta.seal();
                open.store(NONE, Ordering::Relaxed);
            }
        }
    }

    /// The items of a victim from an offset on, both live and dead, each with the offset of its
    /// end.
    pub(crate) fn items(
        &self,
        victim: Victim,
        from: usize,
    ) -> impl Iterator<Item = (usize, ItemRef)> {
        let base = victim.block as usize * self.block_bytes;
        let mut offset = from;
        std::iter::from_fn(move || {
            (offset < victim.tail).then(|| {
                let item = ItemRef::from_offset(base + offset);
                // SAFETY: the block is complete, so items follow each other without gaps up to its
                // tail, and the caller owns the victim.
                offset += unsafe { Record::new(self.at(item.offset_bytes())) }.size_bytes();
                (offset, item)
            })
        })
    }
}
