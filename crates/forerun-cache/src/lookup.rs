//! Batched lookup, in groups of 64 keys: hash, then tags, then keys.
//!
//! ```text
//!   group   hash, prefetch the home buckets
//!           compare tags at home ─┬─ one matches: prefetch the item
//!                                 └─ none, but the bucket has overflow: prefetch the second bucket
//!           compare tags there, prefetch the items
//!           compare keys, prefetch the rest of the value, return the items
//! ```
//!
//! Each step loops over the whole group, so that one key's memory access overlaps with the others'.
//! Writes are executed one after another, since each may move items. A prefetch of their keys takes
//! the steps up to the prefetched items, so that the writes find their memory in the CPU's cache.
//!
//! When a tag matches by chance, which happens once in several thousand lookups, the key is looked
//! up again on its own.

use crate::blocks::item_layout::{Record, Visibility};
use crate::cache::Cache;
use crate::epoch::Pinned;
use crate::generation::Moment;
use crate::index::item_bucket::{Entry, ItemRef};
use crate::index::key_buckets::KeyBuckets;
use crate::index::segment::Segment;
use crate::item::Item;
use crate::stats::{Count, Counters};
use forerun_core::arch::{Simd, WithSimd};
use forerun_core::prefetch_ahead;

/// Keys per group: one bit each in a word, and more cache lines than memory fetches at a time.
pub(crate) const GROUP: usize = 64;

/// A batch of keys, and the slots for their items.
pub(crate) struct Batch<'b, 'g> {
    pub(crate) cache: &'b Cache,
    pub(crate) pinned: &'g Pinned<'g>,
    pub(crate) keys: &'b [&'b [u8]],
    pub(crate) items: &'b mut [Option<Item<'g>>],
}

/// The outcome of lookups.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    hits: u64,
    /// Misses whose item had expired.
    expired: u64,
}

impl Counts {
    /// Counts the lookup that has found this record. Returns its item, unless it is gone.
    #[inline(always)]
    pub(crate) fn found<'g>(&mut self, record: Record<'g>, moment: Moment<'_>) -> Option<Item<'g>> {
        match record.visibility(moment) {
            Visibility::Live(tags) => {
                self.hits += 1;
                return Some(Item::accessed(record, tags, moment.now));
            }
            Visibility::Expired => self.expired += 1,
            Visibility::Flushed => {}
        }
        None
    }

    /// Adds the outcome of the lookups of so many keys to the cache's counters.
    #[inline(always)]
    pub(crate) fn add_to(self, counters: &Counters, keys: usize) {
        let misses = keys as u64 - self.hits;
        for (count, more) in [
            (Count::GetHits, self.hits),
            (Count::GetMisses, misses),
            (Count::GetExpired, self.expired),
        ] {
            // A single lookup changes one of them, rarely two.
            if more > 0 {
                counters.add(count, more);
            }
        }
    }
}

impl WithSimd for Batch<'_, '_> {
    type Output = Counts;

    #[inline(always)]
    fn with<S: Simd>(self, simd: S) -> Counts {
        let mut counts = Counts::default();
        let groups = self.items.chunks_mut(GROUP);
        for (keys, items) in self.keys.chunks(GROUP).zip(groups) {
            let mut group = Group::new(self.cache, self.pinned, keys);
            group.prefetch_homes();
            let mut bits = group.probe_home(simd);
            group.probe_second(simd, &mut bits);
            group.fill_results(items, bits, &mut counts);
        }
        counts
    }
}

/// The keys of writes that follow.
pub(crate) struct Prefetch<'b, 'g> {
    pub(crate) cache: &'b Cache,
    pub(crate) pinned: &'g Pinned<'g>,
    pub(crate) keys: &'b [&'b [u8]],
}

impl WithSimd for Prefetch<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn with<S: Simd>(self, simd: S) {
        for keys in self.keys.chunks(GROUP) {
            let mut group = Group::new(self.cache, self.pinned, keys);
            group.prefetch_homes();
            group.probe_home(simd);
        }
    }
}

/// A group that is being looked up. It is filled in place because it is too large to move.
struct Group<'b, 'g> {
    cache: &'b Cache,
    pinned: &'g Pinned<'g>,
    keys: &'b [&'b [u8]],
    hashes: [u64; GROUP],
    segments: [Option<&'g Segment>; GROUP],
    /// For each key, the item whose tag matches, if any.
    candidates: [ItemRef; GROUP],
}

/// The state of the keys of a group, one bit each.
#[derive(Clone, Copy, Default)]
struct Bits {
    /// Keys with a candidate.
    matches: u64,
    /// Keys that may be in their second bucket.
    overflow: u64,
    /// Keys whose slot was emptied while it was read. They are looked up again.
    retry: u64,
}

impl<'b, 'g> Group<'b, 'g> {
    #[inline(always)]
    fn new(cache: &'b Cache, pinned: &'g Pinned<'g>, keys: &'b [&'b [u8]]) -> Self {
        Self {
            cache,
            pinned,
            keys,
            hashes: [0; GROUP],
            segments: [None; GROUP],
            candidates: [ItemRef::default(); GROUP],
        }
    }

    #[inline(always)]
    fn prefetch_homes(&mut self) {
        let directory = self.cache.index.directory(self.pinned);
        let hashed = self.hashes.iter_mut().zip(&mut self.segments);
        let keys = prefetch_ahead(self.keys.len(), |at| self.keys[at]);
        for (key, (hash, segment)) in keys.zip(hashed) {
            *hash = self.cache.hasher.hash(key);
            let found = directory.segment(*hash);
            found.buckets()[KeyBuckets::new(*hash).home].prefetch();
            *segment = Some(found);
        }
    }

    #[inline(always)]
    fn probe_home<S: Simd>(&mut self, simd: S) -> Bits {
        let mut bits = Bits::default();
        for at in 0..self.keys.len().min(GROUP) {
            let (Some(segment), key_buckets) =
                (self.segments[at], KeyBuckets::new(self.hashes[at]))
            else {
                continue;
            };
            let home = &segment.buckets()[key_buckets.home];
            let mask = home.find(simd, key_buckets);
            if mask != 0 {
                let entry = home.entry(mask.trailing_zeros() as usize);
                self.take_candidate(at, entry, &mut bits);
            } else if home.has_overflow(key_buckets.tag) {
                segment.buckets()[key_buckets.second()].prefetch();
                bits.overflow |= 1 << at;
            }
        }
        bits
    }

    #[inline(always)]
    fn probe_second<S: Simd>(&mut self, simd: S, bits: &mut Bits) {
        let mut overflow = bits.overflow;
        while overflow != 0 {
            let at = overflow.trailing_zeros() as usize;
            overflow &= overflow - 1;
            let (Some(segment), key_buckets) =
                (self.segments[at], KeyBuckets::new(self.hashes[at]))
            else {
                continue;
            };
            let second = &segment.buckets()[key_buckets.second()];
            let mask = second.find(simd, key_buckets);
            if mask != 0 {
                let entry = second.entry(mask.trailing_zeros() as usize);
                self.take_candidate(at, entry, bits);
            }
        }
    }

    #[inline(always)]
    fn take_candidate(&mut self, at: usize, entry: Option<Entry>, bits: &mut Bits) {
        match entry {
            Some(Entry { item, .. }) => {
                self.cache.blocks.prefetch(item);
                self.candidates[at] = item;
                bits.matches |= 1 << at;
            }
            None => bits.retry |= 1 << at,
        }
    }

    #[inline(always)]
    fn fill_results(&self, items: &mut [Option<Item<'g>>], bits: Bits, counts: &mut Counts) {
        items.fill(None);
        let moment = self.cache.moment();
        // Keys that are known to be missing cost nothing more.
        let mut left = bits.matches | bits.retry;
        while left != 0 {
            let at = left.trailing_zeros() as usize;
            left &= left - 1;
            let key = self.keys[at];
            let candidate = (bits.matches & 1 << at != 0)
                .then(|| self.cache.record(self.pinned, self.candidates[at]));
            let record = match candidate {
                Some(record) if record.key() == key => record,
                _ => match self.find_again(at) {
                    Some(found) => found,
                    None => continue,
                },
            };
            if let Some(item) = counts.found(record, moment) {
                record.prefetch_remaining_lines();
                items[at] = Some(item);
            }
        }
    }

    #[cold]
    fn find_again(&self, at: usize) -> Option<Record<'g>> {
        let (_, found) = self
            .cache
            .find(self.pinned, self.hashes[at], self.keys[at])?;
        Some(found)
    }
}
