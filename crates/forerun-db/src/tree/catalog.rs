//! The runs of an open store, in memory and as the manifest on disk names them.
//!
//! ```text
//!   install(edit):   levels ──edit──> new levels ──> MANIFEST, durably ──> removed runs: marked obsolete
//!                                                        │ fails
//!                                                        └──> levels stay; added runs: kept until a manifest is written
//! ```
//!
//! A run's file is removed when two things have come to pass: a manifest without it is durable, and the last reader
//! has let go of it. The first marks the run, the second is its drop, which removes the file of a run that is marked.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::cache::PageCache;
use crate::comparator::KeyOrder;
use crate::io::Io;
use crate::ranges::Ranges;
use crate::run::{self, Run};
use crate::tree::build::RunNumbers;
use crate::tree::checkpoint::{LogEnd, checkpoint};
use crate::tree::levels::{Edit, Levels, record};
use crate::tree::manifest::{self, Manifest, RunRecord};
use crate::{Error, Result};

/// What is true of the runs. One thread changes it at a time.
#[derive(Debug)]
pub(crate) struct Catalog {
    io: Arc<dyn Io>,
    dir: PathBuf,
    /// As on disk, unless the last writing of it failed.
    manifest: Manifest,
    levels: Arc<Levels>,
    ranges: Arc<Ranges>,
    numbers: Arc<RunNumbers>,
    /// Runs of edits whose manifest could not be written: it may be on disk all the same.
    in_doubt: Vec<Arc<Run>>,
}

/// How far the log is in runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Logged {
    /// Everything up to this sequence number is.
    pub(crate) flushed_sequence: u64,
    /// The first segment of the log with anything that is not.
    pub(crate) first_segment: u64,
    /// By when, in seconds since 1970, all of that was written, if that is to be noted.
    pub(crate) written_by: Option<u64>,
}

/// Notes of times that are kept: when there are more, every other one goes.
const MOST_TIMES: usize = 256;

impl Catalog {
    /// Opens the runs of a store, and removes files of runs that the manifest does not name. A store that has neither
    /// gets a manifest.
    ///
    /// # Errors
    /// [`Error::CorruptFile`]: the manifest is damaged or lost, or a run is damaged, missing, or another one. Nothing
    /// is removed or changed then.
    pub(crate) fn open(
        io: &Arc<dyn Io>,
        dir: &Path,
        order: &KeyOrder,
        comparator: &str,
        cache: &Arc<PageCache>,
    ) -> Result<Catalog> {
        let found = run_files(&**io, dir)?;
        let manifest = match Manifest::read(&**io, dir)? {
            Some(manifest) => manifest,
            None if found.is_empty() => {
                let manifest = Manifest::new(comparator);
                manifest.write(&**io, dir)?;
                manifest
            }
            None => {
                let reason = "it is missing, and there are runs: repair the store";
                return Err(Error::corrupt_file(&dir.join(manifest::NAME), 0, reason));
            }
        };
        let levels = open_levels(&**io, dir, &manifest, order, comparator, cache)?;
        let is_named = |number: &u64| manifest.runs().any(|run| run.number == *number);
        for number in found.iter().filter(|number| !is_named(number)) {
            let path = run::path(dir, *number);
            io.remove(&path)
                .map_err(|error| Error::io("remove", &path, error))?;
        }
        Ok(Catalog {
            io: Arc::clone(io),
            dir: dir.to_owned(),
            numbers: Arc::new(RunNumbers::new(manifest.next_run)),
            ranges: Arc::new(Ranges::new(
                order.clone(),
                manifest.keyspaces[0].ranges.clone(),
            )),
            levels: Arc::new(levels),
            manifest,
            in_doubt: Vec::new(),
        })
    }

    /// The runs.
    pub(crate) fn levels(&self) -> &Arc<Levels> {
        &self.levels
    }

    /// The deletions of ranges that cover something in the runs.
    pub(crate) fn ranges(&self) -> &Arc<Ranges> {
        &self.ranges
    }

    /// Numbers for new runs.
    pub(crate) fn numbers(&self) -> &Arc<RunNumbers> {
        &self.numbers
    }

    /// How far the log is in runs.
    pub(crate) fn logged(&self) -> Logged {
        Logged {
            flushed_sequence: self.manifest.flushed_sequence,
            first_segment: self.manifest.first_segment,
            written_by: None,
        }
    }

    /// Everything up to this sequence number has expired.
    pub(crate) fn expired_sequence(&self) -> u64 {
        self.manifest.keyspaces[0].expired_sequence
    }

    /// Up to which sequence number everything was written by a time, in seconds since 1970, as far as is noted.
    pub(crate) fn written_by(&self, time: u64) -> u64 {
        let times = &self.manifest.keyspaces[0].times;
        let notes = times.partition_point(|(noted, _)| *noted <= time);
        times[..notes].last().map_or(0, |(_, sequence)| *sequence)
    }

    /// Makes a change of the runs durable and returns the levels after it, which the caller shows to readers. With
    /// `logged`, it also notes how far the log is in runs.
    ///
    /// # Errors
    /// [`Error::Io`]: nothing has changed as far as this process is concerned, and the store goes on without it. Which
    /// of the two manifests is on disk is open until the next change, and every file that either names is there.
    pub(crate) fn install(&mut self, edit: &Edit, logged: Option<Logged>) -> Result<Arc<Levels>> {
        let levels = Arc::new(self.levels.edit(edit));
        debug_assert!(levels.overlap().is_none(), "{:?}", levels.overlap());
        let mut manifest = self.manifest.clone();
        manifest.next_run = self.numbers.next();
        if let Some(logged) = logged {
            manifest.flushed_sequence = logged.flushed_sequence;
            manifest.first_segment = logged.first_segment;
        }
        let keyspace = &mut manifest.keyspaces[0];
        keyspace.levels = levels.records();
        keyspace.expired_sequence = keyspace.expired_sequence.max(edit.expired_sequence);
        keyspace.ranges.extend_from_slice(&edit.ranges);
        keyspace.ranges.retain(|range| levels.needs(range));
        if let Some(logged) = logged {
            // A clock that was put back must not make the notes go back.
            let last = keyspace.times.last().map_or(0, |(time, _)| *time);
            if let Some(time) = logged.written_by.filter(|time| *time >= last) {
                keyspace.times.push((time, logged.flushed_sequence));
                if keyspace.times.len() > MOST_TIMES {
                    let mut is_kept = false;
                    keyspace.times.retain(|_| {
                        is_kept = !is_kept;
                        is_kept
                    });
                }
            }
        }
        if let Err(error) = manifest.write(&*self.io, &self.dir) {
            let added = edit.added.iter().map(|(_, run)| run).chain(&edit.ingested);
            // A run that only changes its level is named by both.
            let added = added.filter(|run| !edit.removed.contains(&run.number()));
            self.in_doubt.extend(added.cloned());
            return Err(error);
        }
        let is_named = |number: u64| levels.runs().any(|(_, run)| run.number() == number);
        let removed = self
            .levels
            .runs()
            .map(|(_, run)| run)
            .filter(|run| edit.removed.contains(&run.number()));
        for run in removed
            .chain(&self.in_doubt)
            .filter(|run| !is_named(run.number()))
        {
            run.remove_when_dropped(&self.io);
        }
        self.in_doubt.clear();
        if manifest.keyspaces[0].ranges != self.ranges.tombstones() {
            let ranges = manifest.keyspaces[0].ranges.clone();
            self.ranges = Arc::new(Ranges::new(levels.order().clone(), ranges));
        }
        self.manifest = manifest;
        self.levels = Arc::clone(&levels);
        Ok(levels)
    }

    /// Copies the store as it is now to a directory that is not there yet, or empty. As long as this is borrowed,
    /// nothing that it needs goes away but by the caller: segments of the log from
    /// [`first_segment`](Logged::first_segment) on must stay.
    ///
    /// # Errors
    /// As [`checkpoint`].
    pub(crate) fn checkpoint(&self, into: &Path, log: &LogEnd) -> Result<()> {
        checkpoint(
            &*self.io,
            &self.dir,
            into,
            &self.manifest,
            &self.levels,
            log,
        )
    }
}

/// Opens the runs that a manifest names.
pub(crate) fn open_levels(
    io: &dyn Io,
    dir: &Path,
    manifest: &Manifest,
    order: &KeyOrder,
    comparator: &str,
    cache: &Arc<PageCache>,
) -> Result<Levels> {
    let path = dir.join(manifest::NAME);
    let corrupt = |reason: String| Err(Error::corrupt_file(&path, 0, reason));
    let [keyspace] = &manifest.keyspaces[..] else {
        return corrupt("it has several keyspaces, which this release does not read".into());
    };
    if keyspace.comparator != comparator {
        return Err(Error::ComparatorMismatch {
            path: dir.to_owned(),
            stored: keyspace.comparator.clone(),
            given: comparator.to_owned(),
        });
    }
    let mut runs = Vec::new();
    for (level, records) in keyspace.levels.iter().enumerate() {
        for named in records {
            runs.push((level, open_run(io, dir, named, order, cache)?));
        }
    }
    let levels = Levels::with_runs(order.clone(), runs);
    if let Some((level, a, b)) = levels.overlap() {
        let (a, b) = (a.number(), b.number());
        return corrupt(format!("runs {a} and {b} of level {level} overlap"));
    }
    match levels.records() == keyspace.levels {
        true => Ok(levels),
        false => corrupt("runs are not in order".into()),
    }
}

/// Opens the run that a record names, and no other.
pub(crate) fn open_run(
    io: &dyn Io,
    dir: &Path,
    named: &RunRecord,
    order: &KeyOrder,
    cache: &Arc<PageCache>,
) -> Result<Arc<Run>> {
    let path = run::path(dir, named.number);
    let run = match Run::open(io, &path, named.number, order.clone(), cache) {
        Err(error) if error.io_kind() == Some(std::io::ErrorKind::NotFound) => {
            return Err(Error::corrupt_file(&path, 0, "it is missing"));
        }
        opened => opened?,
    };
    match record(&run) == *named {
        true => Ok(Arc::new(run)),
        false => Err(Error::corrupt_file(
            &path,
            0,
            "it is not the run that the manifest names",
        )),
    }
}

/// Numbers of the runs whose files are in a directory, ascending.
pub(crate) fn run_files(io: &dyn Io, dir: &Path) -> Result<Vec<u64>> {
    let names = io
        .list(dir)
        .map_err(|error| Error::io("list", dir, error))?;
    let mut numbers: Vec<u64> = names
        .iter()
        .filter_map(|name| run::number(name.to_str()?))
        .collect();
    numbers.sort_unstable();
    Ok(numbers)
}
