//! MemC3's index as its paper describes it, without vectors or batches. The bench compares the
//! multi-get with it.
//!
//! ```text
//!   key ─ hash ─┬─ bucket b1, and b2 = b1 xor mix(tag)
//!               ├─ tag, 1 … 255
//!               └─ version counter, one of 8,192
//!
//!   bucket │ t t t t │ item │ item │ item │ item │          one cache line
//!   item   │ key len │ value len │ key │ value │
//! ```
//!
//! Fan, Andersen and Kaminsky, "MemC3: Compact and Concurrent MemCache with Dumber Caching and
//! Smarter Hashing", NSDI 2013. A reader takes no lock: it reads the key's version, its two buckets
//! and the items whose tags match, and then the version again. Here, both in MemC3's favour, the
//! buckets are aligned cache lines and the items are contiguous in one piece of memory. The index
//! is filled once and then read; readers check the counters as they would with a concurrent writer.

use foldhash::quality::FixedState;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const SLOTS: usize = 4;
const VERSIONS: usize = 8192;
const MOVES_MAX: usize = 500;
const NONE: u64 = u64::MAX;

#[repr(align(64))]
struct Bucket {
    tags: [u8; SLOTS],
    /// Where each item begins.
    items: [AtomicU64; SLOTS],
}

/// A filled index.
pub(super) struct MemC3 {
    hasher: FixedState,
    buckets: Vec<Bucket>,
    versions: Vec<AtomicU32>,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy)]
struct Candidate {
    bucket: usize,
    tag: u8,
    version: usize,
}

impl MemC3 {
    /// Capacity for this many items, at most 90% full.
    pub(super) fn new(items: usize, bytes: usize) -> MemC3 {
        let buckets = (items * 10 / 9 / SLOTS + 1).next_power_of_two();
        MemC3 {
            hasher: FixedState::with_seed(7),
            buckets: (0..buckets)
                .map(|_| Bucket {
                    tags: [0; SLOTS],
                    items: [const { AtomicU64::new(NONE) }; SLOTS],
                })
                .collect(),
            versions: (0..VERSIONS).map(|_| AtomicU32::new(0)).collect(),
            bytes: Vec::with_capacity(bytes),
        }
    }

    #[inline(always)]
    fn place(&self, key: &[u8]) -> Candidate {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key);
        let hash = hasher.finish();
        Candidate {
            bucket: (hash >> 24) as usize & (self.buckets.len() - 1),
            tag: (hash as u8).max(1),
            version: (hash >> 8) as usize % VERSIONS,
        }
    }

    #[inline(always)]
    fn other(&self, bucket: usize, tag: u8) -> usize {
        // It is never the same bucket, because a tag is not 0.
        (bucket ^ (usize::from(tag) * 0x5bd1_e995)) & (self.buckets.len() - 1)
    }

    /// Stores an item whose key is not present. Returns `false` if no slot was found for it.
    pub(super) fn insert(&mut self, key: &[u8], value: &[u8]) -> bool {
        let Candidate { bucket, tag, .. } = self.place(key);
        let item = self.bytes.len() as u64;
        self.bytes.push(key.len() as u8);
        self.bytes.extend((value.len() as u32).to_le_bytes());
        self.bytes.extend(key);
        self.bytes.extend(value);
        let (mut bucket, mut tag, mut item) = (bucket, tag, item);
        for step in 0..MOVES_MAX {
            for at in [bucket, self.other(bucket, tag)] {
                let free = self.buckets[at].tags.iter().position(|&tag| tag == 0);
                if let Some(slot) = free {
                    self.buckets[at].tags[slot] = tag;
                    *self.buckets[at].items[slot].get_mut() = item;
                    return true;
                }
            }
            // Moves one of the blocking items to its other bucket.
            let (home, slot) = (&mut self.buckets[bucket], step % SLOTS);
            std::mem::swap(&mut tag, &mut home.tags[slot]);
            std::mem::swap(&mut item, home.items[slot].get_mut());
            bucket = self.other(bucket, tag);
        }
        false
    }

    /// The value of a key.
    #[inline]
    pub(super) fn get(&self, key: &[u8]) -> Option<&[u8]> {
        let place = self.place(key);
        let version = &self.versions[place.version];
        loop {
            // Acquire: the buckets are read after it.
            let seen = version.load(Ordering::Acquire);
            let found = self
                .find_in(place.bucket, place.tag, key)
                .or_else(|| self.find_in(self.other(place.bucket, place.tag), place.tag, key));
            // Relaxed: the loads of the slots before it are acquires.
            if seen & 1 == 0 && version.load(Ordering::Relaxed) == seen {
                return found;
            }
        }
    }

    #[inline(always)]
    fn find_in(&self, bucket: usize, tag: u8, key: &[u8]) -> Option<&[u8]> {
        let bucket = &self.buckets[bucket];
        for slot in 0..SLOTS {
            if bucket.tags[slot] == tag {
                let item = bucket.items[slot].load(Ordering::Acquire) as usize;
                let header = &self.bytes[item..item + 5];
                let key_len = usize::from(header[0]);
                let behind = &self.bytes[item + 5..];
                if behind[..key_len] == *key {
                    let len = u32::from_le_bytes([header[1], header[2], header[3], header[4]]);
                    return Some(&behind[key_len..key_len + len as usize]);
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_found_and_no_other() {
        let mut table = MemC3::new(50_000, 0);
        for n in 0..50_000u32 {
            assert!(table.insert(&n.to_be_bytes(), &n.to_le_bytes()), "{n}");
        }
        for n in 0..50_000u32 {
            assert_eq!(table.get(&n.to_be_bytes()), Some(&n.to_le_bytes()[..]));
            assert_eq!(table.get(&(n + 50_000).to_be_bytes()), None);
        }
    }
}
