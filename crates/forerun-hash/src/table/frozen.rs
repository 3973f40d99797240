//! A table that is only read: the same buckets, without what protects readers from writers.
//!
//! ```text
//!   HashTable ── freeze ──▶ FrozenHashTable        reads pin no epoch and check no version
//!             ◀── thaw ──                          neither copies an entry
//! ```
//!
//! Freezing takes the table by value, as `BytesMut::freeze` and `DashMap::into_read_only` do. So
//! the type proves that no writer exists, and an `Arc` can share the result with threads, since it
//! has no lifetime. Users of hashbrown get the same guarantee from `&HashMap`, which excludes
//! `&mut`; `&HashTable` does not, because its writers take `&self`.

use super::directory::Directory;
use super::version::Frozen;
use super::{HashTable, HashTableIter, lookup};
use crossbeam_epoch::unprotected;
use std::fmt;
use std::sync::atomic::Ordering;

/// A [`HashTable`] that is only read. Made by [`HashTable::freeze`].
///
/// Any number of threads read it. A lookup by [`find`](FrozenHashTable::find) costs less than in a
/// table that may be written meanwhile, above all in the CPU's caches.
///
/// ```
/// use forerun_hash::HashTable;
/// use std::sync::Arc;
///
/// let table = HashTable::new()?;
/// table.insert_batch(&[1, 2, 3], &[10, 20, 30])?;
/// let frozen = Arc::new(table.freeze());
/// let reader = std::thread::spawn({
///     let frozen = Arc::clone(&frozen);
///     move || frozen.get(2)
/// });
/// let (mut values, mut found) = ([0; 2], [false; 2]);
/// assert_eq!(frozen.find(&[3, 4], &mut values, &mut found), 1);
/// assert_eq!((values, found), ([30, 0], [true, false]));
/// assert_eq!(reader.join().unwrap(), Some(20));
/// # Ok::<(), forerun_hash::Error>(())
/// ```
pub struct FrozenHashTable {
    /// No reference to it leaves this type, as writers need no more.
    table: HashTable,
}

impl HashTable {
    /// Makes the table read-only. Takes constant time, and moves no entry.
    pub fn freeze(self) -> FrozenHashTable {
        FrozenHashTable { table: self }
    }
}

impl FrozenHashTable {
    /// Makes the table writable again. Takes constant time, and moves no entry.
    ///
    /// ```
    /// use forerun_hash::HashTable;
    ///
    /// let frozen = HashTable::new()?.freeze();
    /// let table = frozen.thaw();
    /// table.insert(1, 10)?;
    /// assert_eq!(table.freeze().get(1), Some(10));
    /// # Ok::<(), forerun_hash::Error>(())
    /// ```
    pub fn thaw(self) -> HashTable {
        self.table
    }

    /// The value of a key.
    #[inline]
    pub fn get(&self, key: u64) -> Option<u64> {
        lookup::get::<Frozen>(self.directory(), self.table.permutation.hash(key))
    }

    /// Whether a key is present.
    pub fn contains(&self, key: u64) -> bool {
        self.get(key).is_some()
    }

    /// Looks up a batch, as [`HashTable::find`] does.
    pub fn find(&self, keys: &[u64], values: &mut [u64], found: &mut [bool]) -> usize {
        let permutation = self.table.permutation;
        lookup::find::<Frozen>(|| self.directory(), permutation, keys, values, found)
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// The number of slots in the buckets.
    pub fn slots(&self) -> usize {
        self.table.slots()
    }

    /// The memory use of the table, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.table.memory_bytes()
    }

    /// Iterates over all entries, in arbitrary order, as [`HashTable::iter`] does.
    pub fn iter(&self) -> HashTableIter<'_> {
        self.table.iter()
    }

    #[inline(always)]
    fn directory(&self) -> &Directory {
        // SAFETY: nothing retires the directory while `self` owns the table and no one writes it,
        // so it needs no guard to stay alive as long as `self` is borrowed. The pointer is never
        // null after construction. Relaxed: whoever has `self` has seen the table's last write.
        unsafe {
            let directory = self.table.directory.load(Ordering::Relaxed, unprotected());
            &*directory.as_raw()
        }
    }
}

impl fmt::Debug for FrozenHashTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FrozenHashTable").field(&self.table).finish()
    }
}
