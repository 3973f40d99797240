//! The designs under study: one small trait, and several tables of fixed capacity that implement
//! it.
//!
//! | design | a key is in | compared | source |
//! |---|---|---|---|
//! | `cuckoo2` … `cuckoo4` | one of N slots | a vector of keys, one per lane, by gathers | Pagh and Rodler, 2001; Fotakis et al., 2003 |
//! | `bucketized2x2` … `bucketized3x8` | one of N buckets of M slots | all slots of a bucket at once, or a vector of keys | Dietzfelbinger and Weidling, 2007 |
//! | `interleaved2x4`, `interleaved2x8` | the same, each key beside its value | all words of a bucket at once, or a vector of keys | the layout of an array of pairs |
//! | `tagged8`, `tagged16` | a group of 16, or the groups after it | sixteen tags at once | Kulukundis, 2017 |
//! | `neighborhash` | a ring of linked slots, mostly in the home's line | an entry at a time, or a vector of keys | Wang et al., 2024 |
//! | `dlht` | a chain of up to five lines | all slots of a line at once | Katsarakis et al., 2024 |
//! | `memc3` | one of two buckets of 4 slots | a tag at a time, no vectors: the baseline | Fan, Andersen and Kaminsky, 2013 |
//!
//! They share the hash, the memory, the sentinels and the batch strategies ([`Lookup`]), so a study
//! of two designs compares their layouts. Programs should use `forerun_hash::HashTable`, which was
//! chosen from these designs. The tables here do not grow: an insertion that finds no slot is
//! refused ([`Full`]).

mod build;
mod build_error;
pub mod cuckoo;
pub mod dlht;
mod hasher;
mod lookup;
pub mod memc3;
mod names;
mod narrow_lanes;
pub mod neighborhash;
mod sentinel_entries;
mod slab;
mod sync;
pub mod tagged;
mod word;

pub use build::build;
pub use build_error::BuildError;
pub use names::{Design, Lookup, ParseDesignError, ParseLookupError};
pub use word::{SLOTS_MAX, Word};

use forerun_core::arch::Isa;

/// A table has no slot for a key: it is as full as its design allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the table has no slot for the key: it holds {entries} entries in {slots} slots")]
pub struct Full {
    /// Entries in the table.
    pub entries: usize,
    /// Its slots.
    pub slots: usize,
}

/// How many keys ahead a batch of writes prefetches.
const WRITES_AHEAD: usize = 16;

/// A table of fixed capacity.
///
/// ```
/// use forerun_core::arch;
/// use forerun_studies::designs::{Design, FixedTable, Lookup, build};
///
/// let mut table = build::<u64, u64>(Design::Bucketized2x4, 1000, arch::isa(), 7)?;
/// table.insert(5, 50)?;
/// table.insert(0, 1)?;
/// let (mut values, mut found) = ([0; 3], [false; 3]);
/// assert_eq!(table.find(&[0, 4, 5], &mut values, &mut found, Lookup::Auto), 2);
/// assert_eq!(found, [true, false, true]);
/// assert_eq!((values[0], values[2]), (1, 50));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait FixedTable<K: Word, V: Word>: Send + Sync {
    /// Inserts an entry or replaces the key's entry. Returns the previous value.
    ///
    /// # Errors
    /// [`Full`] if the design's search, which is bounded, cannot free a slot. The table is
    /// unchanged.
    fn insert(&mut self, key: K, value: V) -> Result<Option<V>, Full>;

    /// Removes a key and returns its value.
    fn remove(&mut self, key: K) -> Option<V>;

    /// A key's value.
    fn get(&self, key: K) -> Option<V>;

    /// Looks keys up. Returns the number of keys found.
    ///
    /// The shortest of the three slices determines the number of lookups. `found[i]` is whether
    /// `keys[i]` was found, and `values[i]` is its value in that case and any value otherwise. Keys
    /// may repeat. If the design does not have the strategy ([`Design::lookups`]), the closest one
    /// runs instead.
    fn find(&self, keys: &[K], values: &mut [V], found: &mut [bool], lookup: Lookup) -> usize;

    /// Entries in the table.
    fn len(&self) -> usize;

    /// Whether the table has no entries.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of slots. The load factor is [`FixedTable::len`] divided by this.
    fn slots(&self) -> usize;

    /// Bytes of memory for the slots and everything else that lookups read.
    fn memory_bytes(&self) -> usize;

    /// Minimum number of cache lines that a lookup of the key reads.
    fn lines_touched(&self, key: K) -> u32;

    /// Prefetches the first line that an operation on the key needs.
    fn prefetch(&self, key: K);

    /// Uses another instruction set for later lookups, so that one table can be measured with each.
    /// If the machine lacks it, the best one below it is used. A design without vector code ignores
    /// the call.
    fn set_isa(&mut self, isa: Isa) {
        let _ = isa;
    }

    /// The table as one that readers and writers share, if the design supports that.
    fn as_shared(&self) -> Option<&dyn SharedTable<K, V>> {
        None
    }

    /// Inserts entries in order and prefetches ahead. Stops at the first entry without a slot.
    ///
    /// The shorter slice determines the number of entries.
    ///
    /// # Errors
    /// [`Full`]. The earlier entries are in the table.
    fn insert_batch(&mut self, keys: &[K], values: &[V]) -> Result<(), Full> {
        for (i, (&key, &value)) in keys.iter().zip(values).enumerate() {
            if let Some(&ahead) = keys.get(i + WRITES_AHEAD) {
                self.prefetch(ahead);
            }
            self.insert(key, value)?;
        }
        Ok(())
    }

    /// Removes keys in order and prefetches ahead. Returns how many were present.
    fn remove_batch(&mut self, keys: &[K]) -> usize {
        let mut removed = 0;
        for (i, &key) in keys.iter().enumerate() {
            if let Some(&ahead) = keys.get(i + WRITES_AHEAD) {
                self.prefetch(ahead);
            }
            removed += usize::from(self.remove(key).is_some());
        }
        removed
    }
}

/// A table that any number of threads can read and write at the same time.
pub trait SharedTable<K: Word, V: Word>: FixedTable<K, V> {
    /// Like [`FixedTable::insert`], concurrently with readers. Writers wait for each other.
    ///
    /// # Errors
    /// Those of [`FixedTable::insert`].
    fn insert_shared(&self, key: K, value: V) -> Result<Option<V>, Full>;

    /// Like [`FixedTable::remove`], concurrently with readers.
    fn remove_shared(&self, key: K) -> Option<V>;
}
