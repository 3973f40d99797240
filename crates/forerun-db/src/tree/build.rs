//! Writes versions to new runs.
//!
//! ```text
//!   versions ──> retain ──> RunWriter ──> run-000017.run │ run-000018.run │ …   cut where a run has its bytes,
//!                │ dropped    │ limiter                                       and never inside a key
//! ```
//!
//! The returned runs are durable, contents and names. On an error, when it is stopped, and when a
//! comparator panics, it removes what it has written.

use forerun_core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::cache::PageCache;
use crate::comparator::KeyOrder;
use crate::io::Io;
use crate::run::{self, Run, RunOptions, RunWriter};
use crate::tree::limiter::{self, IoClass, RateLimiter};
use crate::tree::part::Part;
use crate::tree::retain::Retain;
use crate::versions::VersionCursor;
use crate::{Error, Result};

/// Bytes between two checks of the limiter and the stop flag.
pub(crate) const PIECE_BYTES: u64 = 128 << 10;

/// Where and how to write runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Build<'a> {
    pub(crate) io: &'a dyn Io,
    pub(crate) dir: &'a Path,
    pub(crate) order: &'a KeyOrder,
    /// The name of the key order.
    pub(crate) comparator: &'a str,
    /// The keyspace's number and name.
    pub(crate) keyspace: (u32, &'a str),
    pub(crate) cache: &'a Arc<PageCache>,
    pub(crate) options: RunOptions,
    /// Size at which the next run begins; `u64::MAX` for a single run.
    pub(crate) run_bytes: u64,
    pub(crate) numbers: &'a RunNumbers,
    pub(crate) limiter: &'a RateLimiter,
    /// What the limiter takes it for.
    pub(crate) class: IoClass,
    /// Set when the store closes.
    pub(crate) stop: &'a Arc<AtomicBool>,
}

/// Numbers for new runs. Each is used once.
#[derive(Debug)]
pub(crate) struct RunNumbers(AtomicU64);

impl RunNumbers {
    pub(crate) fn new(next: u64) -> RunNumbers {
        RunNumbers(AtomicU64::new(next))
    }

    /// Takes the next number.
    pub(crate) fn take(&self) -> u64 {
        // Relaxed: the numbers only have to differ.
        self.0.fetch_add(1, Ordering::Relaxed)
    }

    /// A number above all that were taken by work the caller has seen.
    pub(crate) fn next(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Files of runs that are being written, which no manifest names yet. They are removed when this is
/// dropped before the runs are open.
pub(crate) struct NewFiles<'a> {
    io: &'a dyn Io,
    /// Number and path of each file, listed before it is created.
    pub(crate) files: Vec<(u64, PathBuf)>,
}

impl<'a> NewFiles<'a> {
    pub(crate) fn new(build: &Build<'a>) -> NewFiles<'a> {
        NewFiles {
            io: build.io,
            files: Vec::new(),
        }
    }

    /// Takes over other files.
    pub(crate) fn add(&mut self, mut others: NewFiles<'_>) {
        self.files.append(&mut others.files);
    }
}

impl Drop for NewFiles<'_> {
    fn drop(&mut self) {
        for (_, path) in &self.files {
            // If this fails, the next opening removes the file, because no manifest names it.
            let _ = self.io.remove(path);
        }
    }
}

/// Writes the versions worth keeping to new runs, and opens them. `below` returns whether an older
/// version of a key may exist below; see [`Retain::keeps`]. If nothing is worth keeping, writes no
/// run.
///
/// # Errors
/// Errors of reading `versions` or of writing; [`Error::Closed`] if it is stopped. Nothing written
/// is left.
pub(crate) fn write_runs(
    versions: &mut dyn VersionCursor,
    retain: &mut Retain,
    below: impl FnMut(&[u8]) -> bool,
    build: &Build<'_>,
) -> Result<Vec<Arc<Run>>> {
    let check = || limiter::check(build.stop);
    let written = write_part(&Part::default(), versions, retain, below, check, build)?;
    open_written(written, build)
}

/// Makes the names of new files durable and opens them.
pub(crate) fn open_written(mut written: NewFiles<'_>, build: &Build<'_>) -> Result<Vec<Arc<Run>>> {
    if written.files.is_empty() {
        return Ok(Vec::new());
    }
    let synced = build.io.sync_dir(build.dir);
    synced.map_err(|error| Error::io("sync", build.dir, error))?;
    let open = |(number, path): &(u64, PathBuf)| {
        let order = build.order.clone();
        Run::open(build.io, path, *number, order, build.cache).map(Arc::new)
    };
    let runs = written.files.iter().map(open).collect::<Result<_>>()?;
    written.files.clear();
    Ok(runs)
}

/// [`write_runs`] for a part, and without opening the runs. Asks `check` often whether to go on.
///
/// # Errors
/// As [`write_runs`], and those of `check`.
pub(crate) fn write_part<'a>(
    part: &Part,
    versions: &mut dyn VersionCursor,
    retain: &mut Retain,
    mut below: impl FnMut(&[u8]) -> bool,
    check: impl Fn() -> Result<()>,
    build: &Build<'a>,
) -> Result<NewFiles<'a>> {
    let mut written = NewFiles::new(build);
    let mut writer: Option<RunWriter> = None;
    let mut paid_bytes = 0;
    // Of the runs before this one, and the size at which this one ends.
    let (mut ended_bytes, mut end_bytes) = (0, build.run_bytes);
    check()?;
    part.keys.seek_first(versions)?;
    while let Some(version) = versions.at() {
        if part.keys.ends_before(build.order, version.key) {
            break;
        }
        // Checked at every version, since dropped versions do not reach the check below.
        check()?;
        let is_full = |writer: &mut RunWriter| {
            let bytes = writer.written_bytes();
            if bytes < end_bytes || retain.is_of_last_key(version.key) {
                return false;
            }
            if end_bytes == build.run_bytes {
                let (run_bytes, written_bytes) = (build.run_bytes, ended_bytes + bytes);
                let extended =
                    part.extended_bytes(build.order, version.key, run_bytes, written_bytes);
                end_bytes = extended.unwrap_or(run_bytes);
            }
            bytes >= end_bytes
        };
        if let Some(full) = writer.take_if(is_full) {
            ended_bytes += full.written_bytes();
            finish(full, retain)?;
            (paid_bytes, end_bytes) = (0, build.run_bytes);
        }
        if retain.keeps(&version, &mut below) {
            let writer = match &mut writer {
                Some(writer) => writer,
                None => writer.insert(begin(build, &mut written.files)?),
            };
            writer.add(version)?;
            let due_bytes = writer.written_bytes() - paid_bytes;
            if due_bytes >= PIECE_BYTES {
                paid_bytes += due_bytes;
                check()?;
                build.limiter.take_while(due_bytes, build.class, &check)?;
            }
        }
        versions.next()?;
    }
    if let Some(writer) = writer {
        finish(writer, retain)?;
    }
    Ok(written)
}

fn finish(mut writer: RunWriter, retain: &Retain) -> Result<()> {
    writer.note_ranges_applied(retain.ranges_applied());
    writer.finish().map(drop)
}

/// Begins a run. `written` lists it before it is created.
pub(crate) fn begin(build: &Build<'_>, written: &mut Vec<(u64, PathBuf)>) -> Result<RunWriter> {
    let number = build.numbers.take();
    let path = run::path(build.dir, number);
    written.push((number, path.clone()));
    let mut writer = RunWriter::create(
        build.io,
        &path,
        build.order,
        build.comparator,
        build.options,
    )?;
    let (id, name) = build.keyspace;
    writer.note_keyspace(id, name);
    writer.limit_dictionary(build.cache, build.stop);
    Ok(writer)
}
