//! Counters, and what [`Db::stats`](crate::Db::stats) tells.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::memtable::MemTableStats;

/// Sets of counters. Threads are spread over them, so that they seldom share a cache line.
const SHARDS: usize = 16;

/// Counters of reads and writes, each updated once a batch.
#[derive(Debug, Default)]
pub(super) struct Counters {
    shards: [Shard; SHARDS],
}

/// Two lines apart, because processors fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard {
    lookup_batches: AtomicU64,
    lookup_keys: AtomicU64,
    write_batches: AtomicU64,
}

impl Counters {
    /// Counts a batch of lookups.
    pub(super) fn count_lookups(&self, keys: usize) {
        let shard = self.shard();
        // Relaxed, here and below: a count orders nothing.
        shard.lookup_batches.fetch_add(1, Ordering::Relaxed);
        shard.lookup_keys.fetch_add(keys as u64, Ordering::Relaxed);
    }

    /// Counts a batch of writes.
    pub(super) fn count_write(&self) {
        self.shard().write_batches.fetch_add(1, Ordering::Relaxed);
    }

    fn sum(&self, counter: impl Fn(&Shard) -> &AtomicU64) -> u64 {
        self.shards
            .iter()
            .map(|shard| counter(shard).load(Ordering::Relaxed))
            .sum()
    }

    pub(super) fn lookup_batches(&self) -> u64 {
        self.sum(|shard| &shard.lookup_batches)
    }

    pub(super) fn lookup_keys(&self) -> u64 {
        self.sum(|shard| &shard.lookup_keys)
    }

    pub(super) fn write_batches(&self) -> u64 {
        self.sum(|shard| &shard.write_batches)
    }

    fn shard(&self) -> &Shard {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local!(static MINE: Cell<usize> = const { Cell::new(usize::MAX) });
        let mut mine = MINE.get();
        if mine == usize::MAX {
            mine = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
            MINE.set(mine);
        }
        &self.shards[mine]
    }
}

/// What a store holds and did since it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Entries in memory, deletions and older versions included, and the memory they take.
    pub memtable: MemTableStats,
    /// Sequence number of the newest visible operation: the number of operations ever applied.
    pub last_sequence: u64,
    /// Batches written; a `put` is a batch of one.
    pub write_batches: u64,
    /// Groups of batches that went to the log with one write.
    pub log_groups: u64,
    /// Bytes of records written to the log.
    pub log_written_bytes: u64,
    /// Syncs of the log.
    pub log_syncs: u64,
    /// Batches looked up; a `get` is a batch of one.
    pub lookup_batches: u64,
    /// Keys in them.
    pub lookup_keys: u64,
    /// Why no more writes are taken, if an earlier failure is the reason.
    pub poisoned: Option<String>,
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemTableStats {
            entries,
            used_bytes,
            limit_bytes,
            height,
            ..
        } = self.memtable;
        let percent = used_bytes as f64 * 100.0 / limit_bytes.max(1) as f64;
        writeln!(
            f,
            "memtable   {entries} entries in {used_bytes} of {limit_bytes} bytes ({percent:.1}%), {height} levels"
        )?;
        writeln!(f, "sequence   {}", self.last_sequence)?;
        writeln!(
            f,
            "writes     {} batches; log: {} bytes in {} groups, {} syncs",
            self.write_batches, self.log_written_bytes, self.log_groups, self.log_syncs
        )?;
        write!(
            f,
            "lookups    {} keys in {} batches",
            self.lookup_keys, self.lookup_batches
        )?;
        if let Some(cause) = &self.poisoned {
            write!(f, "\npoisoned   {cause}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_many_threads_add_up() {
        let counters = Counters::default();
        std::thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| {
                    for _ in 0..10 {
                        counters.count_lookups(64);
                        counters.count_write();
                    }
                });
            }
        });
        assert_eq!(
            (counters.lookup_batches(), counters.lookup_keys()),
            (200, 12_800)
        );
        assert_eq!(counters.write_batches(), 200);
    }
}
