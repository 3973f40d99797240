//! MemC3's table, the baseline: optimistic concurrent cuckoo hashing with two buckets of four
//! slots, one-byte tags and no vectors.
//!
//! ```text
//!   key ─ hash ─┬─ bucket b1, and b2 = b1 xor mix(tag): either can be had from the other and the tag
//!               ├─ tag, 1 … 255
//!               └─ version counter, one of 8,192
//!
//!   tags      │ b0: t t t t │ b1: t t t t │ …
//!   entries   │ b0: k k k k v v v v │ b1: …
//! ```
//!
//! Fan, Andersen and Kaminsky, "MemC3: Compact and Concurrent MemCache with Dumber Caching and
//! Smarter Hashing", NSDI 2013. Readers take no lock. They read a key's version, its slots, and the
//! version again, and start over if it changed (`version_counters.rs`). Writers share a lock. An
//! insertion first finds a path of moves, then makes the moves from the end of the path, so every
//! key is always in the table. Each move is a write of the key that is moved.
//!
//! It differs from the paper in two ways, both to its advantage: entries are in the buckets, not
//! behind pointers; and the path is the shortest one (breadth first, as in the authors' later
//! libcuckoo), not the first one of a random walk. The number of buckets is a power of two, because
//! the xor requires it.

mod bucket_memory;
#[cfg(all(loom, test))]
mod loom_tests;
mod probe;
mod tagged_bucket;
mod version_counters;

use super::cuckoo::path::{BucketState, Buckets, Search, Slot};
use super::hasher::{Constants, scale};
use super::lookup::{self, Batch};
use super::sync::{Mutex, MutexGuard};
use super::{BuildError, FixedTable, Full, Lookup, SharedTable, Word};
use bucket_memory::Memory;
use forerun_core::arch::Isa;
use tagged_bucket::{Entries, SLOTS, Tags};
use version_counters::Versions;

/// A table that one thread writes while others read it.
///
/// ```
/// use forerun_core::arch;
/// use forerun_studies::designs::memc3::MemC3;
/// use forerun_studies::designs::{FixedTable, SharedTable};
///
/// let table = MemC3::<u64, u64>::new(1000, arch::isa(), 7)?;
/// std::thread::scope(|scope| {
///     scope.spawn(|| table.insert_shared(1, 10));
///     scope.spawn(|| assert!(matches!(table.get(1), None | Some(10))));
/// });
/// assert_eq!(table.get(1), Some(10));
/// # Ok::<(), forerun_studies::designs::BuildError>(())
/// ```
#[derive(Debug)]
pub struct MemC3<K: Word, V: Word> {
    tags: Memory<Tags>,
    entries: Memory<Entries<K, V>>,
    versions: Versions,
    constants: Constants,
    isa: Isa,
    writer: Mutex<Writer>,
}

/// The state that only the writer uses.
#[derive(Debug)]
struct Writer {
    len: usize,
    search: Search,
}

/// The buckets that may hold a key.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KeyBuckets {
    bucket: u32,
    tag: u8,
    /// The hash that selects the key's version counter.
    stripe: u32,
}

impl<K: Word, V: Word> MemC3<K, V> {
    /// Creates a table with at least `slots` slots. The number of buckets is a power of two.
    ///
    /// # Errors
    /// Too many slots to address; the memory could not be allocated.
    pub fn new(slots: usize, isa: Isa, seed: u64) -> Result<Self, BuildError> {
        let buckets = BuildError::check_slots::<K>(slots)?
            .div_ceil(SLOTS)
            .next_power_of_two();
        Ok(MemC3 {
            tags: Memory::new(buckets as u32)?,
            entries: Memory::new(buckets as u32)?,
            versions: Versions::new(),
            constants: Constants::from_seed(seed),
            isa,
            writer: Mutex::new(Writer {
                len: 0,
                search: Search::new(),
            }),
        })
    }

    #[inline(always)]
    fn locate(&self, key: K) -> KeyBuckets {
        let hash = key.hash(&self.constants);
        KeyBuckets {
            bucket: scale(hash.first, self.tags.len()),
            tag: (hash.step as u8).max(1),
            stripe: hash.step,
        }
    }

    /// The other bucket of an entry, from either of its two buckets.
    #[inline(always)]
    fn other(&self, bucket: u32, tag: u8) -> u32 {
        // A multiplier of MurmurHash2, as in the authors' code for this step.
        (bucket ^ u32::from(tag).wrapping_mul(0x5bd1_e995)) & (self.tags.len() - 1)
    }

    /// A key's slot in a bucket and its value. A concurrent move may hide them.
    #[inline(always)]
    fn look_in(&self, bucket: u32, tag: u8, key: K) -> Option<(Slot, V)> {
        let tags = self.tags.get(bucket).load();
        for (slot, &here) in tags.iter().enumerate() {
            if here == tag {
                let entries = self.entries.get(bucket);
                if entries.key(slot) == key {
                    return Some((Slot { bucket, slot }, entries.value(slot)));
                }
            }
        }
        None
    }

    /// A key's slot and value. A concurrent move may hide them.
    #[inline(always)]
    fn bucket_state(&self, at: KeyBuckets, key: K) -> Option<(Slot, V)> {
        let found = self.look_in(at.bucket, at.tag, key);
        found.or_else(|| self.look_in(self.other(at.bucket, at.tag), at.tag, key))
    }

    /// A key's value: the paper's lookup.
    #[inline(always)]
    fn read(&self, at: KeyBuckets, key: K) -> Option<V> {
        loop {
            let version = self.versions.stable_version(at.stripe);
            let found = self.bucket_state(at, key);
            if self.versions.unchanged(at.stripe, version) {
                return found.map(|(_, value)| value);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Writer> {
        // A writer never panics in the middle of a write, so the table is intact even if the lock
        // is poisoned.
        self.writer
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// A free slot for an absent key. Moves other entries if necessary.
    fn free_slot(&self, at: KeyBuckets, writer: &mut Writer) -> Option<Slot> {
        let buckets = [at.bucket, self.other(at.bucket, at.tag)];
        for bucket in buckets {
            if let BucketState::Free(slot) = Buckets::bucket_state(self, bucket) {
                return Some(Slot { bucket, slot });
            }
        }
        let (free_slot, moves) = writer.search.run(self, buckets.into_iter())?;
        for step in moves {
            self.move_entry(step.from, step.to);
        }
        Some(free_slot)
    }

    /// Writes an entry to a free slot.
    fn fill(&self, slot: Slot, at: KeyBuckets, key: K, value: V) {
        let Slot { bucket, slot } = slot;
        self.versions.write(at.stripe, || {
            self.entries.get(bucket).store(slot, key, value);
            self.tags.get(bucket).set(slot, at.tag);
        });
    }

    /// Frees the slot of a key.
    fn free(&self, slot: Slot, at: KeyBuckets) {
        let tags = self.tags.get(slot.bucket);
        self.versions.write(at.stripe, || tags.clear(slot.slot));
    }

    /// Moves an entry to a free slot of its other bucket. Readers of its key wait or read again.
    fn move_entry(&self, from: Slot, to: Slot) {
        let entries = self.entries.get(from.bucket);
        let (key, value) = (entries.key(from.slot), entries.value(from.slot));
        let at = self.locate(key);
        self.versions.write(at.stripe, || {
            self.entries.get(to.bucket).store(to.slot, key, value);
            self.tags.get(to.bucket).set(to.slot, at.tag);
            // Clear the slot now, under this key's version. It will later be written as another
            // key's entry, which readers of this key would not notice.
            self.tags.get(from.bucket).clear(from.slot);
        });
    }
}

impl<K: Word, V: Word> Buckets for MemC3<K, V> {
    const SLOTS: usize = SLOTS;

    fn bucket_state(&self, bucket: u32) -> BucketState {
        let free = self
            .tags
            .get(bucket)
            .load()
            .iter()
            .position(|&tag| tag == 0);
        free.map_or(BucketState::Full, BucketState::Free)
    }

    fn choices(&self, at: Slot) -> impl Iterator<Item = u32> {
        let tag = self.tags.get(at.bucket).load()[at.slot];
        [at.bucket, self.other(at.bucket, tag)].into_iter()
    }
}

impl<K: Word, V: Word> SharedTable<K, V> for MemC3<K, V> {
    fn insert_shared(&self, key: K, value: V) -> Result<Option<V>, Full> {
        let mut writer = self.lock();
        let at = self.locate(key);
        if let Some((slot, old)) = self.bucket_state(at, key) {
            let entries = self.entries.get(slot.bucket);
            self.versions
                .write(at.stripe, || entries.store_value(slot.slot, value));
            return Ok(Some(old));
        }
        let Some(free_slot) = self.free_slot(at, &mut writer) else {
            return Err(Full {
                entries: writer.len,
                slots: self.slots(),
            });
        };
        self.fill(free_slot, at, key, value);
        writer.len += 1;
        Ok(None)
    }

    fn remove_shared(&self, key: K) -> Option<V> {
        let mut writer = self.lock();
        let at = self.locate(key);
        let (slot, value) = self.bucket_state(at, key)?;
        self.free(slot, at);
        writer.len -= 1;
        Some(value)
    }
}

impl<K: Word, V: Word> FixedTable<K, V> for MemC3<K, V> {
    fn insert(&mut self, key: K, value: V) -> Result<Option<V>, Full> {
        self.insert_shared(key, value)
    }

    fn remove(&mut self, key: K) -> Option<V> {
        self.remove_shared(key)
    }

    fn get(&self, key: K) -> Option<V> {
        self.read(self.locate(key), key)
    }

    fn find(&self, keys: &[K], values: &mut [V], found: &mut [bool], lookup: Lookup) -> usize {
        let lookup = lookup.resolve(self.memory_bytes(), keys.len());
        lookup::find(self.isa, self, Batch::new(keys, values, found), lookup)
    }

    fn len(&self) -> usize {
        self.lock().len
    }

    fn slots(&self) -> usize {
        self.tags.len() as usize * SLOTS
    }

    fn memory_bytes(&self) -> usize {
        self.tags.memory_bytes() + self.entries.memory_bytes() + self.versions.memory_bytes()
    }

    fn lines_touched(&self, key: K) -> u32 {
        let at = self.locate(key);
        let mut lines = 0;
        for bucket in [at.bucket, self.other(at.bucket, at.tag)] {
            lines += 1;
            if self.tags.get(bucket).load().contains(&at.tag) {
                lines += 1;
                if self.look_in(bucket, at.tag, key).is_some() {
                    return lines;
                }
            }
        }
        lines
    }

    fn prefetch(&self, key: K) {
        let bucket = self.locate(key).bucket;
        self.tags.prefetch(bucket);
        self.entries.prefetch(bucket);
    }

    fn as_shared(&self) -> Option<&dyn SharedTable<K, V>> {
        Some(self)
    }
}
