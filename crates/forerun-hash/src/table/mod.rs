//! The hash table: buckets of one cache line with two choices per key, quotiented keys,
//! growth by segments.
//!
//! ```text
//!   key --Permutation--> hash --top bits--> directory --> segment --> bucket: | 4 slots | 4 values |   64 bytes
//!                                             epoch        lock,
//!                                                          versions
//!   bucket.rs     the line: slots, counters, values          version.rs   how readers detect moves
//!   place.rs      hash <-> buckets and remainder             segment/path.rs  frees slots by moving entries
//!   segment.rs    buckets, versions, the writers' lock       directory.rs segments by prefix
//!   lookup.rs     single keys and batches                    grow.rs      larger segments, smaller tables
//!   frozen.rs     tables that are only read
//! ```
//!
//! The cost of a lookup in memory is the number of its cache lines, so the key, the value and
//! everything else that a lookup needs lie in one line. The hash is a permutation of the key, so
//! quotienting saves bits of each key. These bits count the entries of a bucket that are in their
//! second bucket. Entries are placed in their home bucket whenever possible: a hit reads little
//! more than one line on average, and a miss hardly ever more than one. With two choices and chains
//! of moves, 97% of the slots fill before a segment grows.
//!
//! Readers take no lock and write nothing. Writers lock one segment; large tables have many. Growth
//! replaces one segment at a time, while its readers continue in the old one.

mod bucket;
mod directory;
mod frozen;
mod grow;
mod iter;
mod lookup;
mod place;
mod segment;
mod version;

pub use frozen::FrozenHashTable;
pub use iter::HashTableIter;

use crossbeam_epoch::{Atomic, unprotected};
use directory::Directory;
use forerun_core::hashing::Permutation;
use forerun_core::sync::Mutex;
use forerun_core::{
    Pages, RegionError,
    epoch::{self, Collector},
};
use segment::LockedSegment;
use std::fmt;
use std::sync::atomic::Ordering;
use version::Shared;

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no memory for new buckets. The table is unchanged.
    #[error("cannot allocate the buckets of a hash table: {0}")]
    Memory(RegionError),
    /// The buckets exceed the address space. The table is unchanged.
    #[error("{buckets} buckets of 64 bytes exceed the address space")]
    TooLarge {
        /// The number of buckets requested.
        buckets: u64,
    },
    /// A key does not fit although its segment is nearly empty, because too many keys share its two
    /// buckets. This does not happen by chance. The table is unchanged.
    #[error("key {key:#018x} does not fit: too many keys of this table share its two buckets")]
    Crowded {
        /// The key.
        key: u64,
    },
}

/// The message contains the cause, so it is not a source as well.
impl From<RegionError> for Error {
    fn from(cause: RegionError) -> Error {
        Error::Memory(cause)
    }
}

/// The options of a table.
///
/// ```
/// use forerun_hash::{HashTable, HashTableOptions};
///
/// let options = HashTableOptions::default().capacity(1_000_000);
/// let table = HashTable::with_options(options)?;
/// assert!(table.slots() >= 1_000_000);
/// # Ok::<(), forerun_hash::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
#[non_exhaustive]
pub struct HashTableOptions {
    /// The number of entries to allocate memory for. If more are inserted, the table grows.
    /// Default: 0.
    pub capacity: usize,
    /// The kind of memory pages for the buckets. Default: huge pages.
    pub pages: Pages,
    /// The seed of the hash function. The default `None` draws a random one, which tables of
    /// untrusted keys need.
    pub seed: Option<u64>,
}

forerun_core::setters! {
    HashTableOptions { capacity: usize, pages: Pages } into { seed: Option<u64> }
}

/// A hash table of `u64` to `u64` for any number of concurrent readers and writers, built for
/// batched lookups.
///
/// All keys and values are allowed. An entry takes 16 bytes. The table fills to 97% and then grows
/// by half. A lookup by [`find`](HashTable::find) costs little more than reading one
/// cache line.
///
/// # Concurrency
/// Every method takes `&self`. Reads never block: they neither lock nor write, and they see each
/// key either before or after a write. Writes lock one segment: all of a small table, or a part of
/// a larger one, of at most 16 MiB (128 MiB if the table exceeds about half a GiB, and 1 GiB if it
/// exceeds about half a TiB). Once a writing call has returned, every later read on any thread sees
/// its effect.
///
/// # Examples
/// ```
/// use forerun_hash::HashTable;
///
/// let table = HashTable::new()?;
/// for key in 0..1000 {
///     table.insert(key, key * key)?;
/// }
/// let mut values = [0; 3];
/// let mut found = [false; 3];
/// let hits = table.find(&[7, 5000, 9], &mut values, &mut found);
/// assert_eq!((hits, values, found), (2, [49, 0, 81], [true, false, true]));
/// # Ok::<(), forerun_hash::Error>(())
/// ```
pub struct HashTable {
    permutation: Permutation,
    pages: Pages,
    directory: Atomic<Directory>,
    /// Held while the directory is replaced.
    exchange: Mutex<()>,
    /// `None`: the process's.
    collector: Option<Collector>,
}

impl HashTable {
    /// An empty table with a random seed.
    ///
    /// # Errors
    /// [`Error::Memory`] if 16 KiB cannot be allocated.
    pub fn new() -> Result<HashTable, Error> {
        HashTable::with_options(HashTableOptions::default())
    }

    /// An empty table with memory for `capacity` entries.
    ///
    /// # Errors
    /// [`Error::Memory`], [`Error::TooLarge`].
    pub fn with_capacity(capacity: usize) -> Result<HashTable, Error> {
        HashTable::with_options(HashTableOptions {
            capacity,
            ..HashTableOptions::default()
        })
    }

    /// An empty table with these options.
    ///
    /// # Errors
    /// [`Error::Memory`], [`Error::TooLarge`].
    pub fn with_options(options: HashTableOptions) -> Result<HashTable, Error> {
        let permutation = options
            .seed
            .map_or_else(Permutation::random, Permutation::from_seed);
        let segments = grow::empty_segments(options.capacity as u64, options.pages)?;
        Ok(HashTable {
            permutation,
            pages: options.pages,
            directory: Atomic::new(Directory::new(&segments)),
            exchange: Mutex::new(()),
            collector: None,
        })
    }

    /// [`HashTable::with_options`] with a collector other than the process's. Memory that growth
    /// retires then waits only for those who pin this collector, and pins of the table hold up only
    /// this collector.
    ///
    /// It is for crates that retire memory with the table's pins, so it is not documented.
    ///
    /// # Errors
    /// See [`HashTable::with_options`].
    #[doc(hidden)]
    pub fn with_collector(
        options: HashTableOptions,
        collector: Collector,
    ) -> Result<HashTable, Error> {
        let mut table = HashTable::with_options(options)?;
        table.collector = Some(collector);
        Ok(table)
    }

    /// The value of a key.
    #[inline]
    pub fn get(&self, key: u64) -> Option<u64> {
        self.pin().get(key)
    }

    /// Whether a key is present.
    pub fn contains(&self, key: u64) -> bool {
        self.get(key).is_some()
    }

    /// Looks up a batch. Sets `found[i]` to whether `keys[i]` is present. If it is, sets
    /// `values[i]` to its value; otherwise leaves `values[i]` unchanged. Returns the number of keys
    /// found.
    ///
    /// The keys may be in any order and may repeat. If the slices differ in length, the shortest
    /// decides. Each key is read at some moment during the call, not all of them at the same
    /// moment.
    pub fn find(&self, keys: &[u64], values: &mut [u64], found: &mut [bool]) -> usize {
        self.pin().find(keys, values, found)
    }

    /// Pins the table for many reads, so that each of them need not pin it on its own.
    ///
    /// This is not a snapshot: reads see every write. While the handle exists, no memory that is
    /// retired anywhere in the process is freed: neither what growing hash tables replace, nor
    /// pages that the cache of a store evicts, so stores cache fewer pages. Keep the handle for a
    /// batch of reads, not while you wait for something.
    ///
    /// ```
    /// use forerun_hash::HashTable;
    ///
    /// let table = HashTable::new()?;
    /// table.insert(1, 10)?;
    /// let pinned = table.pin();
    /// assert_eq!((1..=3).filter_map(|key| pinned.get(key)).sum::<u64>(), 10);
    /// # Ok::<(), forerun_hash::Error>(())
    /// ```
    pub fn pin(&self) -> HashTableGuard<'_> {
        HashTableGuard {
            table: self,
            guard: self.pin_epoch(),
        }
    }

    /// Sets the value of a key and returns the previous value, if any.
    ///
    /// # Errors
    /// [`Error::Memory`] if the table must grow and cannot; [`Error::Crowded`] if growing does not
    /// help.
    pub fn insert(&self, key: u64, value: u64) -> Result<Option<u64>, Error> {
        let mut former = None;
        self.upsert(key, |old| {
            former = old;
            value
        })?;
        Ok(former)
    }

    /// Returns the value of a key, after inserting `value` if the key is absent.
    ///
    /// # Errors
    /// See [`HashTable::insert`].
    pub fn get_or_insert(&self, key: u64, value: u64) -> Result<u64, Error> {
        self.upsert(key, |old| old.unwrap_or(value))
    }

    /// Computes a key's new value from its current one with `value`, stores it and returns it. No
    /// other thread writes the key in between. `value` is called once, under a lock, so it must not
    /// use the table.
    ///
    /// ```
    /// use forerun_hash::HashTable;
    ///
    /// let counts = HashTable::new()?;
    /// for word in [3, 1, 3] {
    ///     counts.upsert(word, |count| count.unwrap_or(0) + 1)?;
    /// }
    /// assert_eq!(counts.get(3), Some(2));
    /// # Ok::<(), forerun_hash::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`HashTable::insert`].
    pub fn upsert(&self, key: u64, value: impl FnOnce(Option<u64>) -> u64) -> Result<u64, Error> {
        self.upsert_hash(self.permutation.hash(key), value, &self.pin_epoch())
    }

    /// Inserts many entries, `keys[i]` with `values[i]`, and prefetches their buckets. If the
    /// slices differ in length, the shorter decides. If a key repeats, its last value wins. Returns
    /// the number of keys that were not present before.
    ///
    /// # Errors
    /// See [`HashTable::insert`]. The entries before the failing one have been inserted.
    pub fn insert_batch(&self, keys: &[u64], values: &[u64]) -> Result<usize, Error> {
        let guard = self.pin_epoch();
        let mut added = 0;
        for (at, (&key, &value)) in keys.iter().zip(values).enumerate() {
            self.prefetch_ahead(keys, at, &guard);
            let hash = self.permutation.hash(key);
            self.upsert_hash(
                hash,
                |old| {
                    added += usize::from(old.is_none());
                    value
                },
                &guard,
            )?;
        }
        Ok(added)
    }

    /// Removes a key and returns its value, if it was present.
    pub fn remove(&self, key: u64) -> Option<u64> {
        self.remove_hash(self.permutation.hash(key), &self.pin_epoch())
    }

    /// Removes many keys, and prefetches their buckets. Returns the number of keys that were
    /// present. A key that repeats is present once.
    ///
    /// ```
    /// use forerun_hash::HashTable;
    ///
    /// let table = HashTable::new()?;
    /// table.insert_batch(&[1, 2, 3], &[10, 20, 30])?;
    /// assert_eq!(table.remove_batch(&[3, 4, 3, 1]), 2);
    /// assert_eq!(table.len(), 1);
    /// # Ok::<(), forerun_hash::Error>(())
    /// ```
    pub fn remove_batch(&self, keys: &[u64]) -> usize {
        let guard = self.pin_epoch();
        let mut removed = 0;
        for (at, &key) in keys.iter().enumerate() {
            self.prefetch_ahead(keys, at, &guard);
            removed += usize::from(
                self.remove_hash(self.permutation.hash(key), &guard)
                    .is_some(),
            );
        }
        removed
    }

    /// Removes all entries and keeps the memory.
    pub fn clear(&self) {
        let guard = self.pin_epoch();
        for mut locked in self.lock_all(&guard) {
            locked.clear();
        }
    }

    /// The number of entries. With concurrent writers it is approximate, because the segments are
    /// counted one at a time.
    pub fn len(&self) -> usize {
        let guard = self.pin_epoch();
        let segments = self.directory(&guard).segments();
        segments.map(|segment| segment.entries()).sum::<u64>() as usize
    }

    /// Whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of slots in the current buckets.
    pub fn slots(&self) -> usize {
        let guard = self.pin_epoch();
        let segments = self.directory(&guard).segments();
        segments.map(|segment| segment.slots()).sum::<u64>() as usize
    }

    /// The share of slots that are occupied.
    pub fn load_factor(&self) -> f64 {
        self.len() as f64 / self.slots() as f64
    }

    /// The memory use of the table, in bytes.
    pub fn memory_bytes(&self) -> usize {
        let guard = self.pin_epoch();
        size_of::<HashTable>() + self.directory(&guard).memory_bytes()
    }

    /// Iterates over all entries, in arbitrary order.
    ///
    /// A key that is present during the whole iteration is returned once; a key that is inserted or
    /// removed during it, once or not at all. The iterator copies each segment when it reaches it,
    /// and the segment's writers wait for that copy. If there is no memory for it, the process
    /// ends, as it does when a vector cannot grow; [`HashTableIter::try_next`] returns an error
    /// instead.
    ///
    /// ```
    /// use forerun_hash::HashTable;
    ///
    /// let table = HashTable::new()?;
    /// table.insert_batch(&[1, 2, 3], &[10, 20, 30])?;
    /// let mut entries: Vec<(u64, u64)> = table.iter().collect();
    /// entries.sort_unstable();
    /// assert_eq!(entries, [(1, 10), (2, 20), (3, 30)]);
    /// # Ok::<(), forerun_hash::Error>(())
    /// ```
    pub fn iter(&self) -> HashTableIter<'_> {
        HashTableIter::new(self)
    }

    /// Keeps every directory and segment that is current now, until the guard is dropped.
    #[inline]
    fn pin_epoch(&self) -> crossbeam_epoch::Guard {
        self.collector
            .as_ref()
            .map_or_else(epoch::pin, Collector::pin)
    }

    /// Prefetches the home bucket of a key that a batch of writes reaches some keys after `at`.
    #[inline(always)]
    fn prefetch_ahead(&self, keys: &[u64], at: usize, guard: &crossbeam_epoch::Guard) {
        const AHEAD: usize = 8;
        if let Some(&next) = keys.get(at + AHEAD) {
            let hash = self.permutation.hash(next);
            let view = self.directory(guard).views().of(hash);
            view.bucket(view.geometry.home(hash)).prefetch();
        }
    }

    fn remove_hash(&self, hash: u64, guard: &crossbeam_epoch::Guard) -> Option<u64> {
        let mut locked = self.lock(hash, guard);
        let slot_ref = locked.find(hash)?;
        let value = locked.value(slot_ref);
        locked.remove(slot_ref);
        Some(value)
    }

    fn upsert_hash(
        &self,
        hash: u64,
        value: impl FnOnce(Option<u64>) -> u64,
        guard: &crossbeam_epoch::Guard,
    ) -> Result<u64, Error> {
        loop {
            let mut locked = self.lock(hash, guard);
            if let Some(slot_ref) = locked.find(hash) {
                let new = value(Some(locked.value(slot_ref)));
                locked.set_value(slot_ref, new);
                return Ok(new);
            }
            if let Some(free_slot) = locked.free_slot_for(hash) {
                let new = value(None);
                locked.put(free_slot, hash, new);
                return Ok(new);
            }
            self.grow(locked, hash, guard)?;
        }
    }

    /// Locks the segment of a hash.
    fn lock<'g>(&self, hash: u64, guard: &'g crossbeam_epoch::Guard) -> LockedSegment<'g> {
        loop {
            if let Some(locked) = self.directory(guard).segment(hash).lock() {
                return locked;
            }
            // It was replaced while we waited. The new directory is already published.
        }
    }

    fn directory<'g>(&self, guard: &'g crossbeam_epoch::Guard) -> &'g Directory {
        // Acquire: the directory and its segments were made before they were published.
        let directory = self.directory.load(Ordering::Acquire, guard);
        // SAFETY: the pointer is never null after construction. Its target was made by Atomic::new
        // or Owned::new. It is freed either by defer_destroy after it has been replaced, and
        // therefore not before this guard is dropped, under which it was loaded; or by drop, when
        // no reader is left.
        unsafe { directory.deref() }
    }
}

impl Drop for HashTable {
    fn drop(&mut self) {
        // SAFETY: no other thread has the table any more, so none loads the pointer now or later.
        // It is not null, and this call owns the directory.
        unsafe {
            let directory = self.directory.load(Ordering::Relaxed, unprotected());
            drop(directory.into_owned());
        }
    }
}

impl fmt::Debug for HashTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HashTable")
            .field("len", &self.len())
            .field("slots", &self.slots())
            .field("memory_bytes", &self.memory_bytes())
            .finish_non_exhaustive()
    }
}

/// A pinned table for many reads: see [`HashTable::pin`].
pub struct HashTableGuard<'t> {
    table: &'t HashTable,
    guard: crossbeam_epoch::Guard,
}

impl HashTableGuard<'_> {
    /// See [`HashTable::get`].
    #[inline]
    pub fn get(&self, key: u64) -> Option<u64> {
        let table = self.table;
        lookup::get::<Shared>(table.directory(&self.guard), table.permutation.hash(key))
    }

    /// See [`HashTable::find`].
    pub fn find(&self, keys: &[u64], values: &mut [u64], found: &mut [bool]) -> usize {
        let directory = || self.table.directory(&self.guard);
        let permutation = self.table.permutation;
        lookup::find::<Shared>(directory, permutation, keys, values, found)
    }
}

impl fmt::Debug for HashTableGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HashTableGuard").field(self.table).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod loom_tests;
