//! Opening: the manifest and its runs, then what the log has beyond them.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, RwLock};

use arc_swap::ArcSwap;

use super::compact::Tree;
use super::compact::now_unix;
use super::flush::table_bytes_for;
use super::snapshots::Snapshots;
use super::state::{State, Table};
use super::work::Work;
use super::write::tombstones;
use super::{Commit, Counters, Inner, Visible, Writer};
use crate::cache::{CacheOptions, PageCache};
use crate::comparator::KeyOrder;
use crate::io::Io;
use crate::memtable::MemTableConfig;
use crate::ranges::RangeTombstone;
use crate::run::Run;
use crate::run::lookup::ReadContext;
use crate::store_dir::StoreDir;
use crate::tree::build::{Build, write_runs};
use crate::tree::catalog::{Catalog, Logged};
use crate::tree::levels::Edit;
use crate::tree::limiter::RateLimiter;
use crate::tree::retain::Retain;
use crate::wal::closed;
use crate::wal::record::Record;
use crate::wal::recovery::{Circumstances, Flushed, recover};
use crate::wal::report::BadRange;
use crate::wal::segment;
use crate::wal::writer::LogWriter;
use crate::{Error, Options, Recovery, Result, WalMode};

pub(super) fn open(io: Arc<dyn Io>, path: &Path, mut options: Options) -> Result<Inner> {
    // So that there is room for the next one while one is flushed.
    options.memtable_bytes = options.memtable_bytes.min(options.memory_limit_bytes / 2);
    let comparator = Arc::clone(&options.comparator);
    let mut dir = StoreDir::open(&*io, path, options.create, comparator.name())?;
    let order = KeyOrder::new(Arc::clone(&comparator));
    let cache = PageCache::new(CacheOptions {
        capacity_bytes: options.cache_bytes,
        page_bytes: options.run.page_bytes,
        pages: options.pages,
    })?;
    let mut catalog = Catalog::open(&io, path, &order, comparator.name(), &cache)?;
    let logged = catalog.logged();

    let mut bad_mark = None;
    let closed = match dir.closed {
        Some(Err(reason)) => {
            let path = path.join(closed::NAME);
            if options.recovery != Recovery::SkipCorrupt {
                return Err(Error::corrupt_file(&path, 0, reason));
            }
            bad_mark = Some(BadRange {
                path,
                offset: 0,
                len_bytes: 0,
                reason: reason.into(),
            });
            None
        }
        Some(Ok(closed)) => Some(closed),
        None => None,
    };
    let is_marked_closed = dir.closed.is_some();
    let circumstances = Circumstances {
        recovery: options.recovery,
        closed,
        power_lost: dir.power_lost(),
        flushed: Flushed {
            sequence: logged.flushed_sequence,
            first_segment: logged.first_segment,
        },
    };
    let is_needed = |number: &u64| *number >= logged.first_segment;
    let (needed, mut obsolete): (Vec<u64>, Vec<u64>) =
        dir.segments.iter().copied().partition(is_needed);
    let limiter = RateLimiter::new(options.tree.write_rate_bytes);
    let mut replay = Replay {
        table: new_table(&options, options.memtable_bytes)?,
        runs: Vec::new(),
        ranges: Vec::new(),
        flushed_sequence: logged.flushed_sequence,
        build: Build {
            io: &*io,
            dir: path,
            order: &order,
            comparator: comparator.name(),
            cache: &cache,
            options: options.run,
            run_bytes: u64::MAX,
            numbers: &Arc::clone(catalog.numbers()),
            limiter: &limiter,
            stop: &AtomicBool::new(false),
        },
        options: &options,
    };
    let recovered = recover(&io, path, &needed, &circumstances, &mut |record| {
        replay.apply(record)
    });
    let Replay {
        table,
        runs,
        ranges,
        flushed_sequence,
        ..
    } = replay;
    let (tail, mut recovery) = match recovered {
        Ok(recovered) => recovered,
        Err(error) => {
            runs.iter().for_each(|run| run.remove_when_dropped(&io));
            return Err(error);
        }
    };
    recovery.skipped.extend(bad_mark);

    // Where the runs hold more than the log, because the power took its end, nothing of it is needed, and the next
    // segment does not continue it.
    if tail.is_behind_runs || !runs.is_empty() {
        let holding = tail
            .starts
            .iter()
            .rev()
            .find(|(_, first)| *first <= flushed_sequence + 1);
        let first_segment = match holding {
            Some((number, _)) if !tail.is_behind_runs => *number,
            _ => tail.next_number,
        };
        let edit = Edit {
            added: runs.into_iter().map(|run| (0, run)).collect(),
            ranges,
            ..Edit::default()
        };
        let logged = Logged {
            flushed_sequence,
            first_segment,
            written_by: options.ttl.map(|_| now_unix()),
        };
        catalog.install(&edit, Some(logged))?;
        obsolete.extend(needed.iter().filter(|number| **number < first_segment));
    }
    for number in obsolete {
        let path = segment::path(path, number);
        io.remove(&path)
            .map_err(|error| Error::io("remove", &path, error))?;
    }
    dir.note_recovered();
    tracing::info!(path = %path.display(), %recovery, "opened");

    let last_sequence = recovery.last_sequence;
    let writer = match options.wal {
        WalMode::On => Writer::Logged(Commit::new(LogWriter::new(
            Arc::clone(&io),
            path,
            options.wal_segment_bytes,
            tail,
            is_marked_closed,
        ))),
        WalMode::Off => Writer::unlogged(last_sequence + 1),
    };
    let table = Arc::new(table);
    let state = State {
        tables: vec![Arc::clone(&table)],
        levels: Arc::clone(catalog.levels()),
        ranges: Arc::clone(catalog.ranges()),
        expired_sequence: catalog.expired_sequence(),
    };
    Ok(Inner {
        io,
        path: path.to_owned(),
        order,
        reading: ReadContext {
            cache: Arc::clone(&cache),
            backend: options.reads,
            search: options.row_search,
        },
        cache,
        limiter,
        tree: Tree::new(catalog),
        state: ArcSwap::from_pointee(state),
        active: RwLock::new(table),
        writer,
        visible: Visible::new(last_sequence),
        snapshots: Snapshots::default(),
        counters: Counters::default(),
        recovery,
        work: Work::default(),
        flushing: Mutex::new(()),
        is_slow: AtomicBool::new(false),
        slow_debt_bytes: AtomicU64::new(0),
        dir: Mutex::new(Some(dir)),
        options,
    })
}

/// An empty memtable.
pub(super) fn new_table(options: &Options, limit_bytes: usize) -> Result<Table> {
    Table::new(MemTableConfig {
        limit_bytes,
        comparator: Arc::clone(&options.comparator),
        checks: options.checks,
        pages: options.pages,
    })
}

/// What the log holds, on its way back into a memtable; into runs, where it is more than one takes.
struct Replay<'a> {
    table: Table,
    runs: Vec<Arc<Run>>,
    /// Deletions of ranges that were written with them.
    ranges: Vec<RangeTombstone>,
    /// The last sequence number in runs, these included.
    flushed_sequence: u64,
    build: Build<'a>,
    options: &'a Options,
}

impl Replay<'_> {
    fn apply(&mut self, record: &Record<'_>) -> Result<()> {
        let needed_bytes = match self.table.memtable.prepare(record.ops.clone()) {
            Ok(prepared) => {
                prepared.publish(record.first_sequence);
                self.delete_ranges(record);
                return Ok(());
            }
            Err(Error::MemoryLimit { needed_bytes, .. }) => needed_bytes,
            Err(error) => return Err(error),
        };
        self.make_room(record.first_sequence, needed_bytes)?;
        let prepared = self.table.memtable.prepare(record.ops.clone())?;
        prepared.publish(record.first_sequence);
        self.delete_ranges(record);
        Ok(())
    }

    fn delete_ranges(&self, record: &Record<'_>) {
        let deleted = tombstones(record.ops.clone(), record.first_sequence);
        if !deleted.is_empty() {
            self.table.delete_ranges(self.build.order, &deleted);
        }
    }

    /// Writes what is there to a run, and begins a memtable that holds a batch of this size.
    fn make_room(&mut self, next_sequence: u64, needed_bytes: usize) -> Result<()> {
        let limit_bytes = table_bytes_for(needed_bytes).max(self.options.memtable_bytes);
        let table = new_table(self.options, limit_bytes)?;
        let full = std::mem::replace(&mut self.table, table);
        // There are no snapshots yet. Of what older runs hold nothing is known here, so deletions stay.
        let mut retain = Retain::new(self.build.order.clone(), Vec::new());
        if let Some(ranges) = full.ranges() {
            self.ranges.extend_from_slice(ranges.tombstones());
            retain = retain.with_ranges(ranges);
        }
        let mut versions = full.memtable.versions();
        let runs = write_runs(&mut versions, &mut retain, |_| true, &self.build)?;
        self.runs.extend(runs);
        self.flushed_sequence = next_sequence - 1;
        Ok(())
    }
}
