//! MemC3's index as its paper describes it, without vectors or batches: the baseline of the benches
//! of caches and servers.
//!
//! ```text
//!   hash ─┬─ bucket b1, and b2 = b1 xor mix(tag)
//!         ├─ tag, 1 … 255
//!         └─ version counter, one of 8,192
//!
//!   bucket   │ t t t t │ item │ item │ item │ item │          one cache line of eight words
//! ```
//!
//! Fan, Andersen and Kaminsky, "MemC3: Compact and Concurrent MemCache with Dumber Caching and
//! Smarter Hashing", NSDI 2013. A reader takes no lock: it reads the key's version, its two buckets
//! and the items whose tags match, and then the version again. Here, both in MemC3's favour, the
//! buckets are aligned cache lines and the items are contiguous in one piece of memory
//! (`item_arena.rs`); both are in huge pages. The index is filled once and then read; readers check
//! the counters as they would with a concurrent writer.

use forerun_core::{Atomics, Pages, RegionError};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const SLOTS: usize = 4;
/// Words of a bucket: the tags, a word for each slot, padding.
const WORDS: usize = 8;
const VERSIONS: usize = 8192;
const MOVES_MAX: usize = 500;

/// A filled index.
pub(crate) struct MemC3Index {
    words: Atomics<AtomicU64>,
    bucket_mask: usize,
    versions: Vec<AtomicU32>,
}

/// The number of slots for this many items: at most 90% of them are filled, and the number of
/// buckets is a power of two.
pub(crate) fn slots_for(items: usize) -> usize {
    (items * 10 / 9 / SLOTS + 1).next_power_of_two() * SLOTS
}

#[derive(Clone, Copy)]
struct Candidate {
    bucket: usize,
    tag: u8,
    version: usize,
}

impl MemC3Index {
    /// An index with [`slots_for`] this many items.
    pub(crate) fn new(items: usize) -> Result<MemC3Index, RegionError> {
        let buckets = slots_for(items) / SLOTS;
        Ok(MemC3Index {
            words: Atomics::new(buckets * WORDS, Pages::Huge)?,
            bucket_mask: buckets - 1,
            versions: (0..VERSIONS).map(|_| AtomicU32::new(0)).collect(),
        })
    }

    /// Bytes of the buckets and the counters.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.words.len() * size_of::<u64>() + VERSIONS * size_of::<u32>()
    }

    #[inline(always)]
    fn candidate(&self, hash: u64) -> Candidate {
        Candidate {
            bucket: (hash >> 24) as usize & self.bucket_mask,
            tag: (hash as u8).max(1),
            version: (hash >> 8) as usize % VERSIONS,
        }
    }

    #[inline(always)]
    fn other(&self, bucket: usize, tag: u8) -> usize {
        // In a table of 256 buckets or more, this is another bucket, because a tag is not 0.
        (bucket ^ (usize::from(tag) * 0x5bd1_e995)) & self.bucket_mask
    }

    #[inline(always)]
    fn bucket(&self, bucket: usize) -> &[AtomicU64] {
        &self.words[bucket * WORDS..][..WORDS]
    }

    #[inline(always)]
    fn tags(bucket: &[AtomicU64]) -> [u8; SLOTS] {
        // Acquire: the items are read after their tags.
        (bucket[0].load(Ordering::Acquire) as u32).to_le_bytes()
    }

    /// Replaces a slot and returns its tag and item.
    fn replace(&mut self, bucket: usize, slot: usize, tag: u8, item: u64) -> (u8, u64) {
        let bucket = self.bucket(bucket);
        let mut tags = MemC3Index::tags(bucket);
        let old = std::mem::replace(&mut tags[slot], tag);
        // Relaxed: the index is borrowed mutably, so no one reads it now.
        let item = bucket[1 + slot].swap(item, Ordering::Relaxed);
        bucket[0].store(u32::from_le_bytes(tags).into(), Ordering::Relaxed);
        (old, item)
    }

    /// Stores an item whose key is not present. Returns `false` if no slot was found for it.
    pub(crate) fn insert(&mut self, hash: u64, item: u64) -> bool {
        let Candidate { bucket, tag, .. } = self.candidate(hash);
        let (mut bucket, mut tag, mut item) = (bucket, tag, item);
        for step in 0..MOVES_MAX {
            for at in [bucket, self.other(bucket, tag)] {
                let tags = MemC3Index::tags(self.bucket(at));
                if let Some(slot) = tags.iter().position(|&tag| tag == 0) {
                    self.replace(at, slot, tag, item);
                    return true;
                }
            }
            // Moves one of the blocking items to its other bucket.
            (tag, item) = self.replace(bucket, step % SLOTS, tag, item);
            bucket = self.other(bucket, tag);
        }
        false
    }

    /// What `value_of` returns for the item of this hash that it accepts. It reads the item, which
    /// may have another key with the same tag.
    #[inline(always)]
    pub(crate) fn find<T>(&self, hash: u64, value_of: impl Fn(u64) -> Option<T>) -> Option<T> {
        let at = self.candidate(hash);
        let version = &self.versions[at.version];
        loop {
            // Acquire: the buckets are read after it.
            let seen = version.load(Ordering::Acquire);
            let found = self
                .find_in(at.bucket, at.tag, &value_of)
                .or_else(|| self.find_in(self.other(at.bucket, at.tag), at.tag, &value_of));
            // Relaxed: the loads of the slots before it are acquires.
            if seen & 1 == 0 && version.load(Ordering::Relaxed) == seen {
                return found;
            }
        }
    }

    #[inline(always)]
    fn find_in<T>(&self, bucket: usize, tag: u8, value_of: impl Fn(u64) -> Option<T>) -> Option<T> {
        let bucket = self.bucket(bucket);
        let tags = MemC3Index::tags(bucket);
        let items = tags.iter().zip(&bucket[1..]);
        let mut matching = items.filter(|(here, _)| **here == tag);
        matching.find_map(|(_, item)| value_of(item.load(Ordering::Acquire)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_found_and_no_other() {
        let hash = crate::workload::mix;
        let mut table = MemC3Index::new(50_000).unwrap();
        for n in 0..50_000 {
            assert!(table.insert(hash(n), n), "{n}");
        }
        let find = |n: u64| table.find(hash(n), |item| (item == n).then_some(item));
        for n in 0..50_000 {
            assert_eq!(find(n), Some(n));
            assert_eq!(find(n + 50_000), None);
        }
        assert_eq!(slots_for(50_000), 1 << 16);
        assert!(table.memory_bytes() >= 16 << 16);
    }
}
