//! The memtable: the newest writes, sorted in memory and searched in batches.
//!
//! ```text
//!   mod.rs               what the store uses
//!   prepared.rs          a batch of writes: copied into the arena, then published
//!   insertion.rs         its entries: numbered, linked and indexed
//!   ascending_run.rs     the same for ascending keys, each behind the one before
//!   hash_lookup.rs       point lookups, through the hash index
//!   hash_index.rs        from a key to its newest version; hash_bucket.rs: one line of it
//!   hash_addressing.rs   which bucket a key has, and where that bucket is
//!   hash_memory.rs       its lines in the arena; hash_spares.rs: lines for buckets that overflow
//!   lookup_batch.rs      a batch of lookups (key_batch.rs), through the index or in the list
//!   ordered_search.rs    three searches of the list, and which one a batch takes
//!   strategy.rs          the searches by name, for tests and measurements; partition.rs: one more
//!   cursor.rs            scans; skip_list_cursor.rs: their steps, in both directions
//!   descent.rs           the one search loop, which awaits each node before reading it
//!   search_starts.rs     where the searches of a batch start
//!   skip_list.rs         the skip list; skip_list_index.rs: an array through which searches enter it
//!   list_shape.rs        how much memory it spends to make searches fast
//!   memory_checks.rs     what a search verifies in the nodes that it visits
//!   node.rs              an entry and its tower, byte by byte; entry_lens.rs: how long it is
//!   arena.rs             the memory of all of them; region_pool.rs: reused from table to table
//! ```
//!
//! Entries are ordered by user key ascending, then by sequence number descending. A search for a
//! key and a snapshot's sequence number therefore lands on the version that the snapshot sees.

mod arena;
mod ascending_run;
mod cursor;
mod descent;
mod entry_lens;
mod hash_addressing;
mod hash_bucket;
mod hash_index;
mod hash_lookup;
mod hash_memory;
mod hash_spares;
mod insertion;
mod key_batch;
mod list_shape;
mod lookup_batch;
mod memory_checks;
mod node;
mod ordered_search;
#[cfg(any(test, feature = "study"))]
mod partition;
mod prepared;
mod region_pool;
mod search_starts;
mod skip_list;
mod skip_list_cursor;
mod skip_list_index;
#[cfg(any(test, feature = "study"))]
mod strategy;

#[cfg(all(test, not(loom)))]
mod corruption_tests;
#[cfg(all(test, loom))]
mod hash_index_loom_tests;
#[cfg(all(test, not(loom)))]
mod hash_index_tests;
#[cfg(all(test, not(loom)))]
mod insertion_tests;
#[cfg(all(test, not(loom)))]
mod list_tests;
#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod ordered_search_tests;

use std::fmt;
use std::sync::Arc;

use forerun_core::sync::random_seed;
use forerun_core::{Backing, Pages, metrics};

pub use crate::comparator::{Bytewise, Comparator, ReverseBytewise};
pub use crate::versions::Entry;
pub use cursor::Cursor;
pub(crate) use cursor::TableVersions;
pub use descent::Lookup;
pub(crate) use key_batch::CoveredKey;
pub use memory_checks::MemoryChecks;
pub use prepared::Prepared;
#[cfg(any(test, feature = "study"))]
pub use strategy::{Strategy, UnknownStrategy, choose_strategy};

pub(crate) use self::region_pool::{RegionPool, RegionSource};

use self::arena::{Arena, Full};
use self::hash_index::HashIndex;
use self::key_batch::{BatchKey, KeyBatch};
use self::list_shape::ListShape;
use self::memory_checks::{Corrupt, Paranoid, Trusting};
use self::node::Seal;
use self::prepared::Refused;
use self::skip_list::SkipList;
use crate::comparator::KeyOrder;
use crate::versions::ReadPoint;
use crate::{Error, Op, Result, Values};

/// How to create a memtable.
#[derive(Clone)]
#[non_exhaustive]
pub struct MemTableConfig {
    /// The maximum memory of the table in bytes, including its own head node. The limit is exact.
    pub limit_bytes: usize,
    /// The order of keys.
    pub comparator: Arc<dyn Comparator>,
    /// What is verified on reading.
    pub checks: MemoryChecks,
    /// The pages to request from the operating system.
    pub pages: Pages,
    /// Whether point lookups go through a hash index. A lookup then reads two places in memory
    /// instead of searching the skip list, and an insertion takes 15 to 32% longer. The index takes
    /// 11 to 15 bytes per key, and the list beside it takes about 27 bytes per entry less than one
    /// without an index.
    ///
    /// A table has no hash index if its comparator may treat different keys as equal, if every
    /// entry that a lookup visits is checked, or if its limit exceeds 16 GiB.
    pub hash_index: bool,
}

impl Default for MemTableConfig {
    /// 1 GiB, bytewise order, no checks, huge pages, no hash index.
    fn default() -> Self {
        MemTableConfig {
            limit_bytes: 1 << 30,
            comparator: Arc::new(Bytewise),
            checks: MemoryChecks::Off,
            pages: Pages::Huge,
            hash_index: false,
        }
    }
}

forerun_core::setters! {
    MemTableConfig {
        limit_bytes: usize,
        comparator: Arc<dyn Comparator>,
        checks: MemoryChecks,
        pages: Pages,
        hash_index: bool,
    }
}

/// A sorted table in memory. Many threads write at once, and readers never wait for them.
///
/// ```
/// use forerun_db::Op;
/// use forerun_db::memtable::{Lookup, MemTable, MemTableConfig};
///
/// let table = MemTable::new(MemTableConfig::default())?;
/// let writes = [Op::Put { key: b"a", value: b"1" }, Op::Delete { key: b"b" }];
/// table.prepare(writes.into_iter())?.publish(1);
///
/// let mut found = 0;
/// table.multi_get(&["a", "b", "c"], 2, |_, lookup| {
///     found += usize::from(matches!(lookup, Ok(Lookup::Value(b"1"))));
/// });
/// assert_eq!(found, 1);
/// # Ok::<(), forerun_db::Error>(())
/// ```
pub struct MemTable {
    list: SkipList,
    /// The hash index, if it was requested and is possible: see [`MemTableConfig`].
    hash_index: Option<HashIndex>,
    checks: MemoryChecks,
}

metrics! {
    /// What a memtable holds and how much memory it uses.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize))]
    #[non_exhaustive]
    pub struct MemTableStats {
        /// Entries, deletions and older versions included.
        gauge entries: usize,
        /// Bytes of memory in use; exact.
        gauge used_bytes: usize,
        /// Bytes of memory that it may use.
        gauge limit_bytes: usize,
        /// Levels of the list.
        gauge height: usize,
        /// The kind of memory that the system granted.
        #[cfg_attr(feature = "serde", serde(serialize_with = "as_text"))]
        other backing: Backing,
    }
}

/// Runs `$body` with `$visit` standing for the checks that the table was created with.
macro_rules! with_checks {
    ($table:expr, $visit:ident => $body:expr) => {
        match $table.checks {
            MemoryChecks::Off => {
                type $visit = Trusting;
                $body
            }
            MemoryChecks::Paranoid => {
                type $visit = Paranoid;
                $body
            }
        }
    };
}
use with_checks;

impl MemTable {
    /// An empty table.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the system does not grant the address space,
    /// [`Error::MemoryLimit`] if the limit is too small for an empty table (512 bytes suffice, or
    /// 2 KiB with a hash index).
    pub fn new(config: MemTableConfig) -> Result<MemTable> {
        MemTable::from_source(config, None)
    }

    /// [`new`](Self::new) with memory that comes from a pool and returns there.
    pub(crate) fn from_source(
        config: MemTableConfig,
        source: Option<RegionSource>,
    ) -> Result<MemTable> {
        let MemTableConfig {
            limit_bytes,
            comparator,
            checks,
            pages,
            hash_index,
        } = config;
        let seal = match checks {
            MemoryChecks::Off => Seal::None,
            MemoryChecks::Paranoid => Seal::Checksum,
        };
        let has_index = hash_index
            && checks == MemoryChecks::Off
            && comparator.equal_means_identical()
            && HashIndex::reaches(limit_bytes);
        let shape = if has_index {
            ListShape::BESIDE_A_HASH_INDEX
        } else {
            ListShape::SEARCHED
        };
        let arena = Arena::new(limit_bytes, pages, source);
        let arena = arena.map_err(|error| Error::OutOfMemory {
            needed_bytes: limit_bytes,
            reason: error.to_string(),
        })?;
        let list = SkipList::new(arena, KeyOrder::new(comparator), seal, shape)
            .map_err(|full| memory_limit(full, limit_bytes))?;
        let hash_index = if has_index {
            HashIndex::new(list.arena(), random_seed())
                .map_err(|full| memory_limit(full, limit_bytes))?
        } else {
            None
        };
        Ok(MemTable {
            list,
            hash_index,
            checks,
        })
    }

    /// Copies a batch of writes into the table's memory without making it visible;
    /// [`Prepared::publish`] makes it visible.
    ///
    /// The iterator is cloned and consumed several times, and must yield the same operations each
    /// time.
    ///
    /// # Errors
    /// [`Error::MemoryLimit`] if the batch does not fit; [`Error::KeyTooLong`] and
    /// [`Error::ValueTooLong`]; [`Error::BatchChanged`] if the iterator and its clones differ.
    /// After an error the table holds nothing of the batch.
    pub fn prepare<'op>(&self, ops: impl Iterator<Item = Op<'op>> + Clone) -> Result<Prepared<'_>> {
        let prepared = self.prepare_entries(ops)?;
        prepared.grow_index(&|_| true);
        Ok(prepared)
    }

    /// [`prepare`](Self::prepare) without [`Prepared::grow_index`].
    pub(crate) fn prepare_entries<'op>(
        &self,
        ops: impl Iterator<Item = Op<'op>> + Clone,
    ) -> Result<Prepared<'_>> {
        ops.clone().try_for_each(|op| op.check_lengths())?;
        let prepared = Prepared::new(&self.list, self.hash_index.as_ref(), ops);
        prepared.map_err(|refused| match refused {
            Refused::Full(full) => memory_limit(full, self.list.arena().limit_bytes()),
            Refused::Changed => Error::BatchChanged,
        })
    }

    /// The newest version of `key` with a sequence number of at most `snapshot`.
    ///
    /// ```
    /// use forerun_db::Op;
    /// use forerun_db::memtable::{Lookup, MemTable, MemTableConfig};
    ///
    /// let table = MemTable::new(MemTableConfig::default().limit_bytes(1 << 20))?;
    /// table.prepare([Op::Put { key: b"a", value: b"1" }].into_iter())?.publish(7);
    /// assert_eq!(table.get(b"a", 7)?, Lookup::Value(b"1"));
    /// assert_eq!(table.get(b"a", 6)?, Lookup::Missing); // written later
    /// # Ok::<(), forerun_db::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::CorruptEntry`], with [`MemoryChecks::Paranoid`] only.
    pub fn get(&self, key: &[u8], snapshot: u64) -> Result<Lookup<'_>> {
        self.get_as_of(key, ReadPoint::at(snapshot))
    }

    /// [`get`](Self::get) for entries that expire: the key of an expired entry counts as deleted.
    pub(crate) fn get_as_of(&self, key: &[u8], read_point: ReadPoint) -> Result<Lookup<'_>> {
        let found = match &self.hash_index {
            Some(index) => hash_lookup::find(&self.list, index, key, read_point),
            None => with_checks!(self, V => descent::find_alone::<V>(&self.list, key, read_point)),
        };
        found.map_err(corrupt_entry)
    }

    /// Looks up every key and passes each answer to `sink`, with the position of its key in `keys`,
    /// exactly once. Answers come in no particular order. Keys may repeat and come in any order; a
    /// sorted batch is at least as fast.
    ///
    /// An answer is an error ([`Error::CorruptEntry`]) only with [`MemoryChecks::Paranoid`], and
    /// only for the keys whose search visited the damaged entry.
    pub fn multi_get<'a, K: AsRef<[u8]>>(
        &'a self,
        keys: &[K],
        snapshot: u64,
        sink: impl FnMut(usize, Result<Lookup<'a>>),
    ) {
        self.multi_get_as_of(keys, ReadPoint::at(snapshot), sink);
    }

    /// [`multi_get`](Self::multi_get) for entries that expire, as in
    /// [`get_as_of`](Self::get_as_of).
    pub(crate) fn multi_get_as_of<'a, K: BatchKey>(
        &'a self,
        keys: &[K],
        read_point: ReadPoint,
        mut sink: impl FnMut(usize, Result<Lookup<'a>>),
    ) {
        let batch = KeyBatch { keys, read_point };
        #[cfg(any(test, feature = "study"))]
        match strategy::chosen_strategy() {
            Strategy::Auto => {}
            chosen => return self.search_by(chosen, &batch, sink),
        }
        with_checks!(self, V => lookup_batch::find_all::<V, K>(
            &self.list,
            self.hash_index.as_ref(),
            &batch,
            |position, lookup| sink(position, lookup.map_err(corrupt_entry)),
        ));
    }

    /// [`multi_get`](Self::multi_get) that copies the answers into `values`, in the order of the
    /// keys.
    pub fn multi_get_values<K: AsRef<[u8]>>(&self, keys: &[K], snapshot: u64, values: &mut Values) {
        values.reset(keys.len());
        self.multi_get(keys, snapshot, copy_into(values));
    }

    /// A cursor over the entries that `snapshot` sees.
    pub fn cursor(&self, snapshot: u64) -> Cursor<'_> {
        Cursor::new(self, snapshot)
    }

    /// A cursor over all versions.
    pub(crate) fn versions(&self) -> TableVersions<'_> {
        TableVersions::new(self)
    }

    /// Builds the skip-list index if the last one is out of date. It asks `may_take` before it
    /// takes memory for it.
    pub(crate) fn build_index_if_due(&self, may_take: &dyn Fn(usize) -> bool) {
        self.list.build_index_if_due(may_take);
    }

    /// Orders the caller and the writers. Either a later search finds the entries of a batch that
    /// is being published, or its writer, once it has published it, sees what the caller did
    /// before.
    pub(crate) fn synchronize(&self) {
        self.list.synchronize();
    }

    /// Takes no more writes, and returns memory to the system that an earlier table has used and
    /// this one does not.
    pub(crate) fn close(&self) {
        self.list.arena().close();
    }

    /// Bytes of memory that are not in use but may have pages, without the rest of the last page.
    pub(crate) fn spare_bytes(&self) -> usize {
        let arena = self.list.arena();
        arena.touched_bytes().saturating_sub(arena.used_bytes())
    }

    /// Returns memory to the system until at most `spare_bytes` are spare, besides the rest of a
    /// page. Meanwhile all writes are refused.
    pub(crate) fn trim(&self, spare_bytes: usize) {
        self.list.arena().trim(spare_bytes);
    }

    /// Bytes of memory that may have pages, without the rest of the last page.
    #[cfg(test)]
    pub(crate) fn touched_bytes(&self) -> usize {
        self.list.arena().touched_bytes()
    }

    /// Bytes of memory without entries that were written all the same.
    #[cfg(test)]
    pub(crate) fn written_beyond_use(&self) -> usize {
        self.list.arena().written_beyond_use()
    }

    /// What the table holds and uses now.
    pub fn stats(&self) -> MemTableStats {
        let arena = self.list.arena();
        MemTableStats {
            entries: self.list.entries(),
            used_bytes: arena.used_bytes(),
            limit_bytes: arena.limit_bytes(),
            height: self.list.top_level() + 1,
            backing: arena.backing(),
        }
    }
}

/// Copies answers.
fn copy_into(values: &mut Values) -> impl FnMut(usize, Result<Lookup<'_>>) {
    move |position, lookup| match lookup {
        Ok(Lookup::Value(value)) => values.set_found(position, value),
        Ok(Lookup::Missing | Lookup::Deleted) => {}
        Err(error) => values.set_failed(position, error),
    }
}

/// Serializes a value as its human-readable text.
#[cfg(feature = "serde")]
fn as_text<S: serde::Serializer>(
    value: &impl fmt::Display,
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

impl fmt::Debug for MemTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemTable")
            .field("checks", &self.checks)
            .field("stats", &self.stats())
            .finish()
    }
}

fn memory_limit(full: Full, limit_bytes: usize) -> Error {
    Error::MemoryLimit {
        needed_bytes: full.needed_bytes,
        used_bytes: full.used_bytes,
        limit_bytes,
    }
}

#[cold]
#[expect(
    clippy::boxed_local,
    reason = "checks pass it in a box, so that the answers of good entries stay small"
)]
fn corrupt_entry(corrupt: Box<Corrupt>) -> Error {
    Error::CorruptEntry {
        key: corrupt.key,
        reason: corrupt.reason,
    }
}
