//! The metrics that [`Db::stats`](crate::Db::stats) reports.

use std::fmt;

use forerun_core::size::counted;
use forerun_core::sync::time;
use forerun_core::{Backing, Latency, metrics};

use super::Inner;
use super::keyspace_data::KeyspaceData;
use super::scrubbing::ScrubStats;
use super::write_stalls::WriteStalls;
use crate::Error;
use crate::cache::PageCacheStats;
use crate::io::reads::ring_refusals;
use crate::memtable::MemTableStats;
use crate::run::Codec;
use crate::tree::levels::Levels;

metrics! {
    /// Counters of flushes, ingestions and compactions since the store was opened.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize))]
    #[non_exhaustive]
    pub struct TreeStats {
        /// Flushed memtables.
        counter flushes: u64,
        /// Bytes of the runs that flushes wrote.
        counter flushed_bytes: u64,
        /// Ingestions: see [`Db::ingest`](crate::Db::ingest).
        counter ingestions: u64,
        /// Bytes of the runs that ingestions wrote.
        counter ingested_bytes: u64,
        /// Compactions, including those that only moved a run to another level.
        counter compactions: u64,
        /// Bytes of the runs that compactions read.
        counter compaction_read_bytes: u64,
        /// Bytes of the runs that compactions wrote.
        counter compaction_written_bytes: u64,
        /// Entries that compactions dropped: overwritten, deleted or expired.
        counter dropped_entries: u64,
        /// Deletions among the dropped entries.
        counter dropped_deletions: u64,
    }
}

impl TreeStats {
    /// Bytes written to runs per byte flushed or ingested: the write amplification of the tree,
    /// without the log.
    ///
    /// ```
    /// use forerun_db::{Db, Options};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("store");
    /// let db = Db::open(path, Options::default())?;
    /// db.put("paris", "48.85,2.35")?;
    /// db.flush()?;
    /// assert_eq!(db.stats().tree.write_amplification(), 1.0); // flushed, not yet compacted
    /// # Ok::<(), forerun_db::Error>(())
    /// ```
    pub fn write_amplification(&self) -> f64 {
        let came_in = self.flushed_bytes + self.ingested_bytes;
        (came_in + self.compaction_written_bytes) as f64 / came_in.max(1) as f64
    }
}

metrics! {
    /// A level of the tree of runs.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize))]
    #[non_exhaustive]
    pub struct LevelStats {
        /// Runs in the level.
        gauge runs: usize,
        /// Entries in the level's runs, including deletions and older versions.
        gauge entries: u64,
        /// Bytes of the files of these runs.
        gauge bytes: u64,
        /// Bytes of their keys and values before compression, without overhead.
        gauge raw_bytes: u64,
        /// Runs whose pages are compressed with LZ4, judging by their root pages.
        gauge lz4_runs: usize,
        /// Runs whose pages are compressed with zstd. The remaining ones are not compressed.
        gauge zstd_runs: usize,
        /// Bytes of the dictionaries of these runs in memory, which count towards
        /// [`Options::cache_bytes`](crate::Options::cache_bytes).
        gauge dictionary_bytes: usize,
        /// Runs whose index is in memory, so that a lookup of one key searches no pages. The others
        /// have none, it is not loaded yet, or
        /// [`Options::cache_bytes`](crate::Options::cache_bytes) is too small for it.
        gauge indexed_runs: usize,
        /// Runs with neither index nor filter in memory: they are not loaded yet, as after opening,
        /// or [`Options::cache_bytes`](crate::Options::cache_bytes) is too small, or they are
        /// damaged. Every lookup of a key in their range searches them.
        gauge unfiltered_runs: usize,
    }
}

/// Statistics of a keyspace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct KeyspaceStats {
    /// Its name. The name of the store's own keyspace is empty.
    pub name: String,
    /// Entries in its memtables, including deletions and older versions.
    pub memtable_entries: usize,
    /// The memory of its memtables, in bytes, including range deletions.
    pub memtable_bytes: usize,
    /// The levels of its tree of runs, down to the last one that holds a run.
    pub levels: Vec<LevelStats>,
    /// Why some of its runs cannot be compacted, until a compaction of them succeeds: see
    /// [`Error::CompactionFailed`](crate::Error::CompactionFailed).
    pub compaction_failure: Option<String>,
}

impl KeyspaceStats {
    pub(super) fn of(keyspace: &KeyspaceData) -> KeyspaceStats {
        let version = keyspace.version.load();
        let tables = || version.tables.iter().map(|table| table.memtable.stats());
        let mut levels = Vec::new();
        add_levels(&mut levels, &version.levels);
        KeyspaceStats {
            name: keyspace.name().to_owned(),
            memtable_entries: tables().map(|stats| stats.entries).sum(),
            memtable_bytes: version.tables.iter().map(|table| table.used_bytes()).sum(),
            levels,
            compaction_failure: keyspace.compaction_failure().map(|error| error.to_string()),
        }
    }
}

metrics! {
    /// Statistics of a store: its present contents, and counters since it was opened.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize))]
    #[non_exhaustive]
    pub struct Stats {
        /// The active memtable of the store's own keyspace: its entries, including deletions and
        /// older versions, and the memory they take.
        group memtable: MemTableStats,
        /// Memtables of all keyspaces, including full ones that wait to be flushed.
        gauge memtables: usize,
        /// The memory of all memtables, in bytes, including flushed ones that iterators still hold.
        gauge memtables_used_bytes: usize,
        /// The limit of the memory of all memtables, in bytes. It is
        /// [`Options::memory_limit_bytes`](crate::Options::memory_limit_bytes).
        gauge memtables_limit_bytes: usize,
        /// The levels of all keyspaces together, down to the last one that holds a run.
        group levels: Vec<LevelStats>,
        /// Statistics of each keyspace, the store's own first.
        other keyspaces: Vec<KeyspaceStats>,
        /// The page cache.
        group cache: PageCacheStats,
        /// What sets the budget of the page cache: `cache_bytes`, or what an automatic one follows.
        other cache_capacity_source: String,
        /// Counters of flushes and compactions.
        group tree: TreeStats,
        /// Scrubs of runs.
        group scrub: ScrubStats,
        /// Whether a compaction is due or in progress. If not, the tree stays as it is until the
        /// next flush, until a snapshot is dropped, or until deletions are old.
        gauge is_compaction_due: bool,
        /// Files of replaced runs that wait to be removed. They are removed at a pace that leaves
        /// the disk to others, faster if they take much space.
        gauge obsolete_files: usize,
        /// Bytes of these files.
        gauge obsolete_bytes: u64,
        /// Writes that waited, by reason.
        group write_stalls: WriteStalls,
        /// Why the last flush or compaction failed, until one succeeds. A compaction that fails for
        /// one keyspace is retried less and less often; [`KeyspaceStats::compaction_failure`]
        /// reports each such failure.
        other background_failure: Option<String>,
        /// Sequence number of the newest visible operation, which is the number of operations ever
        /// applied.
        counter last_sequence: u64,
        /// Snapshots that are held. What they see stays on disk, whatever replaces it: see
        /// [`Db::snapshot`](crate::Db::snapshot).
        gauge snapshots: usize,
        /// How many seconds ago the oldest snapshot was taken; 0 if there is none. Of those between
        /// which nothing was written, the first counts as long as one is held.
        gauge oldest_snapshot_age_s: u64,
        /// Batches written; a `put` is a batch of one.
        counter write_batches: u64,
        /// Groups of batches, each written to the log with one call.
        counter log_groups: u64,
        /// Bytes of records written to the log.
        counter log_written_bytes: u64,
        /// Syncs of the log.
        counter log_syncs: u64,
        /// Batches looked up; a `get` is a batch of one.
        counter lookup_batches: u64,
        /// Keys in these batches.
        counter lookup_keys: u64,
        /// How long lookups of one key take, of the calls that are timed: see
        /// [`Options::stats_level`](crate::Options::stats_level).
        group get: Latency,
        /// How long lookups of several keys take, of the calls that are timed.
        group multi_get: Latency,
        /// How long buffered writes take, of the calls that are timed.
        group write: Latency,
        /// How long synced writes take.
        group synced_write: Latency,
        /// How long flushes take.
        group flush: Latency,
        /// How long compactions take, but for those that only move a run to another level.
        group compaction: Latency,
        /// How long writes wait that have to: the waits that [`WriteStalls::stalls`] counts.
        group write_stall: Latency,
        /// How often this process has got no io_uring ring for lack of descriptors or memory. Its
        /// stores then read with a pool of threads for a second, and ask again.
        counter ring_refusals: u64,
        /// Why the store takes no more writes, if an earlier failure stopped them.
        other poisoned: Option<String>,
    }
}

impl Inner {
    fn background_failure(&self) -> Option<Error> {
        let of_keyspaces = || {
            let keyspaces = self.keyspaces.load();
            keyspaces
                .iter()
                .find_map(|keyspace| keyspace.compaction_failure())
        };
        self.work.failure().or_else(of_keyspaces)
    }

    pub(super) fn stats(&self) -> Stats {
        let log = self.write_path.log_counts();
        let poisoned = self.write_path.poison();
        let obsolete = self.tree.obsolete_files.counts();
        let (snapshots, oldest_age) = self.snapshots.count_and_age(time::now());
        let open = self.keyspaces.load();
        let keyspaces: Vec<_> = open.iter().map(|data| KeyspaceStats::of(data)).collect();
        let mut levels = Vec::new();
        let mut memtables = 0;
        for keyspace in open.iter() {
            let version = keyspace.version.load();
            add_levels(&mut levels, &version.levels);
            memtables += version.tables.len();
        }
        Stats {
            memtable: self.memtables.own_stats().unwrap_or(MemTableStats {
                entries: 0,
                used_bytes: 0,
                limit_bytes: 0,
                height: 0,
                backing: Backing::Heap,
            }),
            memtables,
            memtables_used_bytes: self.memtables.used_bytes(),
            memtables_limit_bytes: self.options.memory_limit_bytes,
            levels,
            keyspaces,
            cache: self.tree.cache.stats(),
            cache_capacity_source: self.tree.cache.capacity_source().to_string(),
            tree: self.tree.stats(),
            scrub: self.scrubbing.stats(),
            is_compaction_due: self.is_compaction_due(),
            obsolete_files: obsolete.files,
            obsolete_bytes: obsolete.bytes,
            write_stalls: self.counters.write_stalls(&log),
            background_failure: self.background_failure().map(|failure| failure.to_string()),
            last_sequence: self.write_path.visible_sequence(),
            snapshots,
            oldest_snapshot_age_s: oldest_age.as_secs(),
            write_batches: log.batches + self.counters.write_batches(),
            log_groups: log.groups,
            log_written_bytes: log.written_bytes,
            log_syncs: log.syncs,
            lookup_batches: self.counters.lookup_batches(),
            lookup_keys: self.counters.lookup_keys(),
            get: self.counters.get.latency(),
            multi_get: self.counters.multi_get.latency(),
            write: self.counters.write.latency(),
            synced_write: self.counters.synced_write.latency(),
            flush: self.counters.flush.latency(),
            compaction: self.counters.compaction.latency(),
            write_stall: self.counters.write_stall.latency(),
            ring_refusals: ring_refusals(),
            poisoned: poisoned.map(|cause| cause.to_string()),
        }
    }
}

fn add_levels(stats: &mut Vec<LevelStats>, levels: &Levels) {
    for (level, run) in levels.runs() {
        if stats.len() <= level {
            stats.resize(level + 1, LevelStats::default());
        }
        stats[level].runs += 1;
        stats[level].entries = stats[level].entries.saturating_add(run.meta().entries);
        stats[level].bytes += run.meta().file_bytes;
        // The metadata may say anything.
        stats[level].raw_bytes = stats[level].raw_bytes.saturating_add(run.meta().raw_bytes);
        match run.codec() {
            Codec::Raw => {}
            Codec::Lz4 => stats[level].lz4_runs += 1,
            Codec::Zstd => stats[level].zstd_runs += 1,
        }
        stats[level].dictionary_bytes += run.dictionary_bytes();
        stats[level].indexed_runs += usize::from(run.index().is_some());
        stats[level].unfiltered_runs += usize::from(!run.has_filter());
    }
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
            "memtable   {} in {used_bytes} of {limit_bytes} bytes ({percent:.1}%), {}",
            counted(entries, "entry"),
            counted(height, "level")
        )?;
        let levels = self.levels.iter().enumerate();
        for (level, stats) in levels.filter(|(_, stats)| stats.runs > 0) {
            let LevelStats {
                runs,
                entries,
                bytes,
                raw_bytes,
                lz4_runs,
                zstd_runs,
                ..
            } = stats;
            write!(
                f,
                "level {level}    {} in {} of {bytes} bytes",
                counted(entries, "entry"),
                counted(runs, "run")
            )?;
            let codecs = [(lz4_runs, "LZ4"), (zstd_runs, "zstd")];
            let mut codecs = codecs.iter().filter(|(runs, _)| **runs > 0);
            if let Some((runs, codec)) = codecs.next() {
                write!(f, " ({raw_bytes} uncompressed; {runs} with {codec}")?;
                for (runs, codec) in codecs {
                    write!(f, ", {runs} with {codec}")?;
                }
                write!(f, ")")?;
            }
            writeln!(f)?;
        }
        for keyspace in self.keyspaces.iter().skip(1) {
            let runs: usize = keyspace.levels.iter().map(|level| level.runs).sum();
            let entries: u64 = keyspace.levels.iter().map(|level| level.entries).sum();
            writeln!(
                f,
                "keyspace   {:?}: {} in memory, {entries} in {}",
                keyspace.name,
                counted(keyspace.memtable_entries, "entry"),
                counted(runs, "run")
            )?;
        }
        if !self.levels.is_empty() {
            let source = &self.cache_capacity_source;
            writeln!(f, "cache      {} ({source})", self.cache)?;
        }
        writeln!(f, "sequence   {}", self.last_sequence)?;
        writeln!(
            f,
            "writes     {}; log: {} in {}, {}",
            counted(self.write_batches, "batch"),
            counted(self.log_written_bytes, "byte"),
            counted(self.log_groups, "group"),
            counted(self.log_syncs, "sync")
        )?;
        write!(
            f,
            "lookups    {} in {}",
            counted(self.lookup_keys, "key"),
            counted(self.lookup_batches, "batch")
        )?;
        if self.tree != TreeStats::default() {
            let TreeStats {
                flushes,
                flushed_bytes,
                compactions,
                compaction_written_bytes,
                ..
            } = self.tree;
            write!(
                f,
                "\ntree       {} wrote {flushed_bytes} bytes, {} {compaction_written_bytes} \
                 ({:.1} bytes written for each flushed)",
                counted(flushes, "flush"),
                counted(compactions, "compaction"),
                self.tree.write_amplification()
            )?;
        }
        if self.obsolete_files > 0 {
            write!(
                f,
                "\nobsolete   {} of {} wait to be removed",
                counted(self.obsolete_files, "file"),
                counted(self.obsolete_bytes, "byte")
            )?;
        }
        let ScrubStats {
            read_bytes,
            damaged_pages,
            rounds,
            ..
        } = self.scrub;
        if read_bytes > 0 {
            write!(
                f,
                "\nscrub      {} in {}, {} damaged",
                counted(read_bytes, "byte"),
                counted(rounds, "round"),
                counted(damaged_pages, "page")
            )?;
        }
        if self.snapshots > 0 {
            let (held, age_s) = (self.snapshots, self.oldest_snapshot_age_s);
            write!(f, "\nsnapshots  {held}, the oldest {age_s} s old")?;
        }
        if self.write_stalls != WriteStalls::default() {
            write!(f, "\npressure   {}", self.write_stalls)?;
        }
        let latencies = [
            ("get", &self.get),
            ("multi_get", &self.multi_get),
            ("write", &self.write),
            ("synced", &self.synced_write),
            ("flush", &self.flush),
            ("compaction", &self.compaction),
            ("stall", &self.write_stall),
        ];
        for (name, latency) in latencies.into_iter().filter(|(_, of)| of.calls > 0) {
            let us = |ns| ns as f64 / 1000.0;
            write!(
                f,
                "\n{name:<10} {:.1} us median, {:.1} us p99, {:.1} us longest of {} timed",
                us(latency.p50_ns),
                us(latency.p99_ns),
                us(latency.max_ns),
                latency.calls
            )?;
        }
        let of_keyspaces = self.keyspaces.iter();
        let of_keyspaces = of_keyspaces.filter_map(|of| of.compaction_failure.as_ref());
        let others = of_keyspaces.filter(|cause| Some(*cause) != self.background_failure.as_ref());
        for cause in self.background_failure.iter().chain(others) {
            write!(f, "\nfailing    {cause}")?;
        }
        if let Some(cause) = &self.poisoned {
            write!(f, "\npoisoned   {cause}")?;
        }
        Ok(())
    }
}
