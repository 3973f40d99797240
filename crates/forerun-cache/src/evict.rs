//! Emptying blocks: which items leave, and where the others go.
//!
//! ```text
//!   set ─▶ new ▶ ▶ ▶ ─┬─ was asked for ─▶ kept ▶ ▶ ▶ ─┬─ asked for again ─▶ kept, counted one less
//!    │      10 %      └─ was not ─▶ ghosts    90 %     └─ was not ─▶ gone
//!    └─ a ghost came back ─────────────────▶ kept
//! ```
//!
//! S3-FIFO (Yang, Zhang, Qiu, Yue and Rashmi, SOSP 2023) by blocks: the item whose turn it is in a queue is a whole block of them. Blocks
//! whose items have all expired come first, then those with much dead in them, whose live items are only put together.
//! Merging neighbouring blocks by frequency, as Segcache does, was the design before: on the traces at hand this one keeps what is
//! asked for longer. A block is gone through in small steps, each by whichever writer comes by.

use crate::blocks::record::FETCHED;
use crate::blocks::{Queue, Reason, Victim};
use crate::cache::Cache;
use crate::epoch::Pinned;
use crate::index::bucket::ItemRef;
use crate::index::place::Place;
use crate::index::segment::{LockedSegment, SlotRef};
use crate::limbo::Garbage;
use crate::options::WhenFull;
use crate::stats::Count;

/// Blocks with less alive than this share are worth putting together, while there are others to evict.
const SPARSE_BELOW: f64 = 0.75;
/// And where nothing may be evicted.
const SPARSE_BELOW_IF_REFUSING: f64 = 0.94;

/// Items of a victim whose place in the index is asked for ahead.
const AHEAD: usize = 8;

/// The block that is being emptied, and where.
#[derive(Debug, Default)]
pub(crate) struct Evictor {
    in_progress: Option<(Victim, usize)>,
}

/// Why an item leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RemovalCause {
    /// Somebody removed or replaced it.
    Removed,
    /// Or it was flushed.
    Expired,
    Evicted,
}

impl Cache {
    /// Goes through about `quantum_bytes` of blocks. `false`: there was none to go through. The caller has no pin.
    pub(crate) fn evict(&self, evictor: &mut Evictor, quantum_bytes: usize) -> bool {
        let (sparse_below, may_evict) = match self.options().when_full {
            WhenFull::Evict => (SPARSE_BELOW, true),
            WhenFull::Refuse => (SPARSE_BELOW_IF_REFUSING, false),
        };
        let choose_victim = || {
            let victim = self
                .blocks
                .choose_victim(self.moment(), sparse_below, may_evict)?;
            Some((victim, 0))
        };
        let Some((victim, from)) = evictor.in_progress.take().or_else(choose_victim) else {
            return false;
        };
        let end = self.empty(victim, from, quantum_bytes);
        if end < victim.tail {
            evictor.in_progress = Some((victim, end));
        }
        true
    }

    /// Empties blocks whose items have expired or were flushed, some of them at most.
    pub(crate) fn reclaim_expired(&self, blocks_max: usize) {
        for _ in 0..blocks_max {
            let Some(victim) = self.blocks.choose_victim(self.moment(), 0.0, false) else {
                break;
            };
            self.empty(victim, 0, usize::MAX);
        }
    }

    /// Goes through about `quantum_bytes` of blocks whose items have expired or were flushed, if nobody empties another one.
    pub(crate) fn reclaim_some(&self, quantum_bytes: usize) {
        let Ok(mut evictor) = self.evictor.try_lock() else {
            return;
        };
        if evictor.in_progress.is_none() {
            let victim = self.blocks.choose_victim(self.moment(), 0.0, false);
            evictor.in_progress = victim.map(|victim| (victim, 0));
        }
        if evictor.in_progress.is_some() {
            self.evict(&mut evictor, quantum_bytes);
        }
    }

    /// Goes through a part of a victim, and gives where it ended. At the victim's end its block is retired.
    fn empty(&self, victim: Victim, from: usize, quantum_bytes: usize) -> usize {
        let pinned = self.epochs.pin();
        let mut end = from;
        // A block holds many large values, which lie elsewhere: no more of them leave than have to.
        let mut large_bytes = 0;
        let mut coming = self.blocks.items(victim, from).map(|(_, item)| item);
        for item in coming.by_ref().take(AHEAD) {
            self.prefetch_home(&pinned, item);
        }
        for (next, item) in self.blocks.items(victim, from) {
            if let Some(later) = coming.next() {
                self.prefetch_home(&pinned, later);
            }
            large_bytes += self.evict_or_move(&pinned, victim, item);
            end = next;
            if end - from + large_bytes >= quantum_bytes {
                break;
            }
        }
        if end >= victim.tail {
            pinned.counters().add(Count::BlocksReclaimed, 1);
            let garbage = Garbage::Block(victim.block);
            self.limbo
                .push(&self.epochs, garbage, self.blocks.len_bytes());
        }
        end
    }

    /// Asks for the line of the index in which a victim's item mostly is.
    fn prefetch_home(&self, pinned: &Pinned<'_>, item: ItemRef) {
        let hash = self.hasher.hash(self.record(pinned, item).key());
        let segment = self.index.directory(pinned).segment(hash);
        segment.buckets()[Place::new(hash).home].prefetch();
    }

    /// An item of a victim is dead, or leaves, or goes to another block. Bytes of its large value, if it was alive and has one.
    fn evict_or_move(&self, pinned: &Pinned<'_>, victim: Victim, item: ItemRef) -> usize {
        let record = self.record(pinned, item);
        let hash = self.hasher.hash(record.key());
        let mut locked = self.index.lock(pinned, hash);
        let in_index = |candidate| candidate == item;
        let Some((slot_ref, _)) = locked.segment().find(Place::new(hash), in_index) else {
            // Its large value, if it had one, is gone.
            return 0;
        };
        let large_bytes = record.large_len();
        // Under the lock, so that it is no earlier than that of the item's writer.
        let moment = self.moment();
        if record.is_gone(moment) {
            self.unlink(pinned, &mut locked, slot_ref, item, RemovalCause::Expired);
            return large_bytes;
        }
        let frequency = record.frequency();
        let (stays, queue, frequency) = match (victim.reason, victim.queue) {
            // Nobody wants the item's room: it is put together with others, or its expiry was put off.
            (Reason::Sparse | Reason::Expired, queue) => (true, queue, frequency),
            (Reason::Oldest, Queue::Small) => (frequency > 0, Queue::Main, 0),
            (Reason::Oldest, Queue::Main) => {
                (frequency > 0, Queue::Main, frequency.saturating_sub(1))
            }
        };
        let class = self.blocks.class(record.expiry(), moment.now);
        let copy = || self.blocks.copy(queue, class, record, frequency);
        let Some(copied) = stays.then(copy).flatten() else {
            if victim.queue == Queue::Small {
                self.ghosts.insert(hash);
            }
            self.unlink(pinned, &mut locked, slot_ref, item, RemovalCause::Evicted);
            return large_bytes;
        };
        let copy = self.record(pinned, copied.item);
        self.blocks.mark_live(copied.item, copy, moment.flushes);
        locked.replace(slot_ref, copied.item);
        let bytes = record.size_bytes();
        self.blocks.mark_dead(item, bytes);
        self.blocks.finish_write(copied);
        pinned.counters().add(Count::MovedBytes, bytes as u64);
        large_bytes
    }

    /// Removes an item from the index, and sees to what it leaves behind.
    pub(crate) fn unlink(
        &self,
        pinned: &Pinned<'_>,
        locked: &mut LockedSegment<'_>,
        slot_ref: SlotRef,
        item: ItemRef,
        cause: RemovalCause,
    ) {
        locked.remove(slot_ref);
        self.retire_item(pinned, item, cause);
    }

    /// Sees to what an item leaves behind that was removed or replaced just now, by this caller.
    pub(crate) fn retire_item(&self, pinned: &Pinned<'_>, item: ItemRef, cause: RemovalCause) {
        let record = self.record(pinned, item);
        let bytes = record.size_bytes();
        self.blocks.mark_dead(item, bytes);
        if let Some(value) = self.blocks.take_large(record) {
            let garbage = Garbage::Large(value);
            self.limbo
                .push(&self.epochs, garbage, self.blocks.len_bytes());
        }
        let counters = pinned.counters();
        let moment = self.moment();
        if record.generation() == moment.generation() {
            counters.remove_item(moment.flushes, bytes);
        }
        let unfetched = u64::from(record.marks() & FETCHED == 0);
        match cause {
            RemovalCause::Removed => {}
            RemovalCause::Expired => {
                counters.add(Count::Expired, 1);
                counters.add(Count::ExpiredUnfetched, unfetched);
            }
            RemovalCause::Evicted => {
                counters.add(Count::Evictions, 1);
                counters.add(Count::EvictedUnfetched, unfetched);
            }
        }
    }

    /// Evicts the item that is asked for least in the home bucket of a hash that finds no room.
    pub(crate) fn evict_resident(&self, hash: u64) {
        let pinned = self.epochs.pin();
        let mut locked = self.index.lock(&pinned, hash);
        let residents = locked.residents(Place::new(hash));
        let frequency = |&(_, item): &(_, ItemRef)| self.record(&pinned, item).frequency();
        if let Some((slot_ref, item)) = residents.min_by_key(frequency) {
            self.unlink(&pinned, &mut locked, slot_ref, item, RemovalCause::Evicted);
        }
    }
}
