//! The hash index: from a key to its newest version, beside the skip list.
//!
//! ```text
//!   hash of a key   │ tag: 16 bits │        …        │ number of the bucket: the low bits │
//!
//!   buckets         0 │ 1 │ … │ s │ … │ 2^k - 1 │ 2^k │ … │ n - 1 │        n of them
//!                               └── splits into s and n ──────────►│
//!
//!   chunks          │ 8 buckets │ 8 │ … │ 16 │ …      in the arena, found through a directory
//! ```
//!
//! The index grows by linear hashing (Litwin, "Linear Hashing: A New Tool for File and Table
//! Addressing", VLDB 1980): bucket s = n - 2^k is split, its entries whose hash has bit k move to
//! the new bucket n, and n is counted. Nothing else moves. A slot keeps the next bits of the hash,
//! so that a split rarely has to read keys (`hash_addressing.rs`). A reader that finds no entry
//! checks whether its key's bucket is still the same, and searches again if not. This suffices
//! because n is counted before an entry leaves the bucket that is split.
//!
//! A bucket that is full continues in a spare line (`hash_spares.rs`). When it is split, its
//! entries move up, and lines that become empty are spare again. They move while the bucket is
//! locked, after the new buckets were counted and before it is unlocked. So a reader that follows a
//! bucket to another line and finds nothing starts over if the number of buckets has changed, and
//! leaves it to the skip list if the bucket was locked when it read the first line.
//!
//! If there is no memory for buckets or spare lines, a full bucket is marked incomplete, and keys
//! that it lacks are searched for in the skip list.
//!
//! An entry is put into the index after it was linked into the list and before its writer returns.
//! It replaces an older version of its key; the older ones follow it in the list. Writers of one
//! key may arrive in any order. So an incomplete bucket accepts a new key only from an entry that
//! is newer than all entries that were left out, because one of those may be a newer version of the
//! key.

use std::ptr::NonNull;

use forerun_core::CachePadded;
use forerun_core::arch::prefetch_read;
use forerun_core::sync::modelled::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};
use forerun_core::sync::modelled::{hint, thread};

use super::arena::{Arena, Full};
use super::hash_addressing::{
    BucketAddress, EntryBits, GROUP, KeyHasher, SPLIT_TO, bucket_of, buckets_for, level_of, tag,
};
use super::hash_bucket::{Line, SLOTS, Slots};
use super::hash_memory::{line_at, take_lines};
use super::hash_spares::Spares;
use super::node::{ALIGN_BYTES, Node};

/// The least memory of an entry in the list. It bounds how many buckets can be needed.
const ENTRY_BYTES_MIN: usize = 40;

/// An index of the entries of one list.
pub(super) struct HashIndex {
    hasher: KeyHasher,
    bits: EntryBits,
    /// The locations of the chunks, in the arena; 0 where there is none yet.
    directory: NonNull<AtomicU32>,
    max_chunks: usize,
    /// The number of buckets.
    buckets: AtomicUsize,
    /// What writers alone use, apart from what every lookup reads.
    growth: CachePadded<Growth>,
    /// Entries whose key had another version: those of the list that are not keys of the index.
    /// Relaxed: it decides only when to grow.
    versions: CachePadded<AtomicUsize>,
}

struct Growth {
    spares: Spares,
    /// Whether a thread is splitting buckets. It is a lock.
    is_growing: AtomicBool,
    /// The newest sequence number of the entries for which a bucket had no space; 0 if all had.
    left_out_sequence: AtomicU64,
}

// SAFETY: the directory is in the arena of the list to which the index belongs, which is dropped
// with it; everything that changes is atomic.
unsafe impl Send for HashIndex {}
// SAFETY: as above.
unsafe impl Sync for HashIndex {}

/// Where a key's bucket was when there were `buckets` buckets.
#[derive(Clone, Copy)]
pub(super) struct Located<'a> {
    hash: u64,
    line: &'a Line,
    buckets: usize,
}

/// What the index knows of a key.
#[derive(Clone, Copy)]
pub(super) enum Indexed<'a> {
    /// Its newest version.
    At(Node<'a>),
    /// No version of it is in the table.
    Missing,
    /// The bucket is incomplete, or a writer has it; the list knows.
    Unknown,
}

impl HashIndex {
    /// Whether there is an index for an arena of this size: its offsets reach to the end.
    pub(super) fn reaches(limit_bytes: usize) -> bool {
        EntryBits::new(limit_bytes).is_some()
    }

    /// An empty index; the seed selects its hash function. There is none for an arena larger than
    /// its offsets reach.
    pub(super) fn new(arena: &Arena, seed: u64) -> Result<Option<HashIndex>, Full> {
        let limit_bytes = arena.limit_bytes();
        let Some(bits) = EntryBits::new(limit_bytes) else {
            return Ok(None);
        };
        let max_buckets = limit_bytes / (ENTRY_BYTES_MIN * SPLIT_TO / 2);
        let max_chunks = BucketAddress::of(max_buckets).chunk + 1;
        let directory_bytes = (max_chunks * size_of::<AtomicU32>()).next_multiple_of(ALIGN_BYTES);
        let directory = arena.allocate(directory_bytes)?.cast::<AtomicU32>();
        for chunk in 0..max_chunks {
            // SAFETY: the directory was just allocated for so many.
            unsafe { directory.add(chunk).write(AtomicU32::new(0)) };
        }
        let index = HashIndex {
            hasher: KeyHasher::new(seed),
            bits,
            directory,
            max_chunks,
            buckets: AtomicUsize::new(GROUP),
            growth: CachePadded::new(Growth {
                spares: Spares::new(),
                is_growing: AtomicBool::new(false),
                left_out_sequence: AtomicU64::new(0),
            }),
            versions: CachePadded::new(AtomicUsize::new(0)),
        };
        index.add_chunk(arena, BucketAddress::of(0), &|_| true)?;
        for bucket in 0..GROUP {
            // SAFETY: the first chunk has at least this many buckets; the index is not shared yet.
            unsafe { index.place(arena, bucket).write(Line::new()) };
        }
        index.growth.spares.reserve(arena, GROUP, 0, &|_| true)?;
        Ok(Some(index))
    }

    #[inline(always)]
    pub(super) fn hash(&self, key: &[u8]) -> u64 {
        self.hasher.hash(key)
    }

    /// Hashes a key and prefetches its bucket.
    #[inline(always)]
    pub(super) fn locate<'a>(&self, arena: &'a Arena, key: &[u8]) -> Located<'a> {
        let (hash, buckets) = (self.hash(key), self.buckets());
        let line = self.bucket(arena, hash, buckets);
        line.prefetch();
        Located {
            hash,
            line,
            buckets,
        }
    }

    /// The number of buckets now.
    #[inline(always)]
    pub(super) fn buckets(&self) -> usize {
        // Acquire: pairs with the release in `split`, so that all of them are visible.
        self.buckets.load(Ordering::Acquire)
    }

    /// The bucket of a hash when there are `buckets` buckets.
    #[inline(always)]
    pub(super) fn bucket<'a>(&self, arena: &'a Arena, hash: u64, buckets: usize) -> &'a Line {
        // SAFETY: buckets below their number have been written, and lines live as long as the
        // arena.
        unsafe { self.place(arena, bucket_of(hash, buckets)).as_ref() }
    }

    /// The line that overflows another.
    #[inline(always)]
    pub(super) fn overflow<'a>(&self, arena: &'a Arena, line: u32) -> &'a Line {
        // SAFETY: a line that overflows another was written before it was put there.
        unsafe { line_at(arena, line).as_ref() }
    }

    /// The node of an entry.
    #[inline(always)]
    pub(super) fn node<'a>(&self, arena: &'a Arena, entry: u32) -> Node<'a> {
        let header = arena.at(self.bits.offset(entry)).cast();
        // SAFETY: a slot whose tag was set has the offset of a node of this arena, and every later
        // value of it too.
        unsafe { Node::from_raw(header) }
    }

    /// Where a bucket or spare line is.
    #[inline(always)]
    fn place(&self, arena: &Arena, bucket: usize) -> NonNull<Line> {
        let place = BucketAddress::of(bucket);
        debug_assert!(place.chunk < self.max_chunks);
        // SAFETY: a bucket's chunk is within the directory, which does not change its length.
        let chunk = unsafe { self.directory.add(place.chunk).as_ref() };
        // Relaxed: the chunk was written before the bucket was counted.
        let first = line_at(arena, chunk.load(Ordering::Relaxed));
        // SAFETY: the chunk has this line.
        unsafe { first.add(place.line) }
    }

    /// What the index knows of a key.
    #[inline]
    pub(super) fn find<'a>(&self, arena: &'a Arena, hash: u64, key: &[u8]) -> Indexed<'a> {
        let tag = tag(hash);
        let mut buckets = self.buckets();
        loop {
            let first = self.bucket(arena, hash, buckets);
            let first_tags = first.tags();
            let (mut line, mut tags) = (first, first_tags);
            let mut is_incomplete = false;
            loop {
                for slot in tags.matching(tag) {
                    let node = self.node(arena, line.entry(slot));
                    node.prefetch_rest();
                    if node.key() == key {
                        return Indexed::At(node);
                    }
                }
                is_incomplete |= tags.is_incomplete();
                match tags.overflow() {
                    0 => break,
                    next => line = self.overflow(arena, next),
                }
                tags = line.tags();
            }
            if is_incomplete {
                return Indexed::Unknown;
            }
            let now = self.buckets();
            let is_same = match first_tags.overflow() {
                // The entry may have moved to the bucket that was split off.
                0 => bucket_of(hash, now) == bucket_of(hash, buckets),
                // It may have moved to the first line, and its old line may already be reused, also
                // for another bucket. If `buckets` was read before the new buckets were counted,
                // `now` differs: whoever misses an entry that has moved has seen it removed. If it
                // was read afterwards, the first line was locked, or has all that moved.
                _ if now == buckets && first_tags.is_locked() => return Indexed::Unknown,
                _ => now == buckets,
            };
            if is_same {
                return Indexed::Missing;
            }
            buckets = now;
        }
    }

    /// Adds an entry that is in the list by now. If there is an entry of its key, the newer of the
    /// two stays. Returns whether the key is new.
    #[inline]
    pub(super) fn insert(&self, arena: &Arena, located: Located<'_>, node: Node<'_>) -> bool {
        let (first, level) = self.lock(arena, located);
        let offset = arena.offset(node.into_raw().cast());
        let entry = self.bits.encode(offset, located.hash, level);
        let is_new = self.insert_locked(arena, first, tag(located.hash), entry, node);
        first.unlock();
        is_new
    }

    /// Locks the bucket of a hash. Returns its first line and its level.
    #[inline(always)]
    fn lock<'a>(&self, arena: &'a Arena, located: Located<'a>) -> (&'a Line, u32) {
        let Located {
            hash,
            mut line,
            mut buckets,
        } = located;
        loop {
            line.lock();
            // A bucket is counted before the one that it was split from is unlocked. So what is
            // read here holds for as long as the bucket is locked.
            let now = self.buckets();
            let bucket = bucket_of(hash, now);
            if now == buckets || bucket == bucket_of(hash, buckets) {
                return (line, level_of(bucket, now));
            }
            line.unlock();
            buckets = now;
            line = self.bucket(arena, hash, buckets);
        }
    }

    #[inline(always)]
    fn insert_locked(
        &self,
        arena: &Arena,
        first: &Line,
        tag: u16,
        entry: u32,
        node: Node<'_>,
    ) -> bool {
        let (mut with_space, mut is_incomplete) = (None, false);
        let mut line = first;
        loop {
            let tags = line.tags();
            is_incomplete |= tags.is_incomplete();
            for slot in tags.matching(tag) {
                let other = self.node(arena, line.entry(slot));
                if other.key() == node.key() {
                    if other.sequence() < node.sequence() {
                        line.replace(slot, entry);
                    }
                    return false;
                }
            }
            if with_space.is_none() {
                with_space = tags.free_slot().map(|slot| (line, slot));
            }
            match tags.overflow() {
                0 => break,
                next => line = self.overflow(arena, next),
            }
        }
        // Relaxed: if the bucket lacks an entry, its lock has passed on the number.
        let left_out = &self.growth.left_out_sequence;
        if is_incomplete && node.sequence() < left_out.load(Ordering::Relaxed) {
            return true;
        }
        match with_space {
            Some((line, slot)) => line.fill(slot, tag, entry),
            None => self.add_to_spare(arena, first, line, tag, entry),
        }
        true
    }

    /// Adds an entry to a new line behind the last of a bucket, whose first line is locked.
    #[cold]
    fn add_to_spare(&self, arena: &Arena, first: &Line, last: &Line, tag: u16, entry: u32) {
        match self.growth.spares.take(arena) {
            Some((location, spare)) => {
                spare.add(tag, entry);
                last.set_overflow(location);
            }
            None => {
                let sequence = self.node(arena, entry).sequence();
                // Relaxed: released with the bucket's lock, or with a new bucket's number.
                let left_out = &self.growth.left_out_sequence;
                left_out.fetch_max(sequence, Ordering::Relaxed);
                first.set_incomplete();
            }
        }
    }

    /// Counts entries whose key had another version.
    pub(super) fn count_versions(&self, added: usize) {
        // Most entries of most tables are new keys. They are counted by the list alone.
        if added > 0 {
            self.versions.fetch_add(added, Ordering::Relaxed);
        }
    }

    /// Splits buckets until there are enough for the keys of `entries` entries, some of which are
    /// new. `may_take` is called before memory is taken; if it agrees, it counts the memory. If
    /// memory is lacking, the index stays smaller.
    pub(super) fn make_space(
        &self,
        arena: &Arena,
        entries: usize,
        new_entries: usize,
        may_take: &dyn Fn(usize) -> bool,
    ) {
        let keys = entries.saturating_sub(self.versions.load(Ordering::Relaxed));
        let wanted = buckets_for(keys);
        // Without the memory, some buckets will be incomplete.
        let _ = self
            .growth
            .spares
            .reserve(arena, wanted, new_entries, may_take);
        // Relaxed: see below for the one who splits.
        while wanted >= self.buckets.load(Ordering::Relaxed) + GROUP {
            // Acquire and Release: whoever grows the index sees what the one before did.
            // Relaxed: the exchange confirms it. It is read first, so that those who find it taken
            // leave its line where it is.
            let is_taken = self.growth.is_growing.load(Ordering::Relaxed);
            if is_taken || self.growth.is_growing.swap(true, Ordering::Acquire) {
                let is_close = wanted / 2 < self.buckets.load(Ordering::Relaxed);
                if is_close {
                    return;
                }
                hint::spin_loop();
                thread::yield_now();
                continue;
            }
            let mut has_memory = true;
            while has_memory && wanted >= self.buckets.load(Ordering::Relaxed) + GROUP {
                has_memory = self.split_group(arena, may_take);
            }
            self.growth.is_growing.store(false, Ordering::Release);
            if !has_memory {
                return;
            }
        }
    }

    /// Splits the next buckets. The caller holds `is_growing`. Returns whether there was memory.
    fn split_group(&self, arena: &Arena, may_take: &dyn Fn(usize) -> bool) -> bool {
        let buckets = self.buckets.load(Ordering::Relaxed);
        let place = BucketAddress::of(buckets);
        // The first bucket of a chunk.
        if place.line == 0 && self.add_chunk(arena, place, may_take).is_err() {
            return false;
        }
        let split = buckets - (1 << buckets.ilog2());
        let lines: [NonNull<Line>; GROUP] = std::array::from_fn(|i| self.place(arena, split + i));
        // SAFETY: these buckets are counted.
        let lines = lines.map(|line| unsafe { line.as_ref() });
        lines.iter().for_each(|line| line.prefetch());
        for i in 0..GROUP {
            // Otherwise each lock below would wait until a new line is there to be written.
            prefetch_read(self.place(arena, buckets + i).as_ptr());
        }
        if !self.bits.keeps_past(buckets.ilog2()) {
            for line in lines {
                for slot in line.tags().used() {
                    self.node(arena, line.entry(slot)).prefetch_key();
                }
            }
        }
        for (i, line) in lines.into_iter().enumerate() {
            self.copy_moving(arena, line, buckets + i);
        }
        // Release: publishes the buckets. They are counted before their entries leave the others,
        // and together, because every other thread must fetch the number again.
        self.buckets.store(buckets + GROUP, Ordering::Release);
        for line in lines {
            self.remove_moved(arena, line, buckets.ilog2());
        }
        true
    }

    /// What a split makes of an entry of this level.
    #[inline(always)]
    fn split_entry(&self, arena: &Arena, entry: u32, level: u32) -> u32 {
        if self.bits.keeps_past(level) {
            entry
        } else {
            let hash = self.hash(self.node(arena, entry).key());
            self.bits.encode(self.bits.offset(entry), hash, level + 1)
        }
    }

    /// Makes bucket number `bucket`, with the entries that move to it from the one whose first line
    /// is `first`, which stays locked. The caller holds `is_growing`.
    fn copy_moving(&self, arena: &Arena, first: &Line, bucket: usize) {
        let level = bucket.ilog2();
        let moving_bit = self.bits.moving_bit(level);
        let place = self.place(arena, bucket);
        // SAFETY: the chunk has this bucket, and it is not yet counted, so nobody else uses it.
        let new = unsafe {
            place.write(Line::new());
            place.as_ref()
        };
        first.lock();
        if first.tags().is_incomplete() {
            new.set_incomplete();
        }
        // The slots of new lines are filled in order.
        let (mut last, mut filled) = (new, 0);
        for line in self.lines(arena, first) {
            let tags = line.tags();
            for slot in line.used_with_bit(moving_bit) {
                let entry = self.split_entry(arena, line.entry(slot), level);
                let tag = tags.tag(slot);
                if filled < SLOTS {
                    last.fill(filled, tag, entry);
                    filled += 1;
                    continue;
                }
                self.add_to_spare(arena, new, last, tag, entry);
                if let Some(spare) = self.next(arena, last) {
                    (last, filled) = (spare, 1);
                }
            }
        }
    }

    /// Removes the entries that were copied from the bucket whose first line is `first`, moves up
    /// those behind them, and unlocks it. Its buckets are counted.
    fn remove_moved(&self, arena: &Arena, first: &Line, level: u32) {
        let moving_bit = self.bits.moving_bit(level);
        for line in self.lines(arena, first) {
            line.remove(line.used_with_bit(moving_bit));
            if !self.bits.keeps_past(level) {
                for slot in line.tags().used() {
                    line.replace(slot, self.split_entry(arena, line.entry(slot), level));
                }
            }
        }
        if first.tags().overflow() != 0 {
            self.move_up(arena, first);
        }
        first.unlock();
    }

    /// Moves entries of a bucket to its first line, and frees the lines behind it that become
    /// empty. A third line, which hardly any bucket has, waits until it is the second.
    #[cold]
    fn move_up(&self, arena: &Arena, first: &Line) {
        while let Some(second) = self.next(arena, first) {
            let tags = second.tags();
            for slot in tags.used() {
                // Readers find it in one line or the other: it is copied first.
                if !first.add(tags.tag(slot), second.entry(slot)) {
                    return;
                }
                second.remove(Slots::one(slot));
            }
            let location = first.tags().overflow();
            first.set_overflow(second.tags().overflow());
            self.growth.spares.give_back(location);
        }
    }

    /// The number of buckets that lack entries, and of lines behind buckets.
    #[cfg(all(test, not(loom)))]
    pub(super) fn incomplete_and_spare(&self, arena: &Arena) -> (usize, usize) {
        let buckets = self.buckets();
        let firsts = (0..buckets).map(|bucket| self.bucket(arena, bucket as u64, buckets));
        firsts.fold((0, 0), |(incomplete, spare), first| {
            let is_incomplete = first.tags().is_incomplete();
            let lines = self.lines(arena, first).count();
            (incomplete + usize::from(is_incomplete), spare + lines - 1)
        })
    }

    /// The lines of a bucket.
    fn lines<'a>(&self, arena: &'a Arena, first: &'a Line) -> impl Iterator<Item = &'a Line> {
        std::iter::successors(Some(first), |line| self.next(arena, line))
    }

    fn next<'a>(&self, arena: &'a Arena, line: &Line) -> Option<&'a Line> {
        match line.tags().overflow() {
            0 => None,
            next => Some(self.overflow(arena, next)),
        }
    }

    /// Takes memory for a chunk.
    fn add_chunk(
        &self,
        arena: &Arena,
        place: BucketAddress,
        may_take: &dyn Fn(usize) -> bool,
    ) -> Result<(), Full> {
        if place.chunk >= self.max_chunks {
            return Err(Full {
                needed_bytes: place.chunk_buckets * size_of::<Line>(),
                used_bytes: arena.used_bytes(),
            });
        }
        let first = take_lines(arena, place.chunk_buckets, may_take)?;
        // SAFETY: the chunk is within the directory, as was just checked.
        let chunk = unsafe { self.directory.add(place.chunk).as_ref() };
        // Relaxed: published with the buckets.
        chunk.store(first, Ordering::Relaxed);
        Ok(())
    }
}
