//! Opening a store, in four steps.
//!
//! ```text
//!   load       manifest -> keyspaces and their runs                                  Loaded
//!   replay     log -> memtables; what is more than they take -> runs                 Replayed
//!   install    these runs -> manifest; segments of the log that are in runs go
//!   assemble   what continues the log, and the parts of the open store               Inner
//! ```

use std::path::Path;
use std::sync::Arc;

use super::Inner;
use super::background_work::BackgroundWork;
use super::commit::Commit;
use super::directory::Directory;
use super::loaded::Loaded;
use super::memtables::MemTables;
use super::operation_counters::Counters;
use super::replay::{Contents, Replay};
use super::scrubbing::Scrubbing;
use super::snapshots::Snapshots;
use super::write_controller::WriteController;
use super::write_path::WritePath;
use crate::events::EventSender;
use crate::io::Io;
use crate::store_dir::StoreDir;
use crate::tree::catalog::Logged;
use crate::wal::clean_shutdown::{self, CleanShutdown};
use crate::wal::log_file;
use crate::wal::record::Record;
use crate::wal::recovery::{Flushed, RecoveryContext, Tail, inspect, recover};
use crate::wal::recovery_report::{CorruptRange, RecoveryReport};
use crate::wal::writer::LogWriter;
use crate::{Access, Background, Error, Options, Recovery, Result, WalMode};

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
    let loaded = Loaded::load(&options, &dir)?;
    let mut replayed = replay(&loaded, &options, &dir)?;
    install(&loaded, &mut replayed)?;
    if replayed.tail.is_some() {
        dir.note_recovered();
    }
    tracing::info!(path = %loaded.path.display(), recovery = %replayed.recovery, "opened");
    Ok(assemble(loaded, replayed, options, dir))
}

/// How many full segments may wait to be synced in the background. Without background threads, each
/// is synced before the next one takes records.
fn unsynced_segments_max(options: &Options) -> usize {
    match options.background {
        Background::Threads => 4,
        Background::Caller => 0,
    }
}

/// What the log held, and where it continues.
struct Replayed {
    contents: Contents,
    /// `None` if the store is only read.
    tail: Option<Tail>,
    recovery: RecoveryReport,
    /// Segments that the manifest needs.
    needed: Vec<u64>,
    /// Segments that it does not need.
    obsolete: Vec<u64>,
}

/// Applies what the log holds beyond the runs.
fn replay(loaded: &Loaded, options: &Options, dir: &StoreDir) -> Result<Replayed> {
    let (clean_shutdown, bad_mark) = read_clean_shutdown(options, dir)?;
    let catalog = loaded.tree.catalog();
    let flushed = Flushed {
        sequence: catalog.flushed_sequence(),
        first_segment: catalog.first_segment(),
    };
    let circumstances = RecoveryContext {
        recovery: options.recovery,
        clean_shutdown,
        power_lost: dir.power_lost(),
        flushed,
        next_keyspace: catalog.next_keyspace(),
    };
    drop(catalog);
    let is_needed = |number: &u64| *number >= flushed.first_segment;
    let (needed, obsolete): (Vec<u64>, Vec<u64>) =
        dir.segments.iter().copied().partition(is_needed);
    let keyspaces = loaded.keyspaces.load_full();
    let mut replay = Replay::new(loaded, &keyspaces, options, flushed.sequence)?;
    let mut apply = |record: &Record<'_>| replay.apply(record);
    let (io, path) = (&loaded.io, &loaded.path);
    let (tail, mut recovery) = match options.access {
        Access::ReadWrite => {
            let (tail, recovery) = recover(io, path, &needed, &circumstances, &mut apply)?;
            (Some(tail), recovery)
        }
        Access::ReadOnly => {
            let recovery = inspect(io, path, &needed, &circumstances, &mut apply)?;
            (None, recovery)
        }
    };
    recovery.skipped.extend(bad_mark);
    Ok(Replayed {
        contents: replay.finish(),
        tail,
        recovery,
        needed,
        obsolete,
    })
}

/// The contents of `CLOSED`, if it exists; or, if it is damaged and that is to be skipped, a report
/// of the damage.
fn read_clean_shutdown(
    options: &Options,
    dir: &StoreDir,
) -> Result<(Option<CleanShutdown>, Option<CorruptRange>)> {
    match dir.clean_shutdown {
        None => Ok((None, None)),
        Some(Ok(shutdown)) => Ok((Some(shutdown), None)),
        Some(Err(reason)) => {
            let path = dir.path.join(clean_shutdown::NAME);
            if options.recovery != Recovery::SkipCorrupt {
                return Err(Error::corrupt_file(&path, 0, reason));
            }
            let damage = CorruptRange {
                path,
                offset: 0,
                len_bytes: 0,
                reason: reason.into(),
            };
            Ok((None, Some(damage)))
        }
    }
}

/// Installs the runs that replaying wrote, and removes the segments of the log that are in runs.
fn install(loaded: &Loaded, replayed: &mut Replayed) -> Result<()> {
    let Some(tail) = &mut replayed.tail else {
        return Ok(());
    };
    let Contents {
        edits,
        flushed_sequence,
        ..
    } = &mut replayed.contents;
    let obsolete = &mut replayed.obsolete;
    // If a power loss took the end of the log and the runs hold more than it, no part of the log is
    // needed, and the next segment does not continue it.
    if tail.is_behind_runs || !edits.is_empty() {
        let holding = tail
            .starts
            .iter()
            .rev()
            .find(|(_, first)| *first <= *flushed_sequence + 1);
        let first_segment = match holding {
            Some((number, _)) if !tail.is_behind_runs => *number,
            _ => tail.next_number,
        };
        let logged = Logged {
            flushed_sequence: *flushed_sequence,
            first_segment,
            marks: loaded.clock.marks_up_to(*flushed_sequence),
        };
        let mut catalog = loaded.tree.catalog();
        catalog.install(std::mem::replace(edits, loaded.tree.edits()), Some(&logged))?;
        for keyspace in loaded.keyspaces.load().iter() {
            if let Some(runs) = catalog.runs_of(keyspace.id()) {
                keyspace.show_runs(runs);
            }
        }
        let needed = replayed.needed.iter();
        obsolete.extend(needed.filter(|number| **number < first_segment));
        tail.starts.retain(|(number, _)| *number >= first_segment);
    }
    for number in obsolete {
        let path = log_file::path(&loaded.path, *number);
        let removed = loaded.io.remove(&path);
        removed.map_err(|error| Error::io("remove", &path, error))?;
    }
    Ok(())
}

/// Makes the open store, whose readers see what was replayed.
fn assemble(loaded: Loaded, replayed: Replayed, mut options: Options, dir: StoreDir) -> Inner {
    let Loaded {
        io,
        path,
        keyspaces,
        tree,
        clock,
        regions,
    } = loaded;
    let Replayed {
        contents: Contents {
            older, memtables, ..
        },
        tail,
        recovery,
        ..
    } = replayed;
    let commit = match tail {
        Some(tail) if options.wal == WalMode::On => Some(Commit::new(LogWriter::new(
            Arc::clone(&io),
            &path,
            options.wal_segment_bytes,
            unsynced_segments_max(&options),
            Arc::clone(&clock),
            tail,
            dir.clean_shutdown.is_some(),
        ))),
        _ => None,
    };
    for memtables in older.iter().chain([&memtables]) {
        for (keyspace, table) in memtables.tables() {
            keyspace.show_table(table);
        }
    }
    let read_only =
        (options.access == Access::ReadOnly).then(|| Error::ReadOnly { path: path.clone() });
    let work = Arc::new(BackgroundWork::default());
    Inner {
        io,
        path,
        keyspaces,
        tree,
        memtables: MemTables::new(memtables, regions, &options, &work),
        write_path: WritePath::new(commit, clock, recovery.last_sequence),
        write_controller: WriteController::new(),
        snapshots: Snapshots::default(),
        counters: Counters::new(options.stats_level),
        scrubbing: Scrubbing::default(),
        events: EventSender::new(options.event_listener.take()),
        recovery,
        work,
        directory: Directory::new(dir, read_only),
        options,
    }
}
