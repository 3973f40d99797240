//! Cuckoo hashing: a key is in one of N buckets of M slots, and an insertion moves other entries to
//! free a slot.
//!
//! ```text
//!   key ─ hash ─┬─ first ────────▶ bucket  [ M keys │ M values ]
//!               ├─ first + step ──▶ bucket  [ M keys │ M values ]      (N, M)
//!               └─ …
//! ```
//!
//! With M = 1, this is the N-way cuckoo table (Pagh and Rodler, 2001; Fotakis et al., 2003). With M
//! = 2, 4 or 8, it is the bucketised table (Dietzfelbinger and Weidling, 2007), which compares one
//! key with all slots of a bucket in one step. Lookups of both can also run one key per lane
//! (`vertical.rs`). A bucket's keys and values are split or interleaved (`bucket_layout.rs`).
//! Everything else is the same code.
//!
//! **A lookup stops early.** A key goes into the first of its buckets that has a free slot, and
//! moves keep that order. So a key can be in a later bucket only if the earlier one was full at
//! that time. The last slot of a bucket shows whether it was ever full. Below about
//! 80% load, most buckets never were, so most lookups end at the first line, even for missing keys.

mod bucket_layout;
mod keys_values_bucket;
mod pairs_bucket;
pub(super) mod path;
mod probe;
mod vertical;

use super::hasher::{Constants, Hash, scale};
use super::lookup::{self, Batch, by_lane};
use super::sentinel_entries::{SentinelEntries, any_sentinel, is_sentinel};
use super::slab::Slab;
use super::{BuildError, FixedTable, Full, Lookup, Word};
use bucket_layout::BucketLayout;
use forerun_core::arch::Isa;
use keys_values_bucket::KeysValues;
use pairs_bucket::Pairs;
use path::{BucketState, Buckets, Search, Slot};
use std::marker::PhantomData;

/// A table with N candidate buckets per key and M slots per bucket, in a layout `B`.
#[derive(Debug)]
pub struct Cuckoo<K, V, const N: usize, const M: usize, B> {
    buckets: Slab<B>,
    keys: PhantomData<K>,
    constants: Constants,
    sentinels: SentinelEntries<V>,
    /// Entries in buckets.
    entries: usize,
    isa: Isa,
    search: Search,
}

/// A table whose buckets have all keys before all values.
pub type Split<K, V, const N: usize, const M: usize> = Cuckoo<K, V, N, M, KeysValues<K, V, M>>;

/// A table whose buckets have each key beside its value.
pub type Interleaved<K, V, const N: usize, const M: usize> = Cuckoo<K, V, N, M, Pairs<K, V, M>>;

impl<K: Word, V: Word, const N: usize, const M: usize, B: BucketLayout<K, V, M>>
    Cuckoo<K, V, N, M, B>
{
    /// Creates a table with at least `slots` slots.
    ///
    /// # Errors
    /// Too many slots to address; the memory could not be allocated.
    pub fn new(slots: usize, isa: Isa, seed: u64) -> Result<Self, BuildError> {
        let buckets = BuildError::check_slots::<K>(slots)?.div_ceil(M);
        Ok(Cuckoo {
            buckets: Slab::new(buckets as u32)?,
            keys: PhantomData,
            constants: Constants::from_seed(seed),
            sentinels: SentinelEntries::default(),
            entries: 0,
            isa,
            search: Search::new(),
        })
    }

    /// The candidate buckets of a hash, in order.
    fn choices(&self, hash: Hash) -> impl Iterator<Item = u32> + use<K, V, N, M, B> {
        let (len, Hash { first, step }) = (self.buckets.len(), hash);
        (0..N as u32).map(move |turn| {
            let choice = first.wrapping_add(step.wrapping_mul(turn));
            scale(choice, len)
        })
    }

    /// Where a key is.
    fn position(&self, key: K) -> Option<Slot> {
        for bucket in self.choices(key.hash(&self.constants)) {
            let here = self.buckets.get(bucket);
            if let Some(slot) = here.position(key) {
                return Some(Slot { bucket, slot });
            }
            if !here.was_full() {
                return None;
            }
        }
        None
    }

    /// A free slot for an absent key. Moves other entries if necessary.
    fn free_slot(&mut self, key: K) -> Result<Slot, Full> {
        let hash = key.hash(&self.constants);
        for bucket in self.choices(hash) {
            if let BucketState::Free(slot) = self.bucket_state(bucket) {
                return Ok(Slot { bucket, slot });
            }
        }
        let mut search = std::mem::replace(&mut self.search, Search::new());
        let found = search.run(self, self.choices(hash));
        let free_slot = found.map(|(free_slot, moves)| {
            for step in moves {
                let from = self.buckets.get(step.from.bucket);
                let (key, value) = (from.key(step.from.slot), from.value(step.from.slot));
                let to = self.buckets.get_mut(step.to.bucket);
                to.put(step.to.slot, key, value);
            }
            free_slot
        });
        self.search = search;
        free_slot.ok_or(Full {
            entries: self.len(),
            slots: self.slots(),
        })
    }
}

impl<K: Word, V: Word, const N: usize, const M: usize, B: BucketLayout<K, V, M>> Buckets
    for Cuckoo<K, V, N, M, B>
{
    const SLOTS: usize = M;

    fn bucket_state(&self, bucket: u32) -> BucketState {
        match self.buckets.get(bucket).vacancy() {
            Some(slot) => BucketState::Free(slot),
            None => BucketState::Full,
        }
    }

    fn choices(&self, at: Slot) -> impl Iterator<Item = u32> {
        let key = self.buckets.get(at.bucket).key(at.slot);
        Cuckoo::choices(self, key.hash(&self.constants))
    }
}

impl<K: Word, V: Word, const N: usize, const M: usize, B: BucketLayout<K, V, M>> FixedTable<K, V>
    for Cuckoo<K, V, N, M, B>
{
    fn insert(&mut self, key: K, value: V) -> Result<Option<V>, Full> {
        if is_sentinel(key) {
            return Ok(self.sentinels.slot(key).replace(value));
        }
        if let Some(Slot { bucket, slot }) = self.position(key) {
            let here = self.buckets.get_mut(bucket);
            let old = here.value(slot);
            here.put(slot, key, value);
            return Ok(Some(old));
        }
        let Slot { bucket, slot } = self.free_slot(key)?;
        self.buckets.get_mut(bucket).put(slot, key, value);
        self.entries += 1;
        Ok(None)
    }

    fn remove(&mut self, key: K) -> Option<V> {
        if is_sentinel(key) {
            return self.sentinels.slot(key).take();
        }
        let Slot { bucket, slot } = self.position(key)?;
        self.entries -= 1;
        Some(self.buckets.get_mut(bucket).take(slot))
    }

    fn get(&self, key: K) -> Option<V> {
        if is_sentinel(key) {
            return self.sentinels.get(key);
        }
        lookup::get(self.isa, self, key)
    }

    fn find(&self, keys: &[K], values: &mut [V], found: &mut [bool], lookup: Lookup) -> usize {
        let lookup = lookup.resolve(self.memory_bytes(), keys.len());
        let batch = Batch::new(keys, values, found);
        let hits = match by_lane::find(self.isa, self, batch, lookup) {
            Ok(hits) => hits,
            Err(batch) => lookup::find(self.isa, self, batch, lookup),
        };
        if any_sentinel(keys) {
            return self.sentinels.correct(keys, values, found, hits);
        }
        hits
    }

    fn set_isa(&mut self, isa: Isa) {
        self.isa = isa;
    }

    fn len(&self) -> usize {
        self.entries + self.sentinels.len()
    }

    fn slots(&self) -> usize {
        self.buckets.len() as usize * M
    }

    fn memory_bytes(&self) -> usize {
        self.buckets.memory_bytes()
    }

    fn lines_touched(&self, key: K) -> u32 {
        if is_sentinel(key) {
            return 0;
        }
        let mut lines = 0;
        for bucket in self.choices(key.hash(&self.constants)) {
            let here = self.buckets.get(bucket);
            lines += 1;
            if let Some(slot) = here.position(key) {
                return lines + u32::from(B::value_line(slot) > 0);
            }
            if !here.was_full() {
                break;
            }
        }
        lines
    }

    fn prefetch(&self, key: K) {
        let first = key.hash(&self.constants).first;
        self.buckets.prefetch(scale(first, self.buckets.len()));
    }
}
