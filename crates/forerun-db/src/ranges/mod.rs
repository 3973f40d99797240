//! Range deletions.
//!
//! ```text
//!   blocks   [ 4096 tombstones ][ 512 ][ 64 ][ 16 ]   tail [ 5 ]        oldest first; a read searches all
//!                                                └─ 16 in the tail become a block;
//!                                                   two blocks of one size merge
//! ```
//!
//! One record deletes a range, however many keys are in it: its tombstone covers their versions
//! with smaller sequence numbers. Each memtable has its own tombstones. A flush writes them to a
//! run of their own (`tree/range_run.rs`). Flushes and compactions drop covered versions
//! (`tree/retain.rs`), and a run that is covered entirely is removed unread. A tombstone is
//! forgotten once every run that it could cover has been written with it applied.
//!
//! Tombstones arrive one at a time, while others read. A new one fills a slot of the tail, which
//! readers scan; blocks never change. Adding one of n tombstones costs log n steps amortized, and
//! readers take no lock. Tombstones may be added in any order; each reader sees only those up to
//! its sequence number.

mod block;
#[cfg(test)]
mod tests;

use forerun_core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use arc_swap::ArcSwap;
use forerun_core::sync::{Mutex, OnceLock, PoisonError};

use self::block::{Block, LEAF};
use crate::comparator::KeyOrder;

/// Deletes all keys from `start` up to `end`, which is excluded, as of `sequence`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RangeTombstone {
    pub(crate) start: Vec<u8>,
    pub(crate) end: Vec<u8>,
    pub(crate) sequence: u64,
}

/// A borrowed [`RangeTombstone`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RangeRef<'a> {
    pub(crate) start: &'a [u8],
    pub(crate) end: &'a [u8],
    pub(crate) sequence: u64,
}

/// Range tombstones, searched by key. They can be added while others read.
pub(crate) struct Ranges {
    order: KeyOrder,
    list: ArcSwap<List>,
    count: AtomicUsize,
    used_bytes: AtomicUsize,
    /// Held while adding.
    adding: Mutex<()>,
}

/// The tombstones of a [`Ranges`] at one time. New ones are added to its tail.
#[derive(Clone, Default)]
pub(crate) struct List {
    /// Oldest first.
    blocks: Vec<Arc<Block>>,
    tail: Arc<Tail>,
}

/// The newest tombstones. Slots are filled in order.
#[derive(Default)]
struct Tail([OnceLock<Slot>; LEAF]);

#[derive(Clone)]
struct Slot {
    /// Start, then end.
    keys: Box<[u8]>,
    start_len: usize,
    sequence: u64,
}

impl RangeTombstone {
    pub(crate) fn as_ref(&self) -> RangeRef<'_> {
        RangeRef {
            start: &self.start,
            end: &self.end,
            sequence: self.sequence,
        }
    }
}

impl<'a> RangeRef<'a> {
    pub(crate) fn to_owned(self) -> RangeTombstone {
        RangeTombstone {
            start: self.start.to_vec(),
            end: self.end.to_vec(),
            sequence: self.sequence,
        }
    }

    fn covers(&self, order: &KeyOrder, key: &[u8]) -> bool {
        order.compare(self.start, key).is_le() && order.compare(key, self.end).is_lt()
    }

    /// An upper bound on the memory that a [`Ranges`] uses for it, in bytes. The leaf has 20 bytes
    /// for each tombstone besides its keys. A tombstone has at most two fragments of 8 bytes in its
    /// block, and in each block that is kept as a part; there is one such block for every factor of
    /// sixteen.
    pub(crate) fn used_bytes(&self) -> usize {
        const EACH_BYTES: usize = 84;
        EACH_BYTES + self.start.len() + self.end.len()
    }
}

impl Ranges {
    /// An empty set.
    pub(crate) fn new(order: KeyOrder) -> Ranges {
        Ranges::with_list(order, List::default(), 0, 0)
    }

    /// These tombstones, in as few blocks as possible.
    pub(crate) fn of<'r>(
        order: KeyOrder,
        tombstones: impl IntoIterator<Item = RangeRef<'r>>,
    ) -> Ranges {
        let ranges = Ranges::new(order);
        ranges.add(tombstones);
        ranges.merge_blocks();
        ranges
    }

    /// Merges the blocks into as few as possible, for faster reads.
    fn merge_blocks(&self) {
        let _adding = self.adding.lock().unwrap_or_else(PoisonError::into_inner);
        let mut list = List::clone(&self.list.load());
        while let [.., a, b] = &list.blocks[..]
            && a.can_take(b)
        {
            let merged = Block::merge(&self.order, a, b);
            list.blocks.truncate(list.blocks.len() - 2);
            list.blocks.push(Arc::new(merged));
        }
        self.list.store(Arc::new(list));
    }

    fn with_list(order: KeyOrder, list: List, count: usize, used_bytes: usize) -> Ranges {
        Ranges {
            order,
            list: ArcSwap::from_pointee(list),
            count: AtomicUsize::new(count),
            used_bytes: AtomicUsize::new(used_bytes),
            adding: Mutex::new(()),
        }
    }

    /// These tombstones and others, in as few blocks as possible. Both sets share the tombstones.
    pub(crate) fn with<'r>(&self, others: impl IntoIterator<Item = RangeRef<'r>>) -> Ranges {
        let _adding = self.adding.lock().unwrap_or_else(PoisonError::into_inner);
        let list = self.list.load_full();
        let mut copy = List::clone(&list);
        // The next slot of this tail belongs to this set.
        copy.tail = Arc::new(Tail(std::array::from_fn(|at| list.tail.0[at].clone())));
        let ranges = Ranges::with_list(self.order.clone(), copy, self.len(), self.used_bytes());
        ranges.add(others);
        ranges.merge_blocks();
        ranges
    }

    /// Adds tombstones. Call this before a reader can see their sequence numbers.
    pub(crate) fn add<'r>(&self, tombstones: impl IntoIterator<Item = RangeRef<'r>>) {
        // The list is sound even if a comparator has panicked.
        let _adding = self.adding.lock().unwrap_or_else(PoisonError::into_inner);
        let mut list = self.list.load_full();
        let mut filled = list.tail.iter().count();
        let (mut count, mut bytes, mut is_other) = (0, 0, false);
        for tombstone in tombstones {
            if filled == LEAF {
                list = Arc::new(list.with_tail_in_blocks(&self.order));
                (filled, is_other) = (0, true);
            }
            // The slot is empty: no other thread adds.
            let _ = list.tail.0[filled].set(Slot::new(tombstone));
            filled += 1;
            count += 1;
            bytes += tombstone.used_bytes();
        }
        if is_other {
            self.list.store(list);
        }
        // Relaxed: a reader that must see a tombstone has seen its sequence number become visible,
        // which happens after this. The size is only a statistic.
        self.count.fetch_add(count, Ordering::Relaxed);
        self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Whether there are none that the caller can see.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        // Relaxed: see `add`.
        self.count.load(Ordering::Relaxed)
    }

    /// The sum of [`RangeRef::used_bytes`].
    pub(crate) fn used_bytes(&self) -> usize {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// All current tombstones.
    pub(crate) fn list(&self) -> Arc<List> {
        self.list.load_full()
    }

    /// The largest sequence number; 0 if there is none.
    pub(crate) fn largest_sequence(&self) -> u64 {
        let list = self.list.load();
        let in_tail = list.tail.iter().map(|tombstone| tombstone.sequence);
        let in_blocks = list.blocks.iter().map(|block| block.largest_sequence());
        in_blocks.chain(in_tail).max().unwrap_or(0)
    }

    /// The sequence number of the newest tombstone that covers `key` and is not newer than
    /// `snapshot`; 0 if there is none. Versions of the key with smaller numbers are deleted for
    /// that snapshot.
    pub(crate) fn cover(&self, key: &[u8], snapshot: u64) -> u64 {
        let list = self.list.load();
        let newest = list.newest_over(&self.order, key, snapshot);
        newest.map_or(0, |tombstone| tombstone.sequence)
    }

    /// Passes the tombstone that [`cover`](Self::cover) finds to `take`, if there is one.
    pub(crate) fn newest_over<T>(
        &self,
        key: &[u8],
        snapshot: u64,
        take: impl FnOnce(RangeRef<'_>) -> T,
    ) -> Option<T> {
        let list = self.list.load();
        list.newest_over(&self.order, key, snapshot).map(take)
    }

    /// Whether tombstones newer than `sequence` and not newer than `snapshot` cover all keys from
    /// `smallest` to `largest`, both included.
    pub(crate) fn covers_all(
        &self,
        smallest: &[u8],
        largest: &[u8],
        sequence: u64,
        snapshot: u64,
    ) -> bool {
        let list = self.list.load();
        let mut key = smallest;
        while self.order.compare(key, largest).is_le() {
            match list.newest_over(&self.order, key, snapshot) {
                // It ends after the key, unless the comparator contradicts itself.
                Some(newest) if newest.sequence > sequence && newest.covers(&self.order, key) => {
                    key = newest.end;
                }
                _ => return false,
            }
        }
        true
    }

    /// Whether newer tombstones, not newer than `snapshot`, cover all of a tombstone.
    pub(crate) fn hide(&self, of: RangeRef<'_>, snapshot: u64) -> bool {
        let list = self.list.load();
        let mut key = of.start;
        while self.order.compare(key, of.end).is_lt() {
            match list.newest_over(&self.order, key, snapshot) {
                // It ends after the key, unless the comparator contradicts itself.
                Some(newest)
                    if newest.sequence > of.sequence && newest.covers(&self.order, key) =>
                {
                    key = newest.end;
                }
                _ => return false,
            }
        }
        true
    }

    /// Whether a tombstone newer than `sequence` covers any key from `smallest` to `largest`, both
    /// included.
    pub(crate) fn any_newer_within(&self, smallest: &[u8], largest: &[u8], sequence: u64) -> bool {
        let (order, list) = (&self.order, self.list.load());
        let is_within = |of: RangeRef<'_>| {
            of.sequence > sequence
                && order.compare(of.start, largest).is_le()
                && order.compare(smallest, of.end).is_lt()
                && order.compare(of.start, of.end).is_lt()
        };
        let mut blocks = list.blocks.iter();
        list.tail.iter().any(is_within)
            || blocks.any(|block| block.any_newer_within(order, smallest, largest, sequence))
    }
}

impl List {
    /// The tombstones, in the order they were added.
    pub(crate) fn iter(&self) -> impl Iterator<Item = RangeRef<'_>> {
        let in_blocks = self.blocks.iter().flat_map(|block| block.iter());
        in_blocks.chain(self.tail.iter())
    }

    /// Memory in use.
    #[cfg(test)]
    fn taken_bytes(&self) -> usize {
        let in_tail: usize = self
            .tail
            .iter()
            .map(|of| of.start.len() + of.end.len())
            .sum();
        let blocks = self.blocks.iter().map(|block| block.taken_bytes(true));
        size_of::<Tail>() + in_tail + blocks.sum::<usize>()
    }

    fn newest_over(&self, order: &KeyOrder, key: &[u8], snapshot: u64) -> Option<RangeRef<'_>> {
        let in_tail = block::newest_of(self.tail.iter(), order, key, snapshot);
        // Newest first: sequence numbers ascend, except for a few that arrived out of order.
        let blocks = self.blocks.iter().rev();
        blocks.fold(in_tail, |newest, block| {
            let is_newer =
                |of: &RangeRef<'_>| newest.is_none_or(|newest| of.sequence > newest.sequence);
            let may_be_newer = newest.is_none_or(|of| block.largest_sequence() > of.sequence);
            let found = may_be_newer.then(|| block.newest_over(order, key, snapshot));
            found.flatten().filter(is_newer).or(newest)
        })
    }

    /// A list with the full tail as a block, and an empty tail.
    fn with_tail_in_blocks(&self, order: &KeyOrder) -> List {
        const NONE: RangeRef<'_> = RangeRef {
            start: &[],
            end: &[],
            sequence: 0,
        };
        let mut tombstones = [NONE; LEAF];
        for (at, tombstone) in self.tail.iter().enumerate() {
            tombstones[at] = tombstone;
        }
        let mut blocks = self.blocks.clone();
        blocks.push(Arc::new(Block::of_leaf(order, &tombstones)));
        while let [.., a, b] = &blocks[..]
            && a.takes(b)
        {
            let merged = Block::merge(order, a, b);
            blocks.truncate(blocks.len() - 2);
            blocks.push(Arc::new(merged));
        }
        List {
            blocks,
            tail: Arc::default(),
        }
    }
}

impl Tail {
    fn iter(&self) -> impl Iterator<Item = RangeRef<'_>> {
        self.0
            .iter()
            .map_while(|slot| slot.get().map(Slot::tombstone))
    }
}

impl Slot {
    fn new(of: RangeRef<'_>) -> Slot {
        Slot {
            keys: [of.start, of.end].concat().into_boxed_slice(),
            start_len: of.start.len(),
            sequence: of.sequence,
        }
    }

    fn tombstone(&self) -> RangeRef<'_> {
        let (start, end) = self.keys.split_at(self.start_len);
        RangeRef {
            start,
            end,
            sequence: self.sequence,
        }
    }
}

impl std::fmt::Debug for Ranges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ranges")
            .field("count", &self.len())
            .field("largest_sequence", &self.largest_sequence())
            .finish_non_exhaustive()
    }
}
