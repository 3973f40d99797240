//! Opening: reads the manifest and its runs, then replays what the log holds beyond them.

use forerun_core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use super::Inner;
use super::background_work::BackgroundWork;
use super::batch_parts::{Fits, Part, prepare};
use super::commit::Commit;
use super::directory::Directory;
use super::keyspace_data::KeyspaceData;
use super::keyspaces::{KeyspaceSet, Keyspaces};
use super::memory::table_bytes_for;
use super::memtable_set::MemTableSet;
use super::memtables::MemTables;
use super::published_sequence::PublishedSequence;
use super::snapshots::Snapshots;
use super::stats::Counters;
use super::tree::Tree;
use super::write::Writer;
use super::write_controller::WriteController;
use super::write_path::WritePath;
use crate::cache::PageCache;
use crate::clock::{Clock, Expiry};
use crate::io::Io;
use crate::io::open_files::{self, OpenFiles};
use crate::memtable::RegionPool;
use crate::ranges::RangeRef;
use crate::run::lookup::ReadContext;
use crate::store_dir::StoreDir;
use crate::tree::build::{Build, RunNumbers, write_runs};
use crate::tree::catalog::{Catalog, Logged};
use crate::tree::limiter::RateLimiter;
use crate::tree::manifest::{self, Keyspace};
use crate::tree::pending_edits::PendingEdits;
use crate::tree::range_run::write_range_run;
use crate::tree::retain::Retain;
use crate::wal::clean_shutdown;
use crate::wal::log_file;
use crate::wal::record::Record;
use crate::wal::recovery::{Flushed, RecoveryContext, inspect, recover};
use crate::wal::recovery_report::CorruptRange;
use crate::wal::writer::LogWriter;
use crate::{Access, Background, Error, Op, Options, Recovery, Result, WalMode};

/// Locks a store's directory, or creates one, and opens the store in it.
pub(super) fn open(io: &Arc<dyn Io>, path: &Path, options: Options) -> Result<Inner> {
    options.check()?;
    let comparator = options.comparator.name();
    let dir = match options.access {
        Access::ReadWrite => StoreDir::open(io, path, options.create, comparator)?,
        Access::ReadOnly => StoreDir::open_read_only(io, path, comparator)?,
    };
    open_in(options, dir)
}

/// Opens the store in a directory whose lock the caller already holds.
pub(super) fn open_in(mut options: Options, mut dir: StoreDir) -> Result<Inner> {
    // Leaves memory for the next memtable while one is flushed.
    options.memtable_bytes = options.memtable_bytes.min(options.memory_limit_bytes / 2);
    options.check()?;
    let max_open = options
        .max_open_files
        .unwrap_or_else(open_files::default_limit);
    let io: Arc<dyn Io> = Arc::new(OpenFiles::new(Arc::clone(&dir.io), max_open));
    let path = &*dir.path.clone();
    let cache = PageCache::of_store(&options)?;
    let mut catalog = Catalog::open(&io, path, &options, &cache)?;
    let reading = ReadContext {
        cache: Arc::clone(&cache),
        backend: options.reads,
    };
    static STORES: AtomicU64 = AtomicU64::new(1);
    // Relaxed: the numbers only have to differ.
    let number = STORES.fetch_add(1, Ordering::Relaxed);
    let keyspaces = open_keyspaces(number, path, &options, &catalog, &reading)?;
    let Some(own) = keyspaces.by_id(0).cloned() else {
        let reason = "it has no keyspace of the store's own";
        return Err(Error::corrupt_file(&path.join(manifest::NAME), 0, reason));
    };
    let ttls = keyspaces
        .iter()
        .filter_map(|keyspace| keyspace.expiry.as_ref());
    let clock = Arc::new(Clock::new(
        Arc::clone(&io),
        catalog.marks().to_vec(),
        ttls.map(Expiry::ttl),
    ));
    let first_needed = catalog.first_segment();

    let mut bad_mark = None;
    let clean_shutdown = match dir.clean_shutdown {
        Some(Err(reason)) => {
            let path = path.join(clean_shutdown::NAME);
            if options.recovery != Recovery::SkipCorrupt {
                return Err(Error::corrupt_file(&path, 0, reason));
            }
            bad_mark = Some(CorruptRange {
                path,
                offset: 0,
                len_bytes: 0,
                reason: reason.into(),
            });
            None
        }
        Some(Ok(shutdown)) => Some(shutdown),
        None => None,
    };
    let is_marked_closed = dir.clean_shutdown.is_some();
    let circumstances = RecoveryContext {
        recovery: options.recovery,
        clean_shutdown,
        power_lost: dir.power_lost(),
        flushed: Flushed {
            sequence: catalog.flushed_sequence(),
            first_segment: first_needed,
        },
        next_keyspace: catalog.next_keyspace(),
    };
    let is_needed = |number: &u64| *number >= first_needed;
    let (needed, mut obsolete): (Vec<u64>, Vec<u64>) =
        dir.segments.iter().copied().partition(is_needed);
    let limiter = RateLimiter::new(options.tree.write_rate_bytes);
    let limit_bytes = options.memtable_bytes;
    let regions = Arc::new(RegionPool::new(limit_bytes));
    let table = own.new_table(&options, limit_bytes, &regions)?;
    let mut replay = Replay {
        older: Vec::new(),
        memtables: MemTableSet::new(0, limit_bytes, &own, table),
        edits: PendingEdits::new(catalog.obsolete_files()),
        flushed_sequence: catalog.flushed_sequence(),
        keyspaces: &keyspaces,
        clock: &clock,
        own: &own,
        write: Write {
            io: &*io,
            dir: path,
            cache: &cache,
            numbers: &Arc::clone(catalog.numbers()),
            limiter: &limiter,
        },
        options: &options,
        regions: &regions,
    };
    let mut apply = |record: &Record<'_>| replay.apply(record);
    let recovered = match options.access {
        Access::ReadWrite => recover(&io, path, &needed, &circumstances, &mut apply)
            .map(|(tail, report)| (Some(tail), report)),
        Access::ReadOnly => {
            inspect(&io, path, &needed, &circumstances, &mut apply).map(|report| (None, report))
        }
    };
    let Replay {
        older,
        memtables,
        edits,
        flushed_sequence,
        ..
    } = replay;
    let (mut tail, mut recovery) = recovered?;
    recovery.skipped.extend(bad_mark);

    // If a power loss took the end of the log and the runs hold more than it, no part of the log is
    // needed, and the next segment does not continue it.
    if let Some(tail) = &mut tail
        && (tail.is_behind_runs || !edits.is_empty())
    {
        let holding = tail
            .starts
            .iter()
            .rev()
            .find(|(_, first)| *first <= flushed_sequence + 1);
        let first_segment = match holding {
            Some((number, _)) if !tail.is_behind_runs => *number,
            _ => tail.next_number,
        };
        let logged = Logged {
            flushed_sequence,
            first_segment,
            marks: clock.marks_up_to(flushed_sequence),
        };
        catalog.install(edits, Some(&logged))?;
        for keyspace in keyspaces.iter() {
            if let Some(runs) = catalog.runs_of(keyspace.id()) {
                keyspace.show_runs(runs);
            }
        }
        obsolete.extend(needed.iter().filter(|number| **number < first_segment));
        tail.starts.retain(|(number, _)| *number >= first_segment);
    }
    if tail.is_none() {
        obsolete.clear();
    }
    for number in obsolete {
        let path = log_file::path(path, number);
        io.remove(&path)
            .map_err(|error| Error::io("remove", &path, error))?;
    }
    if tail.is_some() {
        dir.note_recovered();
    }
    tracing::info!(path = %path.display(), %recovery, "opened");

    let last_sequence = recovery.last_sequence;
    let writer = match tail {
        Some(tail) if options.wal == WalMode::On => Writer::Logged(Commit::new(LogWriter::new(
            Arc::clone(&io),
            path,
            options.wal_segment_bytes,
            unsynced_segments_max(&options),
            Arc::clone(&clock),
            tail,
            is_marked_closed,
        ))),
        _ => Writer::unlogged(last_sequence + 1),
    };
    for memtables in older.iter().chain([&memtables]) {
        for (keyspace, table) in memtables.tables() {
            keyspace.show_table(table);
        }
    }
    let read_only = (options.access == Access::ReadOnly).then(|| Error::ReadOnly {
        path: path.to_owned(),
    });
    let work = Arc::new(BackgroundWork::default());
    Ok(Inner {
        io,
        path: path.to_owned(),
        keyspaces: Keyspaces::new(number, own, keyspaces, reading),
        tree: Tree::new(catalog, limiter, cache),
        memtables: MemTables::new(memtables, regions, &work),
        write_path: WritePath {
            writer,
            clock,
            published: PublishedSequence::new(last_sequence),
        },
        write_controller: WriteController::new(),
        snapshots: Snapshots::default(),
        counters: Counters::default(),
        recovery,
        work,
        directory: Directory::new(dir, read_only),
        options,
    })
}

/// How many full segments may wait to be synced in the background. Without background threads, each
/// is synced before the next one takes records.
fn unsynced_segments_max(options: &Options) -> usize {
    match options.background {
        Background::Threads => 4,
        Background::Caller => 0,
    }
}

/// Makes the keyspaces that the manifest names, each with its options.
fn open_keyspaces(
    store: u64,
    path: &Path,
    options: &Options,
    catalog: &Catalog,
    reading: &ReadContext,
) -> Result<KeyspaceSet> {
    let mut keyspaces = Vec::new();
    for Keyspace {
        id,
        name,
        comparator,
        ttl,
        ..
    } in catalog.keyspaces()
    {
        let options = options.of_stored_keyspace(path, name, comparator)?;
        let options = options.with_stored_ttl(name, *ttl)?;
        if let Some(runs) = catalog.runs_of(*id) {
            let keyspace =
                KeyspaceData::new(store, *id, name, comparator, options, runs, reading.clone());
            keyspaces.push(Arc::new(keyspace));
        }
    }
    Ok(KeyspaceSet::new(keyspaces))
}

/// Where runs are written.
struct Write<'a> {
    io: &'a dyn Io,
    dir: &'a Path,
    cache: &'a Arc<PageCache>,
    numbers: &'a RunNumbers,
    limiter: &'a RateLimiter,
}

/// Replays the log into memtables, and into runs when it holds more than they can take.
struct Replay<'a> {
    /// Full memtable sets of a read-only store, which writes no runs.
    older: Vec<MemTableSet>,
    memtables: MemTableSet,
    /// The edits for the runs written so far, with their range deletions.
    edits: PendingEdits,
    /// The last sequence number in runs, these included.
    flushed_sequence: u64,
    keyspaces: &'a KeyspaceSet,
    clock: &'a Clock,
    own: &'a Arc<KeyspaceData>,
    write: Write<'a>,
    options: &'a Options,
    regions: &'a Arc<RegionPool>,
}

impl Replay<'_> {
    fn apply(&mut self, record: &Record<'_>) -> Result<()> {
        self.clock
            .note_recovered(u64::from(record.written), record.first_sequence);
        if let Some(needed_bytes) = self.insert(record)? {
            self.make_room_for_write(record.first_sequence, needed_bytes)?;
            if let Some(needed_bytes) = self.insert(record)? {
                return Err(Error::MemoryLimit {
                    needed_bytes,
                    used_bytes: 0,
                    limit_bytes: self.memtables.limit_bytes,
                });
            }
        }
        Ok(())
    }

    /// Puts a record's operations into memtables. If they do not fit, returns how much memory they
    /// need.
    fn insert(&mut self, record: &Record<'_>) -> Result<Option<usize>> {
        if record.greatest_keyspace == 0 {
            let part = Part {
                keyspace: self.own,
                ops: (0..).zip(record.ops.clone()),
            };
            return self.insert_parts(record, &[part]);
        }
        let ids: BTreeSet<u32> = record.ops.clone().with_keyspaces().map(|of| of.0).collect();
        // Operations of an unknown keyspace were written before it was dropped.
        let keyspaces = ids.into_iter().filter_map(|id| self.keyspaces.by_id(id));
        let parts: Vec<_> = keyspaces
            .map(|keyspace| Part::of_ops(record.ops.clone(), keyspace))
            .collect();
        self.insert_parts(record, &parts)
    }

    /// Puts the parts of a record into the memtable set. If they do not fit, returns how much
    /// memory they need.
    fn insert_parts<'op>(
        &mut self,
        record: &Record<'_>,
        parts: &[Part<'_, impl Iterator<Item = (u64, Op<'op>)> + Clone>],
    ) -> Result<Option<usize>> {
        let memtables = &mut self.memtables;
        for Part { keyspace, .. } in parts {
            if memtables.table(keyspace.id()).is_none() {
                let limit_bytes = memtables.limit_bytes;
                let table = keyspace.new_table(self.options, limit_bytes, self.regions)?;
                memtables.add(keyspace, table);
                memtables.trim(self.regions, self.options.memory_limit_bytes);
            }
        }
        let ranges_bytes = parts.iter().map(Part::ranges_bytes).sum();
        match prepare(memtables, parts, ranges_bytes)? {
            Fits::Yes(entries) => {
                entries.publish(record.first_sequence);
                for Part { keyspace, .. } in parts {
                    memtables.build_index_if_due(keyspace);
                }
                Ok(None)
            }
            Fits::No { needed_bytes } => Ok(Some(needed_bytes)),
        }
    }

    /// Writes the current memtables to runs and starts new ones that can hold a batch of this size.
    fn make_room_for_write(&mut self, next_sequence: u64, needed_bytes: usize) -> Result<()> {
        let limit_bytes = table_bytes_for(needed_bytes).max(self.options.memtable_bytes);
        let table = self
            .own
            .new_table(self.options, limit_bytes, self.regions)?;
        let next = MemTableSet::new(0, limit_bytes, self.own, table);
        let full = std::mem::replace(&mut self.memtables, next);
        if self.options.access == Access::ReadOnly {
            self.older.push(full);
            let older = self.older.iter().map(|of| of.limit_bytes);
            let used_bytes = older.sum::<usize>();
            let max_bytes = self.options.memory_limit_bytes;
            return if used_bytes.saturating_add(limit_bytes) <= max_bytes {
                Ok(())
            } else {
                Err(Error::MemoryLimit {
                    needed_bytes: limit_bytes,
                    used_bytes,
                    limit_bytes: max_bytes,
                })
            };
        }
        for (keyspace, table) in full.tables() {
            // There are no snapshots yet. The contents of older runs are not known here, so
            // deletions stay.
            let mut retain = Retain::new(keyspace.order().clone(), Vec::new());
            let edit = self.edits.edit_mut(keyspace.id());
            if !table.ranges.is_empty() {
                retain = retain.with_ranges(vec![Arc::clone(&table.ranges)]);
            }
            let build = Build {
                io: self.write.io,
                dir: self.write.dir,
                order: keyspace.order(),
                comparator: keyspace.comparator_name(),
                keyspace: (keyspace.id(), keyspace.name()),
                cache: self.write.cache,
                options: keyspace.options.load().run,
                run_bytes: u64::MAX,
                numbers: self.write.numbers,
                limiter: self.write.limiter,
                stop: &AtomicBool::new(false),
            };
            let mut versions = table.memtable.versions();
            let runs = write_runs(&mut versions, &mut retain, |_| true, &build)?;
            edit.added.extend(runs.into_iter().map(|run| (0, run)));
            let ranges = table.ranges.list();
            let run = write_range_run(ranges.iter().collect(), &build)?;
            edit.range_runs.extend(run);
            edit.ranges.extend(ranges.iter().map(RangeRef::to_owned));
        }
        self.flushed_sequence = next_sequence - 1;
        drop(full);
        self.memtables
            .trim(self.regions, self.options.memory_limit_bytes);
        Ok(())
    }
}
