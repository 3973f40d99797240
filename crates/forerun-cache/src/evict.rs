//! Empties blocks: live items are evicted or moved to another block, and the block is retired.
//!
//! ```text
//!   victim   │ item │ item │ item │ … tail           chosen by `blocks/victim.rs`; the eviction policy decides its items' fate
//!               │      │      └─▶ dead, or expired: unlinked
//!               │      └─▶ moved to a block of the small or the main queue
//!               └─▶ evicted: unlinked
//! ```
//!
//! Writers empty a block in small steps. Any writer may do the next step. A block may point to
//! large values of many times its own length, so the policy is asked again after every block's
//! length of items.

use crate::blocks::victim::{Evacuation, Reason, Sparse, Victim};
use crate::cache::Cache;
use crate::epoch::Pinned;
use crate::eviction::{EvictionDecision, S3Fifo};
use crate::index::item_bucket::ItemRef;
use crate::index::key_buckets::KeyBuckets;
use crate::limbo::Garbage;
use crate::options::WhenFull;
use crate::stats::Count;
use crate::unlink::RemovalCause;

/// How many items ahead the index is prefetched.
const AHEAD: usize = 8;

/// How far a step has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The block is empty and retired.
    Done,
    /// The quantum ended at this offset, after this many bytes.
    Paused { offset: usize, bytes: usize },
    /// There is no memory for an item that must not be evicted.
    Stuck,
}

impl Cache {
    /// Goes through about `quantum_bytes` of blocks. `false`: no block could be emptied. The caller
    /// is not pinned.
    pub(crate) fn evict(&self, current: &mut Option<Evacuation>, quantum_bytes: usize) -> bool {
        let policy = match self.options().when_full {
            WhenFull::Evict => Some(&self.policy),
            WhenFull::Refuse => None,
        };
        self.empty_some(current, Sparse::Wasteful, policy, quantum_bytes)
            // No block could be compacted. The policy may still evict.
            || (policy.is_some()
                && self.empty_some(current, Sparse::None, policy, quantum_bytes))
    }

    /// Goes through about `quantum_bytes` of a block that has dead bytes, however few. `false`: no
    /// block could be compacted. Nothing is evicted.
    pub(crate) fn compact(&self, current: &mut Option<Evacuation>, quantum_bytes: usize) -> bool {
        self.empty_some(current, Sparse::WithDeadBytes, None, quantum_bytes)
    }

    fn empty_some(
        &self,
        current: &mut Option<Evacuation>,
        sparse: Sparse,
        policy: Option<&S3Fifo>,
        quantum_bytes: usize,
    ) -> bool {
        let choose = || {
            let victim = self.blocks.choose_victim(self.moment(), sparse, policy)?;
            Some(Evacuation::new(victim))
        };
        let Some(mut evacuation) = current.take().or_else(choose) else {
            return false;
        };
        let victim = evacuation.victim;
        match self.empty(victim, evacuation.offset, quantum_bytes) {
            Step::Done => {}
            Step::Paused { offset, bytes } => {
                evacuation.offset = offset;
                evacuation.bytes += bytes;
                let is_over = evacuation.bytes >= self.blocks.len_bytes();
                if victim.reason == Reason::Evicted && is_over {
                    self.blocks.put_back(victim, offset);
                } else {
                    *current = Some(evacuation);
                }
            }
            Step::Stuck => {
                self.blocks.put_back(victim, victim.head);
                return false;
            }
        }
        true
    }

    /// Empties at most `blocks_max` blocks whose items have all expired or were flushed.
    pub(crate) fn reclaim_expired(&self, blocks_max: usize) {
        for _ in 0..blocks_max {
            if !self.empty_some(&mut None, Sparse::None, None, usize::MAX) {
                break;
            }
        }
    }

    /// Goes through about `quantum_bytes` of a block whose items have all expired or were flushed,
    /// unless another thread is emptying a block.
    pub(crate) fn reclaim_some(&self, quantum_bytes: usize) {
        let Some(mut current) = self.try_lock_evacuation() else {
            return;
        };
        self.empty_some(&mut current, Sparse::None, None, quantum_bytes);
    }

    /// Goes through a part of a victim. At the victim's tail the block is retired.
    fn empty(&self, victim: Victim, from: usize, quantum_bytes: usize) -> Step {
        let pinned = self.epochs.pin();
        let mut end = from;
        // A block may point to many large values. They count too, so that no more of them are
        // evicted than necessary.
        let mut large_bytes = 0;
        let mut upcoming = self.blocks.items(victim, from).map(|(_, item)| item);
        for item in upcoming.by_ref().take(AHEAD) {
            self.prefetch_home(&pinned, item);
        }
        for (next, item) in self.blocks.items(victim, from) {
            if let Some(later) = upcoming.next() {
                self.prefetch_home(&pinned, later);
            }
            match self.evict_or_move(&pinned, victim, item) {
                Some(bytes) => large_bytes += bytes,
                None => return Step::Stuck,
            }
            end = next;
            if end - from + large_bytes >= quantum_bytes {
                break;
            }
        }
        if end < victim.tail {
            let bytes = end - from + large_bytes;
            return Step::Paused { offset: end, bytes };
        }
        pinned.counters().add(Count::BlocksReclaimed, 1);
        let garbage = Garbage::Block(victim.block);
        self.limbo
            .push(&self.epochs, garbage, self.blocks.len_bytes());
        Step::Done
    }

    /// Prefetches the index line that most likely holds an item of a victim.
    fn prefetch_home(&self, pinned: &Pinned<'_>, item: ItemRef) {
        let hash = self.hasher.hash(self.record(pinned, item).key());
        let segment = self.index.directory(pinned).segment(hash);
        segment.buckets()[KeyBuckets::new(hash).home].prefetch();
    }

    /// Removes an item of a victim or moves it to another block, unless it is dead already. Returns
    /// the bytes of its large value if the item was live. `None`: the item must not be evicted, and
    /// there is no memory to move it.
    fn evict_or_move(&self, pinned: &Pinned<'_>, victim: Victim, item: ItemRef) -> Option<usize> {
        let record = self.record(pinned, item);
        let hash = self.hasher.hash(record.key());
        let mut locked = self.index.lock(pinned, hash);
        let matches = |candidate| candidate == item;
        let Some((slot_ref, _)) = locked.segment().find(KeyBuckets::new(hash), matches) else {
            // The item is dead. If it had a large value, that is gone too.
            return Some(0);
        };
        let large_bytes = record.large_len();
        // Read under the lock, so that it is no earlier than the moment of the item's writer.
        let moment = self.moment();
        if record.is_gone(moment) {
            self.unlink(pinned, &mut locked, slot_ref, item, RemovalCause::Expired);
            return Some(large_bytes);
        }
        let bytes = record.size_bytes();
        let decision = match victim.reason {
            // Nothing is evicted here: the block is compacted, or the item's expiry was extended.
            Reason::Sparse | Reason::Expired => EvictionDecision::Move {
                queue: victim.queue,
                frequency: record.frequency(),
            },
            Reason::Evicted => self.policy.decision(victim.queue, record.frequency()),
        };
        let class = self.blocks.ttl_class(record.deadline(), moment.now);
        let moved = match decision {
            EvictionDecision::Evict => None,
            EvictionDecision::Move { queue, frequency } => {
                self.blocks.copy(queue, class, record, frequency)
            }
        };
        let Some(moved) = moved else {
            if victim.reason != Reason::Evicted {
                return None;
            }
            self.policy
                .on_evict(victim.queue, hash, bytes + large_bytes);
            let cause = RemovalCause::Evicted;
            self.unlink(pinned, &mut locked, slot_ref, item, cause);
            return Some(large_bytes);
        };
        let copy = self.record(pinned, moved.item);
        self.blocks.mark_live(moved.item, copy, moment.flushes);
        locked.replace(slot_ref, moved.item);
        self.blocks.mark_dead(item, record);
        self.blocks.finish_write(moved);
        pinned.counters().add(Count::MovedBytes, bytes as u64);
        Some(large_bytes)
    }

    /// Evicts the least frequently read item from the home bucket of a hash that finds no slot in
    /// the index.
    pub(crate) fn evict_resident(&self, hash: u64) {
        let pinned = self.epochs.pin();
        let mut locked = self.index.lock(&pinned, hash);
        let residents = locked.residents(KeyBuckets::new(hash));
        let frequency = |&(_, item): &(_, ItemRef)| self.record(&pinned, item).frequency();
        if let Some((slot_ref, item)) = residents.min_by_key(frequency) {
            let cause = RemovalCause::Evicted;
            self.unlink(&pinned, &mut locked, slot_ref, item, cause);
        }
    }
}
