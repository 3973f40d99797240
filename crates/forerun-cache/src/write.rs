//! The single write path: make a decision about the current item, write the new item elsewhere, and
//! publish it if nothing has changed.
//!
//! ```text
//!   pin ─ find ─ decide ─ write into a block ─ lock segment ─ find again ─┬─ the same: publish
//!                                                                         └─ changed: abandon what was written, retry
//! ```
//!
//! Nothing is copied under a lock, and nothing waits under a pin: when memory runs out, the writer
//! gives up the attempt, frees memory, and starts again.

use crate::blocks::Requester;
use crate::blocks::item_layout::{NewRecord, NewValue, Record, len_of, size_bytes};
use crate::blocks::item_word::{FETCHED, ItemWord};
use crate::cache::Cache;
use crate::epoch::Pinned;
use crate::eviction::Queue;
use crate::expiry::Deadline;
use crate::index::item_bucket::ItemRef;
use crate::index::key_buckets::KeyBuckets;
use crate::index::segment::LockedSegment;
use crate::item_kind::ItemKind;
use crate::page_runs::AllocError;
use crate::reclaim::Shortage;
use crate::stats::Count;
use crate::unlink::RemovalCause;
use crate::value::LargeValue;
use std::borrow::Cow;
use std::sync::Arc;

/// An operation on an item that may write a new one.
pub(crate) trait Operation {
    /// The result if nothing is written.
    type Answer;

    /// The behavior when memory runs out.
    const ON_SHORTAGE: OnShortage = OnShortage::MakeRoom;

    /// Whether it makes the same decision about the same item again.
    const IS_REPEATABLE: bool = true;

    /// Makes a decision about the current item. `None` means that there is no item, or that it has
    /// expired or was flushed.
    fn decide<'x>(&'x self, found: Option<Record<'x>>) -> Decision<'x, Self::Answer>;
}

/// The behavior of an operation when memory runs out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnShortage {
    /// It frees memory, which may evict any item, including the current one.
    MakeRoom,
    /// It ends, because its caller has an alternative.
    GiveUp,
}

/// The decision of an operation.
pub(crate) enum Decision<'x, A> {
    /// Write nothing.
    Answer(A),
    /// Write a new item.
    Write(NewItem<'x>),
    /// Change the item that was found without writing.
    Change(InPlace<A>),
}

/// A change of an item that writes no new one.
pub(crate) enum InPlace<A> {
    /// Removes it, then gives this answer.
    Remove(A),
    /// Gives it another deadline, then answers.
    Expire(Deadline, fn(Touched) -> A),
}

/// An item to be written.
pub(crate) struct NewItem<'x> {
    pub(crate) value: NewBody<'x>,
    pub(crate) flags: u32,
    pub(crate) kind: ItemKind,
    pub(crate) deadline: Deadline,
    pub(crate) marks: u8,
    /// `None` means a number that no item has had.
    pub(crate) cas: Option<u64>,
    /// Whether it replaces any item that exists by then.
    pub(crate) is_unconditional: bool,
}

/// The value of a new item.
pub(crate) enum NewBody<'x> {
    /// Several pieces, stored one after another.
    Parts(Cow<'x, [&'x [u8]]>),
    Bytes(&'x [u8]),
    Owned(Vec<u8>),
    /// A value already in a page run.
    Large(Arc<LargeValue>),
    /// Another item's value, to be copied.
    Copied(Arc<LargeValue>),
}

/// The outcome of an operation.
pub(crate) enum Outcome<A> {
    Answer(A),
    Written { cas: u64 },
    OutOfMemory,
}

/// An item whose deadline was changed in place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Touched {
    pub(crate) cas: u64,
    pub(crate) deadline: Deadline,
    /// Whether it is in a block of its new TTL class.
    pub(crate) is_at_home: bool,
}

/// Why an attempt failed.
enum Obstacle {
    /// Another thread changed the item.
    Changed,
    NoMemory(Shortage),
    /// There is no memory for an item in a block. The item replaces one that has
    /// `replaced_bytes` there, or none.
    NoBlock {
        bytes: usize,
        replaced_bytes: usize,
    },
    /// The index has no free slot, in a segment of this depth.
    NoSlot {
        depth: u32,
    },
    /// The system cannot provide another mapping.
    NoMapping,
}

/// After so many changes by other threads, an edit locks the item's segment before it looks at the
/// item, and copies its value under the lock. Otherwise a slow edit of a long value could go on
/// failing, and each failure leaves dead bytes.
const CHANGES_MAX: u32 = 8;

/// State that is kept from one attempt to the next.
#[derive(Default)]
struct Attempts {
    /// The queue that a new item joins. The policy is asked once.
    admitted_to: Option<Queue>,
    /// The frequency of an edited item, before the eviction of others raises it.
    frequency: Option<u8>,
    /// A large value, and the version it was made from. It is kept between attempts, so that making
    /// room for the item does not cost the memory of its value.
    large: Option<(Option<Version>, Arc<LargeValue>)>,
    /// Bytes that the item took in a block.
    written_bytes: usize,
    /// Whether there is no memory for an item that is new or longer than the one that it replaces.
    is_full: bool,
    /// How often another thread has changed the item.
    changes: u32,
}

impl Cache {
    /// Carries out an operation.
    pub(crate) fn update<D: Operation>(&self, key: &[u8], operation: &D) -> Outcome<D::Answer> {
        self.catch_up();
        let hash = self.hasher.hash(key);
        let mut attempts = Attempts::default();
        let edited = (!D::IS_REPEATABLE).then_some((hash, key));
        loop {
            let attempt = {
                // A replacement may take memory that an evacuation counts on.
                let _no_evacuation = attempts.is_full.then(|| self.finish_evacuation());
                let pinned = self.epochs.pin();
                self.try_update(&pinned, key, hash, operation, &mut attempts)
            };
            let obstacle = match attempt {
                Ok(outcome) => {
                    self.reclaim_ahead(attempts.written_bytes);
                    return outcome;
                }
                Err(obstacle) => obstacle,
            };
            match obstacle {
                Obstacle::Changed => attempts.changes += 1,
                _ if D::ON_SHORTAGE == OnShortage::GiveUp => return Outcome::OutOfMemory,
                Obstacle::NoSlot { depth } if self.grow_index(hash, depth) => {}
                Obstacle::NoMemory(need) if self.reclaim(need, edited) => {}
                Obstacle::NoBlock { .. }
                    if !attempts.is_full && self.reclaim(Shortage::Block, edited) => {}
                // The item itself may have been evicted in the meantime.
                Obstacle::NoBlock {
                    bytes,
                    replaced_bytes,
                } if bytes <= replaced_bytes
                    && (!std::mem::replace(&mut attempts.is_full, true)
                        || self.reclaim(Shortage::Replacement(bytes), edited)) => {}
                Obstacle::NoSlot { .. }
                | Obstacle::NoMemory(_)
                | Obstacle::NoBlock { .. }
                | Obstacle::NoMapping => {
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
        operation: &D,
        attempts: &mut Attempts,
    ) -> Result<Outcome<D::Answer>, Obstacle> {
        // Until the new item is published, nobody else changes the old one.
        let locks = !D::IS_REPEATABLE && attempts.changes >= CHANGES_MAX;
        let locked = locks.then(|| self.index.lock(pinned, hash));
        let moment = self.moment();
        let seen = self.find(pinned, hash, key);
        let live = seen.filter(|(_, record)| !record.is_gone(moment));
        let before = live.map(|(item, record)| Version::of(item, record));
        let new = match operation.decide(live.map(|(_, record)| record)) {
            Decision::Answer(answer) => return Ok(Outcome::Answer(answer)),
            Decision::Write(new) => new,
            Decision::Change(change) => {
                let answer = self.change_in_place(pinned, hash, before, change, locked)?;
                return Ok(Outcome::Answer(answer));
            }
        };
        let owned;
        let parts: &[&[u8]] = match &new.value {
            NewBody::Parts(parts) => parts,
            NewBody::Bytes(bytes) => {
                owned = [*bytes];
                &owned
            }
            NewBody::Owned(bytes) => {
                owned = [&bytes[..]];
                &owned
            }
            NewBody::Copied(value) => {
                owned = [value.bytes()];
                &owned
            }
            NewBody::Large(_) => &[],
        };
        // The value of another decision gives its memory back before the next one takes memory.
        let kept = attempts
            .large
            .take()
            .filter(|(by, _)| new.is_unconditional || (D::IS_REPEATABLE && *by == before));
        let large = match (&new.value, kept) {
            (NewBody::Large(value), _) => Some(Arc::clone(value)),
            (_, Some((_, value))) => Some(value),
            (_, None) => self.large_if_needed(key, parts)?,
        };
        attempts.large = large.as_ref().map(|value| (before, Arc::clone(value)));
        let (queue, frequency) = match live {
            Some((item, record)) => {
                let frequency = if D::IS_REPEATABLE {
                    record.frequency()
                } else {
                    // It was read in order to be edited.
                    *attempts
                        .frequency
                        .get_or_insert(record.frequency_after_access())
                };
                (self.blocks.class_and_queue(item).1, frequency)
            }
            None => {
                let admit = || self.policy.admit(hash);
                (*attempts.admitted_to.get_or_insert_with(admit), 0)
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
            kind: new.kind,
            deadline: new.deadline,
            accessed: now,
            marks: new.marks,
            frequency,
            generation: moment.generation(),
        };
        let class = self.blocks.ttl_class(new.deadline, now);
        let bytes = record.size_bytes();
        let replaced_bytes = live.map_or(0, |(_, replaced)| replaced.size_bytes());
        let requester = if attempts.is_full && bytes <= replaced_bytes {
            Requester::Replacement
        } else {
            Requester::Writer
        };
        let allocation =
            self.blocks
                .write(queue, class, &record, requester)
                .ok_or(Obstacle::NoBlock {
                    bytes,
                    replaced_bytes,
                })?;
        let (item, written) = (allocation.item, self.record(pinned, allocation.item));

        let key_buckets = KeyBuckets::new(hash);
        let mut locked = locked.unwrap_or_else(|| self.index.lock(pinned, hash));
        let matches = |item| self.record(pinned, item).key() == key;
        let current = locked.segment().find(key_buckets, matches);
        let now_there = current
            .map(|(_, item)| (item, self.record(pinned, item)))
            .filter(|(_, record)| !record.is_gone(moment))
            .map(|(item, record)| Version::of(item, record));
        // If the cache was flushed since the decision, the new item would be invisible and must not
        // replace a newer one.
        let is_flushed = self.flushes.count() != moment.flushes;
        if is_flushed || (!new.is_unconditional && now_there != before) {
            drop(locked);
            self.blocks.finish_write(allocation);
            return Err(Obstacle::Changed);
        }
        let slot_ref = match current {
            Some((slot_ref, _)) => slot_ref,
            None => match locked.free_slot_for(key_buckets) {
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
        let item_bytes = written.size_bytes() + written.large_len();
        let counters = pinned.counters();
        // Count it before any thread can find the item. Otherwise a thread that finds the item and
        // then flushes could conclude that nothing was stored.
        counters.add(Count::Stored, 1);
        match current {
            Some(_) => locked.replace(slot_ref, item),
            None => locked.fill(slot_ref, key_buckets, item),
        }
        // The share now belongs to the item. No thread can take it before the lock is released.
        if let Some(value) = large {
            std::mem::forget(value);
        }
        drop(locked);
        self.blocks.finish_write(allocation);
        counters.add_item(moment.flushes, item_bytes);
        self.count_in_keyspace(pinned, moment.flushes, key, 1);
        attempts.written_bytes = written.size_bytes();
        if let Some((_, old)) = current {
            self.retire_item(pinned, old, RemovalCause::Removed);
        }
        Ok(Outcome::Written { cas })
    }

    /// Removes the item that a decision was based on, or changes its deadline.
    #[inline(never)]
    fn change_in_place<'p, A>(
        &self,
        pinned: &'p Pinned<'_>,
        hash: u64,
        before: Option<Version>,
        change: InPlace<A>,
        locked: Option<LockedSegment<'p>>,
    ) -> Result<A, Obstacle> {
        debug_assert!(before.is_some(), "only an item that was found changes");
        let before = before.ok_or(Obstacle::Changed)?;
        let mut locked = locked.unwrap_or_else(|| self.index.lock(pinned, hash));
        // The pin keeps the item's address from being reused.
        let matches = |item| item == before.item;
        let found = locked.segment().find(KeyBuckets::new(hash), matches);
        let (slot_ref, item) = found.ok_or(Obstacle::Changed)?;
        let record = self.record(pinned, item);
        // The moment is read under the lock, so that it is no earlier than that of the item's
        // writer.
        if Version::of(item, record) != before || record.is_gone(self.moment()) {
            return Err(Obstacle::Changed);
        }
        match change {
            InPlace::Remove(answer) => {
                self.unlink(pinned, &mut locked, slot_ref, item, RemovalCause::Removed);
                Ok(answer)
            }
            InPlace::Expire(deadline, answer) => {
                Ok(answer(self.set_deadline(pinned, &locked, item, deadline)))
            }
        }
    }

    /// Changes the deadline of an item in place, in the segment that the caller has locked.
    pub(crate) fn set_deadline(
        &self,
        pinned: &Pinned<'_>,
        _: &LockedSegment<'_>,
        item: ItemRef,
        deadline: Deadline,
    ) -> Touched {
        let record = self.record(pinned, item);
        // First, so that no thread takes the block for expired.
        self.blocks.extend(item, deadline);
        record.set_deadline(deadline);
        let (class, _) = self.blocks.class_and_queue(item);
        let now = self.now();
        Touched {
            cas: record.cas(),
            deadline,
            // An item that expires at once may stay anywhere: its memory is reclaimed either way.
            is_at_home: class == self.blocks.ttl_class(deadline, now)
                || (1..=now).contains(&deadline.second),
        }
    }

    /// Copies the value to a page run if it is too large for a block.
    #[inline(always)]
    fn large_if_needed(
        &self,
        key: &[u8],
        parts: &[&[u8]],
    ) -> Result<Option<Arc<LargeValue>>, Obstacle> {
        let len_bytes = len_of(parts);
        if size_bytes(key.len(), len_bytes) <= self.blocks.item_bytes_max() {
            return Ok(None);
        }
        self.large_of(parts, len_bytes).map(Some)
    }

    /// Copies a value to a page run.
    fn large_of(&self, parts: &[&[u8]], len_bytes: usize) -> Result<Arc<LargeValue>, Obstacle> {
        let mut large =
            LargeValue::zeroed(&self.runs, len_bytes).map_err(|refused| match refused {
                AllocError::Limit => Obstacle::NoMemory(Shortage::Large(len_bytes)),
                AllocError::System(_) => Obstacle::NoMapping,
            })?;
        let mut remaining = large.bytes_mut();
        for part in parts {
            let (here, after) = remaining.split_at_mut(part.len());
            here.copy_from_slice(part);
            remaining = after;
        }
        Ok(Arc::new(large))
    }
}

/// Identifies the item that a decision was based on.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Version {
    item: ItemRef,
    /// Nothing is pinned between attempts, so another item of the same key may be at the same
    /// address.
    cas: u64,
    /// Whether the item was read makes no difference.
    unread: ItemWord,
}

impl Version {
    fn of(item: ItemRef, record: Record<'_>) -> Version {
        Version {
            item,
            cas: record.cas(),
            unread: record.word().without_mark(FETCHED),
        }
    }
}
