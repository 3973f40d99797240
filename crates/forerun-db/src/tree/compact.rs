//! Runs a compaction: reads runs, writes runs, and returns the edit that swaps them. A large one is
//! done in parts, by several threads.

use std::sync::Arc;

use forerun_core::sync::SIMULATED;
use forerun_core::sync::atomic::{AtomicBool, Ordering};

use crate::run::cursor::RunCursor;
use crate::run::level_cursor::LevelCursor;
use crate::run::{Codec, Run};
use crate::tree::build::{Build, NewFiles, open_written, write_part};
use crate::tree::levels::Edit;
use crate::tree::limiter;
use crate::tree::merge::Merge;
use crate::tree::parallel::{Threads, in_order};
use crate::tree::pick::{Compaction, OlderKeys};
use crate::tree::retain::Retain;
use crate::tree::subcompactions;
use crate::versions::VersionCursor;
use crate::{Compression, Error, Result, panics};

/// What a thread was doing when a comparator panicked.
const COMPACTING: &str = "compacting";

/// The result of a compaction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Compacted {
    /// The edit to install.
    pub(crate) edit: Edit,
    /// Bytes read from files and written to them.
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
    /// Dropped versions, and the deletions among them.
    pub(crate) dropped: u64,
    pub(crate) dropped_deletions: u64,
}

impl Compacted {
    /// Whether a run has only changed its level. Nothing was read.
    pub(crate) fn is_move(&self) -> bool {
        self.read_bytes == 0
    }
}

/// Merges the runs of a compaction, in at most so many parts at a time. `older` is of the levels
/// from which it was picked, and `retain` knows the snapshots that were alive at one moment after
/// that.
///
/// # Errors
/// As [`write_part`]: nothing written is left, and the input runs are unchanged.
/// [`Error::Panicked`](crate::Error::Panicked): a comparator did.
pub(crate) fn compact(
    compaction: &Compaction,
    older: &OlderKeys,
    retain: &Retain,
    build: &Build<'_>,
    parts_max: usize,
) -> Result<Compacted> {
    // Between zstd and the others, a run that could just move is written again.
    let is_zstd = |run: &Arc<Run>| run.codec() == Codec::Zstd;
    let wants_zstd = matches!(build.options.compression, Compression::Zstd(_));
    let is_as_wanted = compaction
        .upper
        .iter()
        .all(|run| is_zstd(run) == wants_zstd);
    if compaction.is_move(older) && is_as_wanted {
        let added = compaction
            .upper
            .iter()
            .map(|run| (compaction.into, Arc::clone(run)));
        return Ok(Compacted {
            edit: Edit {
                added: added.collect(),
                removed: compaction.numbers().collect(),
                ..Edit::default()
            },
            ..Compacted::default()
        });
    }
    let parts = subcompactions::split(compaction, parts_max, build.run_bytes);
    // Set once a part has failed: all that the others write would be thrown away.
    let has_failed = AtomicBool::new(false);
    // Relaxed, both: no other data depends on the flag.
    let check = || {
        if has_failed.load(Ordering::Relaxed) {
            Err(Error::Closed)
        } else {
            limiter::check(build.stop)
        }
    };
    let write = |part: usize| {
        let written = panics::catch(COMPACTING, || {
            let mut merge = Merge::new(build.order.clone(), cursors(compaction));
            let mut retain = retain.clone();
            let below = |key: &[u8]| older.may_hold(key);
            let written = write_part(&parts[part], &mut merge, &mut retain, below, check, build)?;
            Ok((written, retain.dropped()))
        });
        match written {
            // It only gave up. The error is that of the part which has failed.
            Err(error) if has_failed.swap(true, Ordering::Relaxed) && is_closed(&error) => Ok(None),
            written => written.map(Some),
        }
    };
    let threads = Threads {
        // A simulation does the same calls in the same order each time.
        count: if SIMULATED { 1 } else { parts.len() },
        name: "forerun-part",
        doing: COMPACTING,
    };
    let mut done = Vec::new();
    in_order(0..parts.len(), threads, write, &mut done)?;
    let mut written = NewFiles::new(build);
    let (mut dropped, mut dropped_deletions) = (0, 0);
    for (files, (of_all, of_deletions)) in done.into_iter().flatten() {
        written.add(files);
        dropped += of_all;
        dropped_deletions += of_deletions;
    }
    let runs = open_written(written, build)?;
    Ok(Compacted {
        read_bytes: compaction.bytes(),
        written_bytes: runs.iter().map(|run| run.meta().file_bytes).sum(),
        edit: Edit {
            added: runs.into_iter().map(|run| (compaction.into, run)).collect(),
            removed: compaction.numbers().collect(),
            ..Edit::default()
        },
        dropped,
        dropped_deletions,
    })
}

fn is_closed(error: &Error) -> bool {
    matches!(error, Error::Closed)
}

fn cursors(compaction: &Compaction) -> Vec<Box<dyn VersionCursor + '_>> {
    let mut cursors = Vec::new();
    match compaction.from {
        0 => cursors.extend(compaction.upper.iter().map(|run| run_cursor(run))),
        _ => cursors.push(level_cursor(&compaction.upper)),
    }
    if !compaction.lower.is_empty() {
        cursors.push(level_cursor(&compaction.lower));
    }
    cursors
}

fn run_cursor(run: &Run) -> Box<dyn VersionCursor + '_> {
    Box::new(RunCursor::past_cache(run))
}

fn level_cursor(runs: &[Arc<Run>]) -> Box<dyn VersionCursor + '_> {
    Box::new(LevelCursor::past_cache(runs))
}
