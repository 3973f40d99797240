//! The designs that are studied: one small trait, several tables of fixed width behind it, built by
//! name.
//!
//! | design | a key is in | compared | source |
//! |---|---|---|---|
//! | `cuckoo2` … `cuckoo4` | one of N slots | a vector of keys, one a lane, by gathers | Pagh and Rodler, 2001; Fotakis et al., 2003 |
//! | `bucketized2x2` … `bucketized3x8` | one of N buckets of M slots | all slots of a bucket at once | Dietzfelbinger and Weidling, 2007 |
//! | `tagged8`, `tagged16` | a group of 16, or the groups after it | sixteen tags at once | Kulukundis, 2017 |
//! | `memc3` | one of two buckets of 4 slots | a tag at a time, no vectors: the baseline | Fan, Andersen and Kaminsky, 2013 |
//!
//! They share hash, memory, marks and batch strategies ([`Lookup`]), so that a study of two of them
//! compares their layouts. `forerun_hash::HashTable` is the table to use; these are what it was
//! chosen from. They hold what they were built for and do not grow: an insertion that finds no
//! place is refused ([`Full`]).

mod aside;
mod build;
pub mod cuckoo;
mod hasher;
mod lookup;
pub mod memc3;
mod names;
mod slab;
pub mod tagged;
mod word;

pub use build::{BuildError, SLOTS_MAX, build};
pub use names::{Design, Lookup, ParseDesignError, ParseLookupError};
pub use word::Word;

use forerun_core::arch::Isa;

/// A table cannot place a key: it is as full as its design allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no place can be made for the key: the table holds {entries} entries in {slots} slots")]
pub struct Full {
    /// Entries in the table.
    pub entries: usize,
    /// Its slots.
    pub slots: usize,
}

/// A table of fixed width that does not grow.
///
/// ```
/// use forerun_core::arch;
/// use forerun_studies::designs::{Design, FixedTable, Lookup, build};
///
/// let mut table = build::<u64, u64>(Design::Bucketized2x4, 1000, arch::isa(), 7)?;
/// table.insert(5, 50)?;
/// table.insert(0, 1)?;
/// let (mut values, mut found) = ([0; 3], [false; 3]);
/// assert_eq!(table.find_batch(&[0, 4, 5], &mut values, &mut found, Lookup::Auto), 2);
/// assert_eq!(found, [true, false, true]);
/// assert_eq!((values[0], values[2]), (1, 50));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait FixedTable<K: Word, V: Word>: Send + Sync {
    /// Puts an entry in, in place of the key's entry if there is one, and returns the value of
    /// that.
    ///
    /// # Errors
    /// [`Full`] when no place can be made within the bounds of the design's search. The table is as
    /// before.
    fn insert(&mut self, key: K, value: V) -> Result<Option<V>, Full>;

    /// Takes a key's entry out, and returns its value.
    fn remove(&mut self, key: K) -> Option<V>;

    /// A key's value.
    fn get(&self, key: K) -> Option<V>;

    /// Looks keys up; returns how many were found.
    ///
    /// As many keys are looked up as the shortest of the three slices is long. `found[i]` tells of
    /// `keys[i]`, and `values[i]` is its value if it was found; otherwise it is any value. A key
    /// may be there several times. A strategy that the design does not have ([`Design::lookups`])
    /// runs as the closest that it has.
    fn find_batch(&self, keys: &[K], values: &mut [V], found: &mut [bool], lookup: Lookup)
    -> usize;

    /// Entries in the table.
    fn len(&self) -> usize;

    /// Whether there is no entry.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Slots for entries: the load factor is [`FixedTable::len`] by this.
    fn slots(&self) -> usize;

    /// Memory that holds the slots and all that lookups read.
    fn memory_bytes(&self) -> usize;

    /// Cache lines that a lookup of the key reads, if it reads no more than it must.
    fn lines_touched(&self, key: K) -> u32;

    /// Asks for the first line that an operation on the key needs.
    fn prefetch(&self, key: K);

    /// Looks up by another instruction set from now on, so that one table can be measured with
    /// each; one that the machine lacks is replaced by the best below it. A design without vector
    /// code has nothing to change.
    fn set_isa(&mut self, isa: Isa) {
        let _ = isa;
    }

    /// The table as one that is shared by readers and a writer, if the design is made for it.
    fn as_shared(&self) -> Option<&dyn SharedTable<K, V>> {
        None
    }

    /// Inserts entries in order, prefetching ahead; stops at the first that cannot be placed.
    ///
    /// As many are inserted as the shorter slice is long.
    ///
    /// # Errors
    /// [`Full`], with the entries so far in the table.
    fn insert_batch(&mut self, keys: &[K], values: &[V]) -> Result<(), Full> {
        const AHEAD: usize = 16;
        for (i, (&key, &value)) in keys.iter().zip(values).enumerate() {
            if let Some(&ahead) = keys.get(i + AHEAD) {
                self.prefetch(ahead);
            }
            self.insert(key, value)?;
        }
        Ok(())
    }
}

/// A table that can be read and written at once, by any number of threads.
pub trait SharedTable<K: Word, V: Word>: FixedTable<K, V> {
    /// As [`FixedTable::insert`], beside readers. Writers wait for each other.
    ///
    /// # Errors
    /// As of [`FixedTable::insert`].
    fn insert_shared(&self, key: K, value: V) -> Result<Option<V>, Full>;

    /// As [`FixedTable::remove`], beside readers.
    fn remove_shared(&self, key: K) -> Option<V>;
}
