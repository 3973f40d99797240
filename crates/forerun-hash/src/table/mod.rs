//! The production table: two-choice buckets of a cache line each, quotiented, grown by segments.
//!
//! ```text
//!   key --Permutation--> hash --top bits--> directory --> segment --> bucket: | 4 slots | 4 values |   64 bytes
//!                                             epoch        lock,
//!                                                          versions
//!   bucket.rs     the line: slots, counters, values          version.rs   what a reader notices of moves
//!   place.rs      hash <-> buckets and remainder             path.rs      making room
//!   segment.rs    buckets, versions, the writers' lock       directory.rs segments by prefix
//!   lookup.rs     one key, a batch                           grow.rs      larger segments, smaller tables
//! ```
//!
//! Why it looks as it does. A lookup in memory costs its cache lines, so key, value and all that a
//! lookup needs lie in one: a hash that is a permutation of the key leaves, by quotienting, the bits in
//! which to say that a bucket's entries went elsewhere, and how many did. An entry is at home whenever
//! that can be had, so a hit costs little more than one line, and a miss hardly ever more than one.
//! Two choices and chains of moves fill 97% of the slots before a segment grows.
//!
//! Readers take no lock and write nothing. Writers lock a segment of a table that has many. Growth
//! replaces one segment at a time, while its readers go on in the old one.

mod bucket;
mod directory;
mod grow;
mod iter;
mod lookup;
mod path;
mod place;
mod segment;
mod version;

pub use iter::Iter;

use crossbeam_epoch::{Atomic, Guard, unprotected};
use directory::Directory;
use forerun_core::arch::{self, dispatch};
use forerun_core::hashing::Permutation;
use forerun_core::sync::Mutex;
use forerun_core::{Pages, RegionError, epoch};
use lookup::Batch;
use segment::Locked;
use std::fmt;
use std::sync::atomic::Ordering;

/// What a table cannot do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The memory for new buckets was refused. The table is as it was.
    #[error("no memory for the buckets of a hash table: {0}")]
    Memory(#[from] RegionError),
    /// More buckets than addresses. The table is as it was.
    #[error("{buckets} buckets of 64 bytes are more than this machine can address")]
    TooLarge {
        /// Buckets asked for.
        buckets: u64,
    },
    /// A key has no place although its part of the table is nearly empty: too many keys have the same
    /// two buckets, which chance does not bring about. The table is as it was.
    #[error("key {key:#018x} has no place: too many keys of this table share its two buckets")]
    Crowded {
        /// The key.
        key: u64,
    },
}

/// How a table is made.
///
/// ```
/// use forerun_hash::{HashTable, Options};
///
/// let options = Options { capacity: 1_000_000, ..Options::default() };
/// let table = HashTable::with_options(options)?;
/// assert!(table.slots() >= 1_000_000);
/// # Ok::<(), forerun_hash::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Entries to make room for at once. More may be inserted; the table then grows.
    pub capacity: usize,
    /// The pages that the buckets are to lie in.
    pub pages: Pages,
    /// What the hash function is drawn from; `None` is a random seed, which keys that come from
    /// outside ask for.
    pub seed: Option<u64>,
}

/// A hash table of `u64` to `u64`, shared by any number of readers and writers, whose lookups are
/// best made in batches.
///
/// All keys and all values are legal. An entry takes 16 bytes of a table that is filled to 97% before
/// it grows by half; lookups by [`find_batch`](HashTable::find_batch) cost little more than the cache
/// line that they have to read.
///
/// # Concurrency
/// Every method takes `&self`. Reads never block: they neither lock nor write, and see each key either
/// as it was before a write or as it is after it. Writes lock one segment, a 4 MiB part of a large
/// table and all of a small one. When a call that writes has returned, every read that begins later
/// sees it, on any thread.
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
/// let hits = table.find_batch(&[7, 5000, 9], &mut values, &mut found);
/// assert_eq!((hits, values, found), (2, [49, 0, 81], [true, false, true]));
/// # Ok::<(), forerun_hash::Error>(())
/// ```
pub struct HashTable {
    permutation: Permutation,
    pages: Pages,
    directory: Atomic<Directory>,
    /// Held while the directory is exchanged.
    exchange: Mutex<()>,
}

impl HashTable {
    /// An empty table with a random seed.
    ///
    /// # Errors
    /// [`Error::Memory`] if the first 16 KiB are refused.
    pub fn new() -> Result<HashTable, Error> {
        HashTable::with_options(Options::default())
    }

    /// An empty table with room for `capacity` entries.
    ///
    /// # Errors
    /// [`Error::Memory`], [`Error::TooLarge`].
    pub fn with_capacity(capacity: usize) -> Result<HashTable, Error> {
        HashTable::with_options(Options {
            capacity,
            ..Options::default()
        })
    }

    /// An empty table made as the options say.
    ///
    /// # Errors
    /// [`Error::Memory`], [`Error::TooLarge`].
    pub fn with_options(options: Options) -> Result<HashTable, Error> {
        let permutation = options
            .seed
            .map_or_else(Permutation::random, Permutation::from_seed);
        let segments = grow::empty_segments(options.capacity as u64, options.pages)?;
        Ok(HashTable {
            permutation,
            pages: options.pages,
            directory: Atomic::new(Directory::new(&segments)),
            exchange: Mutex::new(()),
        })
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

    /// Looks up a batch: `found[i]` tells whether `keys[i]` is present, and `values[i]` is then its
    /// value; otherwise `values[i]` stays as it was. Gives the number of keys found.
    ///
    /// The keys may be in any order and repeat. If the slices differ in length, the shortest counts.
    /// Each key is seen as of one moment during the call, not all as of the same one.
    pub fn find_batch(&self, keys: &[u64], values: &mut [u64], found: &mut [bool]) -> usize {
        self.pin().find_batch(keys, values, found)
    }

    /// A handle for many reads: it spares each of them the announcement that a reader is there.
    ///
    /// What it reads is not frozen: it sees every write. But memory that growth frees meanwhile is
    /// given back only after it is dropped, so it should not be kept for long without need.
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
    pub fn pin(&self) -> Pinned<'_> {
        Pinned {
            table: self,
            guard: epoch::pin(),
        }
    }

    /// Sets the value of a key and gives the former one, if there was any.
    ///
    /// # Errors
    /// [`Error::Memory`] if the table must grow and cannot; [`Error::Crowded`] if growing is no help.
    pub fn insert(&self, key: u64, value: u64) -> Result<Option<u64>, Error> {
        let mut former = None;
        self.upsert(key, |old| {
            former = old;
            value
        })?;
        Ok(former)
    }

    /// The value of a key, which is inserted first if it is not present.
    ///
    /// # Errors
    /// As [`HashTable::insert`].
    pub fn get_or_insert(&self, key: u64, value: u64) -> Result<u64, Error> {
        self.upsert(key, |old| old.unwrap_or(value))
    }

    /// Sets the value of a key to what `value` makes of the present one, and gives it. Nobody else
    /// writes the key in between. `value` is called once, under a lock: it must not use the table.
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
    /// As [`HashTable::insert`].
    pub fn upsert(&self, key: u64, value: impl FnOnce(Option<u64>) -> u64) -> Result<u64, Error> {
        self.upsert_hash(self.permutation.hash(key), value, &epoch::pin())
    }

    /// Inserts many entries: `keys[i]` with `values[i]`, the shorter slice counting. Their buckets are
    /// fetched ahead. Of a key that repeats, the last value stays. Gives the number of keys that were
    /// not present before.
    ///
    /// # Errors
    /// As [`HashTable::insert`]; the entries before the one concerned are in.
    pub fn insert_batch(&self, keys: &[u64], values: &[u64]) -> Result<usize, Error> {
        /// Entries between the prefetch of a bucket and its use.
        const AHEAD: usize = 8;
        let guard = epoch::pin();
        let mut added = 0;
        for (at, (&key, &value)) in keys.iter().zip(values).enumerate() {
            if let Some(&next) = keys.get(at + AHEAD) {
                let hash = self.permutation.hash(next);
                let view = self.directory(&guard).views().of(hash);
                view.bucket(view.geometry.home(hash)).prefetch();
            }
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

    /// Removes a key and gives its value, if it was present.
    pub fn remove(&self, key: u64) -> Option<u64> {
        let hash = self.permutation.hash(key);
        let guard = epoch::pin();
        let mut locked = self.lock(hash, &guard);
        let spot = locked.find(hash)?;
        let value = locked.value(spot);
        locked.remove(spot);
        Some(value)
    }

    /// Removes all entries; the memory is kept.
    pub fn clear(&self) {
        let guard = epoch::pin();
        for mut locked in self.lock_all(&guard) {
            locked.clear();
        }
    }

    /// Entries. While others write, a number from the time of the call.
    pub fn len(&self) -> usize {
        let guard = epoch::pin();
        let segments = self.directory(&guard).segments();
        segments.map(|segment| segment.entries()).sum::<u64>() as usize
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Entries that the present buckets could hold if they could be filled to the last slot.
    pub fn slots(&self) -> usize {
        let guard = epoch::pin();
        let segments = self.directory(&guard).segments();
        segments.map(|segment| segment.slots()).sum::<u64>() as usize
    }

    /// The share of the slots that are taken.
    pub fn load_factor(&self) -> f64 {
        self.len() as f64 / self.slots() as f64
    }

    /// Bytes of memory the table takes.
    pub fn memory_bytes(&self) -> usize {
        let guard = epoch::pin();
        size_of::<HashTable>() + self.directory(&guard).memory_bytes()
    }

    /// All entries, in no order that means anything.
    ///
    /// A key that is present from the iterator's beginning to its end is met once; one that comes or
    /// goes meanwhile once or not at all. Each segment is copied when the iterator reaches it, which
    /// keeps that segment's writers waiting for the time of a copy.
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
    pub fn iter(&self) -> Iter<'_> {
        Iter::new(self)
    }

    fn upsert_hash(
        &self,
        hash: u64,
        value: impl FnOnce(Option<u64>) -> u64,
        guard: &Guard,
    ) -> Result<u64, Error> {
        loop {
            let mut locked = self.lock(hash, guard);
            if let Some(spot) = locked.find(hash) {
                let new = value(Some(locked.value(spot)));
                locked.set_value(spot, new);
                return Ok(new);
            }
            if let Some(room) = locked.make_room(hash) {
                let new = value(None);
                locked.put(room, hash, new);
                return Ok(new);
            }
            self.grow(locked, hash, guard)?;
        }
    }

    /// The segment of a hash, locked.
    fn lock<'g>(&self, hash: u64, guard: &'g Guard) -> Locked<'g> {
        loop {
            if let Some(locked) = self.directory(guard).segment(hash).lock() {
                return locked;
            }
            // Replaced while we waited: the directory that names its successors is already there.
        }
    }

    fn directory<'g>(&self, guard: &'g Guard) -> &'g Directory {
        // Acquire: the directory and its segments were made before they were published.
        let directory = self.directory.load(Ordering::Acquire, guard);
        // SAFETY: the pointer is never null, from the constructor on. What it points to was made by
        // Atomic::new or Owned::new, and is freed only by defer_destroy after it has been replaced,
        // hence not before this guard, under which it was loaded, is dropped; or by drop, with no
        // reader left.
        unsafe { directory.deref() }
    }
}

impl Drop for HashTable {
    fn drop(&mut self) {
        // SAFETY: nobody else has the table any more, so nobody loads the pointer now or later, and
        // it is not null: the directory is this call's to free.
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

/// A table's reader for as long as it is kept: see [`HashTable::pin`].
pub struct Pinned<'t> {
    table: &'t HashTable,
    guard: Guard,
}

impl Pinned<'_> {
    /// As [`HashTable::get`].
    #[inline]
    pub fn get(&self, key: u64) -> Option<u64> {
        lookup::find(
            self.table.directory(&self.guard),
            self.table.permutation.hash(key),
        )
    }

    /// As [`HashTable::find_batch`].
    pub fn find_batch(&self, keys: &[u64], values: &mut [u64], found: &mut [bool]) -> usize {
        /// Keys of one directory: a long batch must not hold on to what growth has replaced.
        const STRETCH: usize = 4096;
        /// Fewer keys than this are looked up one by one: their waits overlap as well as those of two
        /// calls do, which a block's do not.
        const BATCH_MIN: usize = 4;
        let len = keys.len().min(values.len()).min(found.len());
        if len < BATCH_MIN {
            let answers = values.iter_mut().zip(&mut found[..len]);
            for (&key, (value, found)) in keys.iter().zip(answers) {
                let answer = self.get(key);
                *value = answer.unwrap_or(*value);
                *found = answer.is_some();
            }
            return found[..len].iter().filter(|&&found| found).count();
        }
        for start in (0..len).step_by(STRETCH) {
            let stretch = start..len.min(start + STRETCH);
            let batch = Batch {
                directory: self.table.directory(&self.guard),
                permutation: self.table.permutation,
                keys: &keys[stretch.clone()],
                values: &mut values[stretch.clone()],
                found: &mut found[stretch],
            };
            dispatch(arch::isa(), batch);
        }
        found[..len].iter().filter(|&&found| found).count()
    }
}

impl fmt::Debug for Pinned<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pinned").field(self.table).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod loom_tests;
