//! The one way in which items are written: decide by what is there, write aside, publish if it is still so.
//!
//! ```text
//!   pin ─ find ─ decide ─ write into a block ─ lock segment ─ find again ─┬─ the same: publish
//!                                                                         └─ changed: give up what was written, and again
//! ```
//!
//! Nothing is copied under a lock, and nothing is waited for under a pin: where memory lacks, the attempt is given up, room is
//! made, and another one begins.

use crate::blocks::record::{FETCHED, NewRecord, NewValue, Record, len_of, size_bytes};
use crate::blocks::{Queue, Requester};
use crate::cache::Cache;
use crate::epoch::Pinned;
use crate::evict::RemovalCause;
use crate::index::bucket::ItemRef;
use crate::index::place::Place;
use crate::page_runs::AllocError;
use crate::reclaim::Need;
use crate::stats::Count;
use crate::value::LargeValue;
use std::borrow::Cow;
use std::sync::Arc;

/// Something that is asked of an item, which may end in a new one.
pub(crate) trait Operation {
    /// What is answered if nothing is written.
    type Answer;

    /// What happens where memory lacks.
    const ON_SHORTAGE: OnShortage = OnShortage::MakeRoom;

    /// Decides by the item that is there, if it has neither expired nor been flushed.
    fn decide<'x>(&'x self, found: Option<Record<'x>>) -> Decision<'x, Self::Answer>;
}

/// What a request does where memory lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnShortage {
    /// It makes room, for which any item may have to leave: the one that is there, too.
    MakeRoom,
    /// It ends: there is something else to be done.
    GiveUp,
}

/// What to do.
pub(crate) enum Decision<'x, A> {
    /// Nothing.
    Answer(A),
    /// Write a new item.
    Write(NewItem<'x>),
}

/// An item to be written.
pub(crate) struct NewItem<'x> {
    pub(crate) value: NewBody<'x>,
    pub(crate) flags: u32,
    pub(crate) expiry: u32,
    pub(crate) marks: u8,
    /// `None`: one that no item had.
    pub(crate) cas: Option<u64>,
    /// It is right whatever is there meanwhile.
    pub(crate) is_unconditional: bool,
}

/// The value of it.
pub(crate) enum NewBody<'x> {
    /// In pieces, one behind the other.
    Parts(Cow<'x, [&'x [u8]]>),
    Owned(Vec<u8>),
    /// In a mapping already.
    Large(Arc<LargeValue>),
}

/// What became of it.
pub(crate) enum Outcome<A> {
    Answer(A),
    Written { cas: u64 },
    OutOfMemory,
}

/// Why an attempt was given up.
enum Obstacle {
    /// The item changed meanwhile.
    Changed,
    NoMemory(Need),
    /// The index has no room there, in a segment of this depth.
    NoSlot {
        depth: u32,
    },
    /// The system gives no mapping.
    NoMapping,
}

/// What one attempt tells the next.
#[derive(Default)]
struct Attempts {
    /// Whether the key was among the ghosts, once that was asked.
    was_ghost: Option<bool>,
    /// A large value, and what it was made by: kept, lest making room for the item take the room of its value.
    large: Option<(Option<Version>, Arc<LargeValue>)>,
    /// Bytes of a block that the item took.
    written_bytes: usize,
}

impl Cache {
    /// Does what a request decides.
    pub(crate) fn update<D: Operation>(&self, key: &[u8], request: &D) -> Outcome<D::Answer> {
        let hash = self.hasher.hash(key);
        let mut attempts = Attempts::default();
        loop {
            let obstacle = {
                let pinned = self.epochs.pin();
                match self.try_update(&pinned, key, hash, request, &mut attempts) {
                    Ok(outcome) => {
                        drop(pinned);
                        self.reclaim_ahead(attempts.written_bytes);
                        return outcome;
                    }
                    Err(obstacle) => obstacle,
                }
            };
            match obstacle {
                Obstacle::Changed => {}
                _ if D::ON_SHORTAGE == OnShortage::GiveUp => return Outcome::OutOfMemory,
                Obstacle::NoSlot { depth } if self.grow_index(hash, depth) => {}
                Obstacle::NoMemory(need) if self.make_room(need) => {}
                Obstacle::NoSlot { .. } | Obstacle::NoMemory(_) | Obstacle::NoMapping => {
                    self.epochs.pin().counters().add(Count::OutOfMemory, 1);
                    return Outcome::OutOfMemory;
                }
            }
        }
    }

    fn try_update<D: Operation>(
        &self,
        pinned: &Pinned<'_>,
        key: &[u8],
        hash: u64,
        request: &D,
        attempts: &mut Attempts,
    ) -> Result<Outcome<D::Answer>, Obstacle> {
        let moment = self.moment();
        let seen = self.find(pinned, hash, key);
        let live = seen.filter(|(_, record)| !record.is_gone(moment));
        let before = live.map(|(item, record)| Version::of(item, record));
        let new = match request.decide(live.map(|(_, record)| record)) {
            Decision::Answer(answer) => return Ok(Outcome::Answer(answer)),
            Decision::Write(new) => new,
        };
        let owned;
        let parts: &[&[u8]] = match &new.value {
            NewBody::Parts(parts) => parts,
            NewBody::Owned(bytes) => {
                owned = [&bytes[..]];
                &owned
            }
            NewBody::Large(_) => &[],
        };
        let large = match (&new.value, attempts.large.take()) {
            (NewBody::Large(value), _) => Some(Arc::clone(value)),
            (_, Some((by, value))) if new.is_unconditional || by == before => Some(value),
            _ => self.large_if_needed(key, parts)?,
        };
        attempts.large = large.as_ref().map(|value| (before, Arc::clone(value)));
        let (queue, frequency) = match live {
            Some((item, record)) => (self.blocks.class_and_queue(item).1, record.frequency()),
            None => {
                let was_ghost = *attempts
                    .was_ghost
                    .get_or_insert_with(|| self.ghosts.take(hash));
                (if was_ghost { Queue::Main } else { Queue::Small }, 0)
            }
        };
        let now = moment.now;
        let cas = new.cas.unwrap_or_else(|| self.next_cas());
        let record = NewRecord {
            key,
            value: large
                .as_ref()
                .map_or(NewValue::Parts(parts), NewValue::Large),
            cas,
            flags: new.flags,
            expiry: new.expiry,
            accessed: now,
            marks: new.marks,
            frequency,
            generation: moment.generation(),
        };
        let class = self.blocks.class(new.expiry, now);
        let lacks_block = Obstacle::NoMemory(Need::Block);
        let allocation = self
            .blocks
            .write(queue, class, &record, Requester::Writer)
            .ok_or(lacks_block)?;
        let (item, written) = (allocation.item, self.record(pinned, allocation.item));

        let place = Place::new(hash);
        let mut locked = self.index.lock(pinned, hash);
        let matches = |item| self.record(pinned, item).key() == key;
        let current = locked.segment().find(place, matches);
        let now_there = current
            .map(|(_, item)| (item, self.record(pinned, item)))
            .filter(|(_, record)| !record.is_gone(moment))
            .map(|(item, record)| Version::of(item, record));
        // A flush since it was decided: the item would be gone, and must not take the place of a newer one.
        let is_flushed = self.flushes.count() != moment.flushes;
        if is_flushed || (!new.is_unconditional && now_there != before) {
            drop(locked);
            self.blocks.finish_write(allocation);
            return Err(Obstacle::Changed);
        }
        let slot_ref = match current {
            Some((slot_ref, _)) => slot_ref,
            None => match locked.free_slot_for(place) {
                Some(slot_ref) => slot_ref,
                None => {
                    let depth = locked.segment().depth();
                    drop(locked);
                    self.blocks.finish_write(allocation);
                    return Err(Obstacle::NoSlot { depth });
                }
            },
        };
        self.blocks.mark_live(item, written, moment.flushes);
        let counters = pinned.counters();
        // Before anybody can find the item: who has found it and then flushes must not take it that nothing was stored.
        counters.add(Count::Stored, 1);
        match current {
            Some(_) => locked.replace(slot_ref, item),
            None => locked.fill(slot_ref, place, item),
        }
        // The item has a share of its own now. Nobody takes it from there before the lock is free.
        if let Some(value) = large {
            std::mem::forget(value);
        }
        drop(locked);
        self.blocks.finish_write(allocation);
        counters.add_item(moment.flushes, written.size_bytes());
        attempts.written_bytes = written.size_bytes();
        if let Some((_, old)) = current {
            self.retire_item(pinned, old, RemovalCause::Removed);
        }
        Ok(Outcome::Written { cas })
    }

    /// The value in pages of its own, if it is too large for a block.
    fn large_if_needed(
        &self,
        key: &[u8],
        parts: &[&[u8]],
    ) -> Result<Option<Arc<LargeValue>>, Obstacle> {
        let len_bytes = len_of(parts);
        if size_bytes(key.len(), len_bytes) <= self.blocks.item_bytes_max() {
            return Ok(None);
        }
        let mut large =
            LargeValue::zeroed(&self.runs, len_bytes).map_err(|refused| match refused {
                AllocError::Limit => Obstacle::NoMemory(Need::Large(len_bytes)),
                AllocError::System(_) => Obstacle::NoMapping,
            })?;
        let mut rest = large.bytes_mut();
        for part in parts {
            let (here, behind) = rest.split_at_mut(part.len());
            here.copy_from_slice(part);
            rest = behind;
        }
        Ok(Some(Arc::new(large)))
    }
}

/// What may change of an item that a decision was made by.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Version {
    item: ItemRef,
    /// Between two attempts nothing is pinned: another item of the key may lie at the same place.
    cas: u64,
    expiry: u32,
    marks: u8,
}

impl Version {
    fn of(item: ItemRef, record: Record<'_>) -> Version {
        Version {
            item,
            cas: record.cas(),
            expiry: record.expiry(),
            // That somebody asked for it decides nothing.
            marks: record.marks() & !FETCHED,
        }
    }
}
