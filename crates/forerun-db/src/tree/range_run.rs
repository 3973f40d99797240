//! Stores range deletions in a run of their own: its keys are the starts of the ranges, and its
//! values are the ends.
//!
//! ```text
//!   memtable's ranges ──flush──> run-000018.run     "b" @7 -> "m"     "h" @9 -> "t"     holds: ranges
//!   MANIFEST   … levels: runs of keys … ranges: 18, 25
//! ```
//!
//! Each change rewrites the whole manifest. Stored this way, a hundred thousand ranges take 24
//! bytes of it. All code that copies, verifies or repairs runs also handles these runs. Opening a
//! store reads them. When a flush would make too many such runs, one run replaces them all.

use std::sync::Arc;

use super::build::{Build, NewFiles, begin, open_written};
use crate::ranges::{RangeRef, RangeTombstone};
use crate::run::cursor::RunCursor;
use crate::run::{Contents, Run, RunOptions};
use crate::versions::{Kind, Version, VersionCursor};
use crate::{Error, Result};

/// At this many runs of range deletions, the next one replaces them all.
pub(crate) const RANGE_RUNS_MAX: usize = 8;

/// Writes range deletions to a run of their own and opens it; `None` if there are none.
///
/// # Errors
/// As [`write_runs`](super::build::write_runs).
pub(crate) fn write_range_run(
    mut tombstones: Vec<RangeRef<'_>>,
    build: &Build<'_>,
) -> Result<Option<Arc<Run>>> {
    if tombstones.is_empty() {
        return Ok(None);
    }
    tombstones.sort_unstable_by(|a, b| {
        let by_start = build.order.compare(a.start, b.start);
        by_start.then(b.sequence.cmp(&a.sequence))
    });
    let build = &Build {
        // Keys are never looked up in it.
        options: RunOptions {
            filter_bits_per_key: 0,
            index: false,
            ..build.options
        },
        ..*build
    };
    let mut written = NewFiles::new(build);
    let mut writer = begin(build, &mut written.files)?;
    for tombstone in &tombstones {
        writer.add(Version {
            key: tombstone.start,
            sequence: tombstone.sequence,
            kind: Kind::Value,
            value: tombstone.end,
        })?;
    }
    writer.note_ranges();
    writer.finish()?;
    open_written(written, build).map(|mut runs| runs.pop())
}

/// The range deletions in a run, in the order they were made.
///
/// # Errors
/// [`Error::CorruptFile`], also for a run of keys; [`Error::Io`].
pub(crate) fn read_range_run(run: &Run) -> Result<Vec<RangeTombstone>> {
    if run.meta().holds != Contents::Ranges {
        let reason = "the manifest lists it as a run of range deletions, but it holds keys";
        return Err(Error::corrupt_file(run.path(), 0, reason));
    }
    collect_ranges(&mut RunCursor::past_cache(run))
}

/// The range deletions that these versions represent, in the order they were made.
pub(crate) fn collect_ranges(versions: &mut dyn VersionCursor) -> Result<Vec<RangeTombstone>> {
    let mut tombstones = Vec::new();
    versions.seek_first()?;
    while let Some(version) = versions.at() {
        tombstones.push(RangeTombstone {
            start: version.key.to_vec(),
            end: version.value.to_vec(),
            sequence: version.sequence,
        });
        versions.next()?;
    }
    tombstones.sort_unstable_by_key(|tombstone| tombstone.sequence);
    Ok(tombstones)
}
