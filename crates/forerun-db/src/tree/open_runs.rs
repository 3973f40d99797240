//! Opens the runs that a manifest names, several at a time.
//!
//! ```text
//!   manifest   keyspace 0: run │ run │ … │ range deletions    keyspace 1: run │ …
//!   threads    each takes the next run; once one cannot be opened, none after it
//!   result     all runs, in the manifest's order; or the error of the first that cannot be opened
//! ```
//!
//! Opening reads only both ends of a file, so a thread mostly waits for the storage. It checks that
//! the file is the run that the manifest names. Indexes and filters are loaded later.

use std::path::Path;
use std::sync::Arc;

use forerun_core::sync::SIMULATED;

use crate::cache::PageCache;
use crate::comparator::KeyOrder;
use crate::io::Io;
use crate::io::open_files;
use crate::ranges::{RangeTombstone, Ranges};
use crate::run::{self, Run};
use crate::tree::levels::{Levels, record};
use crate::tree::manifest::{self, Keyspace, RunRecord};
use crate::tree::parallel::{Threads, in_order};
use crate::tree::range_run::read_range_run;
use crate::{Background, Error, Options, Result};

/// The most threads, as with RocksDB's `max_file_opening_threads`: more than most machines have
/// cores, because the storage may be slow.
const THREADS_MAX: usize = 16;

/// Fewer runs are opened, if the system has them in memory, before another thread has started.
const RUNS_PER_THREAD: usize = 2;

/// The runs of a keyspace.
pub(crate) struct OpenedRuns {
    pub(crate) levels: Levels,
    /// The runs of range deletions, and the range deletions in them that still cover something.
    pub(crate) range_runs: Vec<Arc<Run>>,
    pub(crate) ranges: Ranges,
}

/// Opens the runs of keyspaces, each with its order of keys.
///
/// # Errors
/// [`Error::CorruptFile`] if a run is damaged, missing or not the one named; the errors of
/// [`Run::open_without_filter`].
pub(crate) fn open_runs(
    io: &dyn Io,
    dir: &Path,
    keyspaces: &[(&Keyspace, KeyOrder)],
    cache: &Arc<PageCache>,
    options: &Options,
) -> Result<Vec<OpenedRuns>> {
    let mut named: Vec<(&RunRecord, &KeyOrder, bool)> = Vec::new();
    for (keyspace, order) in keyspaces {
        let of_keys = keyspace.levels.iter().flatten();
        named.extend(of_keys.map(|record| (record, order, false)));
        named.extend(
            keyspace
                .range_runs
                .iter()
                .map(|record| (record, order, true)),
        );
    }
    let threads = Threads {
        count: threads(options, named.len() / RUNS_PER_THREAD),
        name: "forerun-open",
        doing: "opening a store",
    };
    let open = |at: usize| -> Result<(Arc<Run>, Vec<RangeTombstone>)> {
        let (record, order, holds_ranges) = named[at];
        let run = open_run(io, dir, record, order, cache)?;
        let tombstones = if holds_ranges {
            read_range_run(&run)?
        } else {
            Vec::new()
        };
        Ok((run, tombstones))
    };
    let mut opened = make_in_order(named.len(), threads, open)?.into_iter();
    let of_keyspace = |(keyspace, order): &(&Keyspace, KeyOrder)| {
        let levels = keyspace.levels.iter().enumerate();
        let levels = levels.flat_map(|(level, records)| records.iter().map(move |_| level));
        let runs = levels
            .zip(opened.by_ref())
            .map(|(level, (run, _))| (level, run));
        let levels = Levels::with_runs(order.clone(), runs.collect::<Vec<_>>());
        check_levels(dir, keyspace, &levels)?;
        let (mut range_runs, mut tombstones) = (Vec::new(), Vec::new());
        for (run, mut of_run) in opened.by_ref().take(keyspace.range_runs.len()) {
            range_runs.push(run);
            tombstones.append(&mut of_run);
        }
        let tombstones = tombstones.iter().map(RangeTombstone::as_ref);
        Ok(OpenedRuns {
            ranges: levels.needed_of(tombstones),
            levels,
            range_runs,
        })
    };
    keyspaces.iter().map(of_keyspace).collect()
}

/// Checks that the runs of a keyspace are where its levels have them.
fn check_levels(dir: &Path, keyspace: &Keyspace, levels: &Levels) -> Result<()> {
    let corrupt = |reason: String| {
        let path = dir.join(manifest::NAME);
        Err(Error::corrupt_file(&path, 0, reason))
    };
    if let Some((level, a, b)) = levels.overlap() {
        let (a, b) = (a.number(), b.number());
        return corrupt(format!("runs {a} and {b} of level {level} overlap"));
    }
    if levels.records() == keyspace.levels {
        Ok(())
    } else {
        corrupt("runs are not in order".into())
    }
}

/// Opens the run that a record names, without its index and filter, and rejects any other.
pub(crate) fn open_run(
    io: &dyn Io,
    dir: &Path,
    named: &RunRecord,
    order: &KeyOrder,
    cache: &Arc<PageCache>,
) -> Result<Arc<Run>> {
    let path = run::path(dir, named.number);
    let opened = Run::open_without_filter(io, &path, named.number, order.clone(), cache);
    as_named(&path, opened, named)
}

/// The run that was opened at a path, if it is the one that a record names.
pub(crate) fn as_named(path: &Path, opened: Result<Run>, named: &RunRecord) -> Result<Arc<Run>> {
    let run = match opened {
        Err(error) if error.io_kind() == Some(std::io::ErrorKind::NotFound) => {
            return Err(Error::corrupt_file(path, 0, "it is missing"));
        }
        opened => opened?,
    };
    if record(&run) == *named {
        Ok(Arc::new(run))
    } else {
        let reason = "it is not the run that the manifest names";
        Err(Error::corrupt_file(path, 0, reason))
    }
}

/// How many threads open runs, or wait for them to be synced, if there is work for this many.
pub(crate) fn threads(options: &Options, worthwhile: usize) -> usize {
    // The same calls in the same order each time.
    if options.background == Background::Caller || SIMULATED {
        return 1;
    }
    // Each needs the file that it reads, and may hold another one open until it closes it.
    let max_open = options
        .max_open_files
        .unwrap_or_else(open_files::default_limit);
    worthwhile.min(max_open / 2).clamp(1, THREADS_MAX)
}

/// Calls `make`, which opens files, for each number below `count`. Returns the results in order.
///
/// # Errors
/// Those of [`in_order`].
pub(crate) fn make_in_order<T: Send>(
    count: usize,
    mut threads: Threads,
    make: impl Fn(usize) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let mut made = Vec::new();
    loop {
        match in_order(made.len()..count, threads, &make, &mut made) {
            // A file that another thread reads cannot be closed for one. Try again without others.
            Err(error) if threads.count > 1 && is_out_of_files(&error) => threads.count = 1,
            done => return done.map(|()| made),
        }
    }
}

fn is_out_of_files(error: &Error) -> bool {
    matches!(error, Error::Io { cause, .. } if open_files::is_out_of_files(cause))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_runs_and_few_descriptors_mean_few_threads() {
        let threads_of = |max_open_files, runs| {
            let options = Options::default().max_open_files(max_open_files);
            threads(&options, runs / RUNS_PER_THREAD)
        };
        if SIMULATED {
            return;
        }
        assert_eq!(threads_of(256, 3), 1);
        assert_eq!(threads_of(256, 10_000), THREADS_MAX);
        assert_eq!(threads_of(6, 10_000), 3);
        assert_eq!(threads_of(1, 10_000), 1);
        let caller = Options::default().background(Background::Caller);
        assert_eq!(threads(&caller, 5_000), 1);
    }
}
