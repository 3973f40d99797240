//! The memtables that take writes together, one per keyspace, and are flushed together.
//!
//! ```text
//!   active   set 7   own table │ users' table │ …        a write holds the lock for reading
//!   frozen   set 6   own table │ users' table            full: frozen as a whole, and flushed
//!            set 5   own table │ … │ sessions' table     with one change of the manifest
//!   runs     everything up to the last sequence number of set 4, in all keyspaces
//! ```
//!
//! So one number says how much of the log is in runs, and a batch across keyspaces is in runs as a
//! whole or not at all. The memtables of a set share its memory limit: a hundred small keyspaces
//! take no more memory than one. A keyspace gets a memtable at its first write; only the store's
//! own keyspace has one from the start.

use forerun_core::sync::atomic::{AtomicUsize, Ordering};
use std::cell::Cell;
use std::sync::Arc;

use super::held_memory::HeldMemory;
use super::keyspace_data::KeyspaceData;
use super::super_version::Table;
use crate::limits::MEMTABLE_INDEX_BYTES_MIN;
use crate::memtable::{Prepared, RegionPool};
use crate::panics;

/// The maximum size of an empty memtable without an index.
pub(super) const EMPTY_TABLE_BYTES: usize = 1 << 10;

/// The maximum size of an empty memtable with an index.
pub(super) const EMPTY_INDEXED_TABLE_BYTES: usize = 2 << 10;

/// The maximum size of an empty memtable in a set with this limit.
pub(super) fn empty_table_bytes(limit_bytes: usize) -> usize {
    match limit_bytes {
        ..MEMTABLE_INDEX_BYTES_MIN => EMPTY_TABLE_BYTES,
        _ => EMPTY_INDEXED_TABLE_BYTES,
    }
}

/// The memory that a write needs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Needed {
    /// In the arenas of memtables.
    pub(super) entries_bytes: usize,
    /// For range deletions.
    pub(super) ranges_bytes: usize,
}

impl Needed {
    pub(super) fn bytes(self) -> usize {
        self.entries_bytes.saturating_add(self.ranges_bytes)
    }
}

/// The memtables of a store's keyspaces.
pub(super) struct MemTableSet {
    /// Sets are numbered in order.
    pub(super) number: u64,
    /// The maximum memory of all its memtables, in bytes.
    pub(super) limit_bytes: usize,
    /// Ascending by keyspace; the store's own is the first.
    tables: Vec<(Arc<KeyspaceData>, Arc<Table>)>,
    /// Bytes in use, if there are several memtables. With one, its arena enforces the limit.
    used_bytes: AtomicUsize,
    /// Bytes of range deletions in all memtables. They are not in the arenas but count towards the
    /// limit. With one memtable, also what its index is about to take.
    ranges_bytes: AtomicUsize,
}

impl MemTableSet {
    /// A set with the memtable of the store's own keyspace.
    pub(super) fn new(
        number: u64,
        limit_bytes: usize,
        own: &Arc<KeyspaceData>,
        table: Arc<Table>,
    ) -> MemTableSet {
        MemTableSet {
            number,
            limit_bytes,
            tables: vec![(Arc::clone(own), table)],
            used_bytes: AtomicUsize::new(0),
            ranges_bytes: AtomicUsize::new(0),
        }
    }

    /// Adds the memtable of another keyspace.
    pub(super) fn add(&mut self, keyspace: &Arc<KeyspaceData>, table: Arc<Table>) {
        let index = self
            .tables
            .partition_point(|(other, _)| other.id() < keyspace.id());
        self.tables.insert(index, (Arc::clone(keyspace), table));
        self.count();
    }

    /// Replaces the memtable of a keyspace, or adds one. Returns the one replaced.
    pub(super) fn replace(
        &mut self,
        keyspace: &Arc<KeyspaceData>,
        table: Arc<Table>,
    ) -> Option<Arc<Table>> {
        let of_keyspace =
            |(other, _): &&mut (Arc<KeyspaceData>, Arc<Table>)| other.id() == keyspace.id();
        let Some((_, of_keyspace)) = self.tables.iter_mut().find(of_keyspace) else {
            self.add(keyspace, table);
            return None;
        };
        let replaced = std::mem::replace(of_keyspace, table);
        self.count();
        Some(replaced)
    }

    /// Frees memory of earlier memtables, in the pool and behind the memtables of this set, that
    /// does not fit beside all that the set may use. All together get `max_bytes`. The caller holds
    /// the set for writing.
    ///
    /// Regions that enter the pool later need no space: until then their memtables are held, and
    /// this set has the memory that is left beside those.
    pub(super) fn trim(&self, pool: &RegionPool, max_bytes: usize) {
        let free_bytes = max_bytes.saturating_sub(self.limit_bytes);
        let spare_bytes = self.sum(|table| table.memtable.spare_bytes());
        pool.shrink_to(free_bytes.saturating_sub(spare_bytes));
        if spare_bytes > free_bytes {
            let mut kept_bytes = free_bytes;
            for (_, table) in &self.tables {
                table.memtable.trim(kept_bytes);
                kept_bytes = kept_bytes.saturating_sub(table.memtable.spare_bytes());
            }
        }
    }

    fn count(&mut self) {
        let in_arenas = self.sum(|table| table.memtable.stats().used_bytes);
        *self.used_bytes.get_mut() = in_arenas + *self.ranges_bytes.get_mut();
    }

    /// The memtable of a keyspace, if it was written to.
    #[inline]
    pub(super) fn table(&self, id: u32) -> Option<&Arc<Table>> {
        if id == 0 {
            return self.tables.first().map(|(_, table)| table);
        }
        let by_id = |(keyspace, _): &(Arc<KeyspaceData>, Arc<Table>)| keyspace.id().cmp(&id);
        let index = self.tables.binary_search_by(by_id).ok()?;
        Some(&self.tables[index].1)
    }

    /// Whether another memtable fits, or nothing would be gained by replacing this set.
    pub(super) fn takes_another_table(&self) -> bool {
        self.used_bytes() + empty_table_bytes(self.limit_bytes) <= self.limit_bytes
            || self.is_empty()
    }

    /// Its memtables, without their keyspaces.
    pub(super) fn shared_tables(&self) -> Vec<Arc<Table>> {
        let tables = self.tables.iter();
        tables.map(|(_, table)| Arc::clone(table)).collect()
    }

    pub(super) fn tables(&self) -> &[(Arc<KeyspaceData>, Arc<Table>)] {
        &self.tables
    }

    /// The memory of all its memtables, in bytes, including range deletions.
    pub(super) fn tables_bytes(&self) -> usize {
        self.sum(|table| table.used_bytes())
    }

    /// Reserves memory: for entries whose arena memory is already allocated, and for range
    /// deletions. Returns `false` if the limit does not allow it.
    #[inline]
    pub(super) fn reserve(&self, needed: Needed) -> bool {
        // Relaxed, here and below: sums. A thread that replaces this set waits for all writes.
        let ranges_bytes = match needed.ranges_bytes {
            0 => self.ranges_bytes.load(Ordering::Relaxed),
            more => self.ranges_bytes.fetch_add(more, Ordering::Relaxed) + more,
        };
        let fits = match &self.tables[..] {
            [_] if ranges_bytes == 0 => return true,
            // The entries are in the arena already.
            [(_, table)] => table.memtable.stats().used_bytes + ranges_bytes <= self.limit_bytes,
            _ => {
                let bytes = needed.bytes();
                let before = self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
                before.saturating_add(bytes) <= self.limit_bytes
            }
        };
        if !fits {
            self.release(needed);
        }
        fits
    }

    /// Gives back the memory of entries that are not published. What stays in use is counted with
    /// that of others. Afterwards the caller releases the reservation.
    pub(super) fn give_back(&self, entries: Prepared<'_>) {
        let kept_bytes = entries.give_back();
        // With one memtable, its arena counts it.
        if kept_bytes > 0 && self.tables.len() > 1 {
            self.used_bytes.fetch_add(kept_bytes, Ordering::Relaxed);
        }
    }

    /// Lets the hash index of a memtable grow for entries whose memory is reserved, as far as the
    /// limit allows it.
    pub(super) fn grow_index(&self, entries: &Prepared<'_>) {
        self.within_limit(|may_take| entries.grow_index(may_take));
    }

    /// Builds a new skip-list index for a keyspace's memtable, if there is one and its index is out
    /// of date, as far as the limit allows it.
    pub(super) fn build_index_if_due(&self, keyspace: &KeyspaceData) {
        let Some(table) = self.table(keyspace.id()) else {
            return;
        };
        let built = panics::catch_if(keyspace.order().may_panic(), "indexing a memtable", || {
            self.within_limit(|may_take| table.memtable.build_index_if_due(may_take));
            Ok(())
        });
        if let Err(error) = built {
            // The write that made it due is visible, and the index only makes searches faster.
            tracing::warn!(%error, "a memtable stays without its index");
        }
    }

    /// Lets an index take memory, which `take` asks for, as far as the limit allows it.
    fn within_limit(&self, take: impl FnOnce(&dyn Fn(usize) -> bool)) {
        let reserved_bytes = Cell::new(0);
        take(&|bytes| {
            let fits = self.reserve_for_index(bytes);
            let more = if fits { bytes } else { 0 };
            reserved_bytes.set(reserved_bytes.get() + more);
            fits
        });
        if reserved_bytes.get() > 0 {
            self.note_index_taken(reserved_bytes.get());
        }
    }

    /// Reserves memory that an index is about to take for good. Returns `false` if the limit does
    /// not allow it.
    fn reserve_for_index(&self, bytes: usize) -> bool {
        // Relaxed: as for `reserve`.
        let (counter, table) = match &self.tables[..] {
            // Its arena will count the memory. Until then it counts with the ranges.
            [(_, table)] => (&self.ranges_bytes, Some(table)),
            _ => (&self.used_bytes, None),
        };
        let counted = counter.fetch_add(bytes, Ordering::Relaxed);
        let in_arena = table.map_or(0, |table| table.memtable.stats().used_bytes);
        let fits = in_arena.saturating_add(counted).saturating_add(bytes) <= self.limit_bytes;
        if !fits {
            counter.fetch_sub(bytes, Ordering::Relaxed);
        }
        fits
    }

    /// Notes that the arena counts memory that was reserved for an index.
    fn note_index_taken(&self, bytes: usize) {
        if let [_] = &self.tables[..] {
            self.ranges_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Releases a reservation.
    pub(super) fn release(&self, needed: Needed) {
        if needed.ranges_bytes > 0 {
            self.ranges_bytes
                .fetch_sub(needed.ranges_bytes, Ordering::Relaxed);
        }
        if self.tables.len() > 1 {
            self.used_bytes.fetch_sub(needed.bytes(), Ordering::Relaxed);
        }
    }

    /// Bytes in use.
    pub(super) fn used_bytes(&self) -> usize {
        self.sum(Table::used_bytes)
    }

    /// Counts the memory of its memtables, which no longer grow, until the last reference to each
    /// is dropped.
    pub(super) fn hold(&self, memory: &Arc<HeldMemory>) {
        for (_, table) in &self.tables {
            table.hold(memory);
        }
    }

    /// Whether nothing was written to it.
    pub(super) fn is_empty(&self) -> bool {
        self.tables.iter().all(|(_, table)| table.is_empty())
    }

    pub(super) fn sum(&self, of: impl Fn(&Table) -> usize) -> usize {
        self.tables.iter().map(|(_, table)| of(table)).sum()
    }
}

/// A memtable set that takes no more writes.
pub(super) struct FrozenMemTables {
    pub(super) memtables: MemTableSet,
    /// The last sequence number in it or before it.
    pub(super) last_sequence: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::fault::FaultIo;
    use crate::{Db, Op, Options};

    #[test]
    fn entries_that_are_not_published_count_if_their_memory_stays_in_use() {
        let options = Options::default()
            .memtable_bytes(64 << 10)
            .memory_limit_bytes(1 << 20);
        let db = Db::open_with_io(Arc::new(FaultIo::new()), "/db", options).unwrap();
        let users = db.keyspace("users").unwrap();
        users.put(b"key", b"value").unwrap();
        let active = db.inner().unwrap().memtables.read_active();
        let (_, table) = &active.tables()[1];
        let prepare = || {
            let value = &[7; 3000];
            let prepared = table
                .memtable
                .prepare_entries([Op::Put { key: b"k", value }].into_iter());
            // Without space in the arena, the batch does not fit either.
            let prepared = prepared.ok()?;
            let needed = Needed {
                entries_bytes: prepared.bytes(),
                ranges_bytes: 0,
            };
            let fits = active.reserve(needed);
            Some((prepared, needed, fits))
        };
        // Two writers at a time whose batches cannot be logged.
        let mut rounds = 0;
        loop {
            let batches = [prepare(), prepare()];
            let all_fit = batches
                .iter()
                .all(|batch| matches!(batch, Some((.., true))));
            for (prepared, needed, fits) in batches.into_iter().flatten() {
                active.give_back(prepared);
                if fits {
                    active.release(needed);
                }
            }
            assert!(active.used_bytes() <= active.used_bytes.load(Ordering::Relaxed));
            if !all_fit {
                break;
            }
            rounds += 1;
        }
        assert!((15..22).contains(&rounds), "{rounds}");
    }

    #[test]
    fn a_range_deletion_does_not_get_the_memory_that_an_index_is_about_to_take() {
        let options = Options::default()
            .memtable_bytes(64 << 10)
            .memory_limit_bytes(1 << 20);
        for other_keyspaces in [0, 1] {
            let db = Db::open_with_io(Arc::new(FaultIo::new()), "/db", options.clone()).unwrap();
            for number in 0..other_keyspaces {
                let keyspace = db.keyspace(&format!("other {number}")).unwrap();
                keyspace.put(b"key", b"value").unwrap();
            }
            let active = db.inner().unwrap().memtables.read_active();
            assert_eq!(active.tables().len(), 1 + other_keyspaces);
            let free_bytes = active.limit_bytes - active.used_bytes();
            let ranges = |ranges_bytes| Needed {
                entries_bytes: 0,
                ranges_bytes,
            };
            assert!(active.reserve_for_index(1000));
            assert!(!active.reserve(ranges(free_bytes - 999)));
            assert!(active.reserve(ranges(free_bytes - 1000)));
            assert!(!active.reserve_for_index(8));
            active.release(ranges(free_bytes - 1000));
            active.note_index_taken(1000);
        }
    }
}
