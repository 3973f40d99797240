//! Finds the record of a key in a run by the key's hash, without a search through pages.
//!
//! ```text
//!   hash     │ upper half: which bucket │ … │ overflow bit, 3 │ tag, 10 │
//!   bucket   │ location 0 │ … │ location 11 │ tags 0 to 11 │ their bits 8, 9 │ overflow │    one line
//!   location │ page │ offset of the record in the page │
//! ```
//!
//! A key's slot is in its home bucket or, if that is full, in one of the next seven. Every bucket
//! that the key has passed by has the key's overflow bit set, so a lookup of an absent key mostly
//! ends at the first line: with ten bits of tag, one absent key in a hundred finds a slot that may
//! be its own.
//!
//! An index is a filter that maps each key to a value, as Chucky (Dayan and Twitto, SIGMOD 2021)
//! and the maplets of SplinterDB (Conway and others, SIGMOD 2023) do. Buckets of one line with tags
//! are those of MemC3 (Fan and others, NSDI 2013).
//!
//! `docs/internals/format-runs.md` defines every byte. In memory, the bytes are the same.

use forerun_core::arch::prefetch_read;
use forerun_core::{CacheLine, CacheLines};

/// Slots of a bucket.
const SLOTS: usize = 12;

/// Keys of a bucket, on average: 5% of them are in a bucket after their home.
const KEYS_PER_BUCKET: usize = 9;

/// Where a key may be: in its home bucket or in one of those after it.
const PROBES_MAX: usize = 8;

/// Bytes of a bucket.
const BUCKET_BYTES: usize = 64;

/// Where the tags of a bucket begin. Their last four bits, and the overflow bits, follow.
const TAGS: usize = SLOTS * 4;

/// A bit for each slot.
const SLOT_BITS: u32 = (1 << SLOTS) - 1;

/// The most buckets. With more, they would take 4 GiB.
const BUCKETS_MAX: usize = 1 << 26;

/// Keys between prefetching a bucket and writing to it, when an index is built.
const BUILD_DISTANCE: usize = 16;

/// Where a key's newest version is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordAddress {
    /// The number of the leaf.
    pub(crate) page: u32,
    /// The record's offset in the page; 0 if the index does not have it.
    pub(crate) offset: u32,
}

/// How locations are divided into a page's number and an offset. The metadata determines it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LocationBits {
    offset: u32,
    leaf_pages: u32,
}

impl LocationBits {
    /// The division for a run with `leaf_pages` leaves of at most `page_bytes`.
    pub(crate) fn new(leaf_pages: u32, page_bytes: u32) -> LocationBits {
        let bits = |count: u32| u32::BITS - count.saturating_sub(1).leading_zeros();
        let (page, offset) = (bits(leaf_pages), bits(page_bytes));
        LocationBits {
            // 32 bits of offset would leave no page.
            offset: if page + offset <= 32 && offset < 32 {
                offset
            } else {
                0
            },
            leaf_pages,
        }
    }

    fn location(self, place: RecordAddress) -> u32 {
        let fits = place.offset >> self.offset == 0;
        place.page << self.offset | if fits { place.offset } else { 0 }
    }

    #[inline(always)]
    fn place(self, location: u32) -> RecordAddress {
        RecordAddress {
            page: location >> self.offset,
            offset: location & ((1 << self.offset) - 1),
        }
    }
}

/// What a hash says about a key's slot.
#[derive(Clone, Copy)]
struct Probe {
    /// The tag's first eight bits. Not 0: that is an empty slot's.
    tag: u8,
    /// The other two.
    tag_high: u8,
    /// The key's bit of overflow bits.
    overflow: u8,
}

impl Probe {
    #[inline(always)]
    fn new(hash: u64) -> Probe {
        let low = hash as u32;
        Probe {
            tag: (low as u8).max(1),
            tag_high: (low >> 8) as u8 & 3,
            overflow: 1 << (low >> 10 & 7),
        }
    }
}

/// A bucket's bytes after its locations.
#[derive(Clone, Copy)]
struct Tags {
    first: u64,
    /// Four tags, their bits 8 and 9, and the overflow bits.
    second: u64,
}

impl Tags {
    #[inline(always)]
    fn of(bucket: &CacheLine) -> Tags {
        let words: &[[u8; 8]] = bucket.0[TAGS..].as_chunks().0;
        Tags {
            first: u64::from_le_bytes(words[0]),
            second: u64::from_le_bytes(words[1]),
        }
    }

    /// The slots with a tag byte: one bit each. In one word, because which half of the slots has a
    /// key is an unpredictable branch.
    #[inline(always)]
    fn with(self, tag: u8) -> u32 {
        /// A bit for each zero byte.
        #[inline(always)]
        fn zeros(word: u64) -> u32 {
            const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
            // The highest bit of each. Exact: no carry leaves a byte.
            let high = !(((word & LOW) + LOW) | word | LOW);
            // The factor moves each bit to its place from bit 56 on.
            ((high >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u32
        }
        let tags = u64::from(tag) * 0x0101_0101_0101_0101;
        (zeros(self.first ^ tags) | zeros(self.second ^ tags) << 8) & SLOT_BITS
    }

    /// Bits 8 and 9 of a slot's tag.
    #[inline(always)]
    fn high(self, slot: usize) -> u8 {
        (self.second >> (32 + 2 * slot)) as u8 & 3
    }

    #[inline(always)]
    fn overflow(self) -> u8 {
        (self.second >> 56) as u8
    }

    /// The first slot with a key's tag.
    #[inline(always)]
    fn slot(self, probe: Probe) -> Option<usize> {
        let mut slots = self.with(probe.tag);
        while slots != 0 {
            let slot = slots.trailing_zeros() as usize;
            if self.high(slot) == probe.tag_high {
                return Some(slot);
            }
            slots &= slots - 1;
        }
        None
    }

    /// The number of used slots, if they come first.
    fn used(self) -> usize {
        (self.with(0).trailing_zeros() as usize).min(SLOTS)
    }
}

/// An index in memory.
#[derive(Debug)]
pub(crate) struct RecordIndex {
    buckets: CacheLines,
    bits: LocationBits,
}

impl RecordIndex {
    /// Bytes that an index takes on disk.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.buckets.bytes()
    }

    /// The memory that an index of `stored_bytes` on disk takes.
    pub(crate) fn memory_bytes(stored_bytes: usize) -> usize {
        CacheLines::memory_bytes(stored_bytes / BUCKET_BYTES)
    }

    /// Builds an index of different keys. `None` if there is no key, if there is no memory for the
    /// index, or if a key finds no slot near its home.
    ///
    /// The keys of each home bucket get consecutive slots, after those of the bucket before. So one
    /// pass counts the keys of each bucket, and another one writes each key to its slot.
    pub(crate) fn build(
        keys: impl ExactSizeIterator<Item = (u64, RecordAddress)> + Clone,
        bits: LocationBits,
    ) -> Option<RecordIndex> {
        let count = keys.len().div_ceil(KEYS_PER_BUCKET);
        if count == 0 || count > BUCKETS_MAX {
            return None;
        }
        let mut index = RecordIndex {
            buckets: CacheLines::zeroed(count).ok()?,
            bits,
        };
        let mut slots: Vec<u32> = Vec::new();
        slots.try_reserve_exact(count).ok()?;
        slots.resize(count, 0);
        for (hash, _) in keys.clone() {
            slots[index.home(hash)] += 1;
        }
        assign_slots(&mut slots)?;
        // The next keys, whose buckets are on their way.
        let mut near = [(0, RecordAddress { page: 0, offset: 0 }); BUILD_DISTANCE];
        let len = keys.len();
        for (at, key) in keys.enumerate() {
            if at >= BUILD_DISTANCE {
                index.insert(&mut slots, near[at % BUILD_DISTANCE]);
            }
            index.prefetch(key.0);
            near[at % BUILD_DISTANCE] = key;
        }
        for at in len.saturating_sub(BUILD_DISTANCE)..len {
            index.insert(&mut slots, near[at % BUILD_DISTANCE]);
        }
        Some(index)
    }

    /// Writes a key to the next slot of those that its home bucket has.
    fn insert(&mut self, slots: &mut [u32], (hash, place): (u64, RecordAddress)) {
        let (home, count) = (self.home(hash), self.buckets.len());
        let probe = Probe::new(hash);
        let number = slots[home] as usize;
        slots[home] += 1;
        let (at, slot) = (number / SLOTS, number % SLOTS);
        for passed in home..at {
            self.buckets[passed % count].0[BUCKET_BYTES - 1] |= probe.overflow;
        }
        let location = self.bits.location(place);
        let bucket = &mut self.buckets[at % count];
        bucket.0[4 * slot..][..4].copy_from_slice(&location.to_le_bytes());
        bucket.0[TAGS + slot] = probe.tag;
        bucket.0[TAGS + SLOTS + slot / 4] |= probe.tag_high << (2 * (slot % 4));
    }

    /// Where a key with this hash may be. `None`: it is not in the run.
    ///
    /// Several keys may match. Then this is the first of them in the index, and the caller, who
    /// compares the key, has to search the pages if it is another one.
    #[inline(always)]
    pub(crate) fn find(&self, hash: u64) -> Option<RecordAddress> {
        let probe = Probe::new(hash);
        let home = self.home(hash);
        let bucket = self.buckets.get(home)?;
        let tags = Tags::of(bucket);
        match tags.slot(probe) {
            Some(slot) => Some(self.place(bucket, slot)),
            None if tags.overflow() & probe.overflow == 0 => None,
            None => self.find_behind(home, probe),
        }
    }

    /// Searches the buckets after the home bucket.
    fn find_behind(&self, home: usize, probe: Probe) -> Option<RecordAddress> {
        let count = self.buckets.len();
        for step in 1..PROBES_MAX.min(count) {
            let bucket = &self.buckets[(home + step) % count];
            let tags = Tags::of(bucket);
            if let Some(slot) = tags.slot(probe) {
                return Some(self.place(bucket, slot));
            }
            if tags.overflow() & probe.overflow == 0 {
                return None;
            }
        }
        None
    }

    /// Whether the index has a key with this hash at exactly this place.
    pub(crate) fn has(&self, hash: u64, place: RecordAddress) -> bool {
        let probe = Probe::new(hash);
        let location = self.bits.location(place);
        let (home, count) = (self.home(hash), self.buckets.len());
        for step in 0..PROBES_MAX.min(count) {
            let bucket = &self.buckets[(home + step) % count];
            let tags = Tags::of(bucket);
            let is_it = |slot: &usize| {
                bucket.0[TAGS + slot] == probe.tag
                    && tags.high(*slot) == probe.tag_high
                    && Self::location(bucket, *slot) == location
            };
            if (0..SLOTS).any(|slot| is_it(&slot)) {
                return true;
            }
            if tags.overflow() & probe.overflow == 0 {
                return false;
            }
        }
        false
    }

    /// The number of keys.
    pub(crate) fn keys(&self) -> u64 {
        let used = self.buckets.iter().map(|bucket| Tags::of(bucket).used());
        used.map(|used| used as u64).sum()
    }

    /// Prefetches the line that [`find`](Self::find) reads first.
    #[inline(always)]
    pub(crate) fn prefetch(&self, hash: u64) {
        prefetch_read(self.buckets.as_ptr().wrapping_add(self.home(hash)));
    }

    /// The home bucket of a hash. Out of bounds only without buckets.
    #[inline(always)]
    fn home(&self, hash: u64) -> usize {
        (((hash >> 32) * self.buckets.len() as u64) >> 32) as usize
    }

    #[inline(always)]
    fn location(bucket: &CacheLine, slot: usize) -> u32 {
        let locations: &[[u8; 4]] = bucket.0.as_chunks().0;
        u32::from_le_bytes(locations[slot])
    }

    #[inline(always)]
    fn place(&self, bucket: &CacheLine, slot: usize) -> RecordAddress {
        self.bits.place(Self::location(bucket, slot))
    }

    /// Decodes an index and checks its structure: every location is in the run, used slots come
    /// first, and empty ones are zeros.
    ///
    /// # Errors
    /// Says what is wrong.
    pub(crate) fn decode(bytes: &[u8], bits: LocationBits) -> Result<RecordIndex, &'static str> {
        let (lines, rest) = bytes.as_chunks::<BUCKET_BYTES>();
        if !rest.is_empty() || lines.is_empty() || lines.len() > BUCKETS_MAX {
            return Err("the index's length is not that of an index");
        }
        let mut buckets = CacheLines::zeroed(lines.len())
            .map_err(|_| "the index needs more memory than there is")?;
        for (bucket, line) in buckets.iter_mut().zip(lines) {
            bucket.0 = *line;
        }
        let index = RecordIndex { buckets, bits };
        index.check()?;
        Ok(index)
    }

    fn check(&self) -> Result<(), &'static str> {
        for bucket in self.buckets.iter() {
            let tags = Tags::of(bucket);
            let used = tags.used();
            for slot in 0..used {
                if self.place(bucket, slot).page >= self.bits.leaf_pages {
                    return Err("the index points to a page that the run does not have");
                }
            }
            let is_empty = |slot: usize| {
                bucket.0[TAGS + slot] == 0
                    && tags.high(slot) == 0
                    && Self::location(bucket, slot) == 0
            };
            if !(used..SLOTS).all(is_empty) {
                return Err("a bucket of the index has a gap");
            }
        }
        Ok(())
    }
}

/// Replaces the number of keys of each home bucket by the first of the slots for them. Slots are
/// numbered through all buckets, and after the last one they continue in the first. `None` if a
/// slot is too far from its home.
fn assign_slots(buckets: &mut [u32]) -> Option<()> {
    let all = buckets.len() * SLOTS;
    // The end of the last bucket's slots, beyond the last bucket. There are fewer keys than slots,
    // so some bucket passes no key on, and a second pass ends as the first one did.
    let mut end = 0_usize;
    for _ in 0..2 {
        end = end.saturating_sub(all);
        for (bucket, keys) in buckets.iter().enumerate() {
            end = end.max(bucket * SLOTS) + *keys as usize;
        }
    }
    end = end.saturating_sub(all);
    for (bucket, keys) in buckets.iter_mut().enumerate() {
        let first = end.max(bucket * SLOTS);
        end = first + *keys as usize;
        if end > (bucket + PROBES_MAX) * SLOTS {
            return None;
        }
        *keys = first as u32;
    }
    Some(())
}

#[cfg(test)]
#[path = "record_index_tests.rs"]
mod tests;
