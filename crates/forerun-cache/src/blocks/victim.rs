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
use crate::eviction::{Queue, S3Fifo};
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sparse {
    None,
    /// Those that waste more than [`Blocks::waste_max_bytes`].
    Wasteful,
    /// All that have dead bytes.
    WithDeadBytes,
}

/// What a search for a victim accepts.
#[derive(Clone, Copy, Debug)]
struct Search<'c> {
    moment: Moment<'c>,
    sparse: Sparse,
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

/// A block's queue and its place there.
type Position = (Queue, usize);

/// The number of blocks that a decision examines.
const WINDOW: usize = 512;
/// How many times that many are examined for items that are gone, when no writer waits.
const WINDOWS_IN_BACKGROUND: usize = 8;
/// The youngest blocks of a queue, which are examined for dead bytes in any case: items that are
/// replaced again and again die there.
const YOUNGEST: usize = 16;

impl Blocks {
    /// Chooses a victim and takes it out of its queue. A `sparse` block is preferred to the one
    /// that `policy` selects. Without a policy, no live items are evicted.
    ///
    /// Only some blocks are examined; the next decision examines the next ones. If a writer is
    /// about to be refused, all are examined, unless nothing has changed since they last were.
    pub(crate) fn choose_victim(
        &self,
        moment: Moment<'_>,
        sparse: Sparse,
        policy: Option<&S3Fifo>,
    ) -> Option<Victim> {
        let mut pool = self.pool();
        let all = pool.places().div_ceil(WINDOW);
        let windows = match (policy, sparse) {
            (Some(_), _) => 1,
            (None, Sparse::None) => all.min(WINDOWS_IN_BACKGROUND),
            (None, _) => all,
        };
        let search = Search { moment, sparse };
        let found = if self.is_in_vain(&pool, search) {
            None
        } else {
            let is_of_all = windows >= all;
            if is_of_all && sparse == Sparse::Wasteful {
                // Relaxed, here and below: a hint. A block that becomes sparse at this moment may
                // go unnoticed until it loses another item, or until the next second.
                self.has_sparse.store(false, Ordering::Relaxed);
            }
            let found = (0..windows).find_map(|_| self.search_window(&mut pool, search));
            if found.is_some() {
                // There may be more.
                self.note_sparse();
            } else if is_of_all {
                pool.none_gone_at = Some((moment.now, moment.flushes));
            }
            found
        };
        let ((queue, place), reason) =
            found.or_else(|| Some((self.oldest(&pool, policy?)?, Reason::Evicted)))?;
        let block = pool.queues[queue as usize].take(place)?;
        let meta = &self.metas[block as usize];
        Some(Victim {
            block,
            queue,
            reason,
            head: meta.head(),
            tail: meta.tail(),
        })
    }

    /// Returns a victim to the front of its queue. The policy has gone through the items before
    /// `head`.
    pub(crate) fn put_back(&self, victim: Victim, head: usize) {
        let mut pool = self.pool();
        self.metas[victim.block as usize].set_head(head);
        pool.queues[victim.queue as usize].push_front(victim.block);
    }

    /// Whether all blocks were searched like this before, and nothing has changed since.
    fn is_in_vain(&self, pool: &Pool, search: Search<'_>) -> bool {
        pool.none_gone_at == Some((search.moment.now, search.moment.flushes))
            && match search.sparse {
                Sparse::None => true,
                Sparse::Wasteful => !self.has_sparse.load(Ordering::Relaxed),
                Sparse::WithDeadBytes => false,
            }
    }

    /// Searches the next blocks.
    fn search_window(&self, pool: &mut Pool, search: Search<'_>) -> Option<(Position, Reason)> {
        let total = pool.places();
        let from = pool.cursor;
        pool.cursor = (from + WINDOW.min(total)).checked_rem(total).unwrap_or(0);
        let pool = &*pool;
        let window = (from..from + WINDOW.min(total)).map(|at| pool.position(at % total));
        let youngest = Queue::ALL.into_iter().flat_map(|queue| {
            let places = pool.queues[queue as usize].places();
            (places.saturating_sub(YOUNGEST)..places).map(move |place| (queue, place))
        });
        let positions = window.chain(youngest);
        let blocks = || {
            positions.clone().filter_map(|(queue, place)| {
                let block = pool.queues[queue as usize].get(place)?;
                Some((&self.metas[block as usize], (queue, place)))
            })
        };
        let expired = blocks()
            .filter(|(meta, _)| meta.is_gone(search.moment))
            .filter(|(meta, at)| self.close(pool, meta, *at))
            // Each of these frees a whole block; this one takes the least work.
            .min_by_key(|(meta, _)| meta.tail());
        if let Some((_, at)) = expired {
            return Some((at, Reason::Expired));
        }
        // The policy is going through a block with a head. If its items moved, they would be the
        // youngest of their queue.
        let whole = blocks().filter(|(meta, _)| meta.head() == 0);
        let sparse = match search.sparse {
            Sparse::None => None,
            Sparse::Wasteful => whole
                .filter(|(meta, _)| meta.is_complete() && self.is_sparse(meta))
                .min_by_key(|(meta, _)| meta.live_bytes()),
            Sparse::WithDeadBytes => whole
                .filter(|(meta, _)| !meta.is_pending() && meta.dead_bytes() > 0)
                .max_by_key(|(meta, _)| meta.dead_bytes())
                .filter(|(meta, at)| self.close(pool, meta, *at)),
        };
        sparse.map(|(_, at)| (at, Reason::Sparse))
    }

    /// The oldest block of the queue that the policy prefers, if no writer is pending in it.
    fn oldest(&self, pool: &Pool, policy: &S3Fifo) -> Option<Position> {
        let bytes = Queue::ALL.map(|queue| self.queue_bytes(pool, queue));
        policy.eviction_order(bytes).into_iter().find_map(|queue| {
            let blocks = &pool.queues[queue as usize];
            (0..blocks.places()).find_map(|place| {
                let meta = &self.metas[blocks.get(place)? as usize];
                self.close(pool, meta, (queue, place))
                    .then_some((queue, place))
            })
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::budget::Budget;
    use crate::ms_clock::MsClock;
    use forerun_core::Pages;
    use std::sync::Arc;

    /// Blocks in use, all sealed and full of live items.
    fn full_blocks(count: u32) -> Blocks {
        let budget = Arc::new(Budget::new(64 << 30));
        let blocks = Blocks::new(Pages::Small, &budget, 64 << 30, usize::MAX, 0.25).unwrap();
        let mut pool = blocks.pool();
        for block in 0..count {
            let queue = Queue::ALL[block as usize % 2];
            let meta = &blocks.metas[block as usize];
            meta.reset(queue, 0);
            meta.try_allocate(1 << 20, 1 << 20);
            meta.add_live(1 << 20, 0, 1);
            meta.finish_write();
            meta.seal();
            pool.queues[queue as usize].push_back(block);
        }
        drop(pool);
        blocks
    }

    fn choose(blocks: &Blocks, now: u32, policy: Option<&S3Fifo>) -> Option<Victim> {
        let clock = &MsClock::new(false);
        let moment = Moment {
            now,
            flushes: 1,
            clock,
        };
        blocks.choose_victim(moment, Sparse::Wasteful, policy)
    }

    #[test]
    fn a_decision_examines_a_window_and_a_round_of_them_every_block() {
        const BLOCKS: u32 = 60_000;
        let blocks = full_blocks(BLOCKS);
        let policy = S3Fifo::new(1 << 20, Pages::Small).unwrap();
        // Sparse, and far from the beginning of the first search.
        blocks.metas[BLOCKS as usize / 3].remove_live(1 << 19);
        blocks.note_sparse();
        let mut decisions = 0;
        let sparse = loop {
            let before = blocks.pool().cursor;
            let victim = choose(&blocks, decisions, Some(&policy)).unwrap();
            decisions += 1;
            if victim.reason == Reason::Sparse {
                break victim.block;
            }
            let examined = blocks.pool().cursor.wrapping_sub(before);
            assert_eq!(examined, WINDOW);
            assert!(decisions < BLOCKS / WINDOW as u32 + 2);
        };
        assert_eq!(sparse, BLOCKS / 3);
        assert!(decisions > 10, "{decisions}");
    }

    #[test]
    fn all_blocks_are_examined_for_a_refused_writer_once_until_something_changes() {
        let blocks = full_blocks(20_000);
        let choose = |now| choose(&blocks, now, None);
        assert!(choose(1).is_none());
        let cursor = blocks.pool().cursor;
        assert!(choose(1).is_none());
        assert_eq!(blocks.pool().cursor, cursor, "nothing is examined");
        blocks.metas[777].remove_live(1 << 19);
        blocks.note_sparse();
        assert_eq!(choose(1).map(|victim| victim.block), Some(777));
        assert!(choose(1).is_none());
        // Another second has come, in which a block may be gone.
        blocks.metas[888].reset(Queue::Small, 0);
        blocks.metas[888].add_live(100, 2, 1);
        assert!(choose(1).is_none());
        assert_eq!(choose(2).map(|victim| victim.block), Some(888));
    }
}
