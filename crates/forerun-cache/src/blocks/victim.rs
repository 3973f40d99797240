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

/// Which blocks are worth compacting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Sparse {
    None,
    /// Those with a smaller live share.
    Below(f64),
    /// All that have dead bytes.
    WithDeadBytes,
}

/// A block that is being emptied. No writer uses it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Victim {
    pub(crate) block: u32,
    pub(crate) queue: Queue,
    pub(crate) reason: Reason,
    /// Offset of the first item that the policy has not gone through.
    pub(crate) head: usize,
    /// Offset of the end of its items.
    pub(crate) tail: usize,
}

/// The victim that is being emptied in steps, and where the next step begins.
#[derive(Debug)]
pub(crate) struct Evacuation {
    pub(crate) victim: Victim,
    pub(crate) offset: usize,
    /// Bytes of the items before the offset, with their large values.
    pub(crate) bytes: usize,
}

impl Evacuation {
    pub(crate) fn new(victim: Victim) -> Evacuation {
        Evacuation {
            victim,
            offset: victim.head,
            bytes: 0,
        }
    }
}

/// A block's queue and its position there.
type Position = (Queue, usize);

impl Blocks {
    /// Chooses a victim and takes it out of its queue. A `sparse` block is preferred to the one
    /// that `policy` selects. Without a policy, no live items are evicted.
    pub(crate) fn choose_victim(
        &self,
        moment: Moment,
        sparse: Sparse,
        policy: Option<&Policy>,
    ) -> Option<Victim> {
        let mut pool = self.pool();
        let ((queue, nth), reason) = self
            .expired(&pool, moment)
            .map(|at| (at, Reason::Expired))
            .or_else(|| Some((self.sparsest(&pool, sparse)?, Reason::Sparse)))
            .or_else(|| Some((self.oldest(&pool, policy?)?, Reason::Evicted)))?;
        let block = pool.queues[queue as usize].remove(nth)?;
        Some(Victim {
            block,
            queue,
            reason,
            head: self.metas[block as usize].head(),
            tail: self.metas[block as usize].tail(),
        })
    }

    /// Returns a victim to the front of its queue. The policy has gone through the items before
    /// `head`.
    pub(crate) fn put_back(&self, victim: Victim, head: usize) {
        let mut pool = self.pool();
        self.metas[victim.block as usize].set_head(head);
        pool.queues[victim.queue as usize].push_front(victim.block);
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

    fn sparsest(&self, pool: &Pool, sparse: Sparse) -> Option<Position> {
        // The policy is going through a block with a head. If its items moved, they would be the
        // youngest of their queue.
        let whole = self.in_use(pool).filter(|(meta, _)| meta.head() == 0);
        let found = match sparse {
            Sparse::None => None,
            Sparse::Below(share) => whole
                .filter(|(meta, _)| meta.is_complete())
                .min_by_key(|(meta, _)| meta.live_bytes())
                .filter(|(meta, _)| (meta.live_bytes() as f64) < share * self.block_bytes as f64),
            // Items that are replaced again and again die in the open blocks.
            Sparse::WithDeadBytes => whole
                .filter(|(meta, _)| !meta.is_pending() && meta.dead_bytes() > 0)
                .max_by_key(|(meta, _)| meta.dead_bytes())
                .filter(|(meta, at)| self.close(pool, meta, *at)),
        };
        found.map(|(_, at)| at)
    }

    /// The oldest block of the queue that the policy prefers, if no writer is pending in it.
    fn oldest(&self, pool: &Pool, policy: &Policy) -> Option<Position> {
        let bytes = Queue::ALL.map(|queue| self.queue_bytes(pool, queue));
        policy.eviction_order(bytes).into_iter().find_map(|queue| {
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
            let own = &self.open[queue as usize][meta.ttl_class()];
            for open in [own, &self.reserve_open] {
                // Relaxed: it only changes under the pool's lock, which is held, and NONE publishes
                // nothing.
                if open.load(Ordering::Relaxed) == block as u32 {
                    open.store(NONE, Ordering::Relaxed);
                }
            }
        }
        meta.is_complete()
    }

    /// Seals the open blocks, so that later items go to other blocks.
    pub(crate) fn close_open(&self) {
        let _pool = self.pool();
        for open in self.open.iter().flatten().chain([&self.reserve_open]) {
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
