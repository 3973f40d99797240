//! A copy of a store as of one moment, which is a store of its own.
//!
//! ```text
//!   run-000007.run ──link──> run-000007.run       runs do not change: a second name is a copy
//!   wal-000003.log ──copy──> wal-000003.log       the log up to its end of that moment
//!                            CLOSED               where that is, so that it must all be there
//!                            MANIFEST
//!              sync the directory
//!                            FORMAT               from here on it is a store
//! ```
//!
//! Without `FORMAT` a directory is no store and is refused, so a checkpoint that was cut short is never opened.

use std::io::ErrorKind;
use std::path::Path;

use crate::io::{Io, OpenMode, copy_bytes, link_or_copy, read_all};
use crate::store_dir::{self, write_whole};
use crate::tree::manifest::Manifest;
use crate::wal::closed::{self, Closed};
use crate::wal::segment;
use crate::{Error, Result, run};

/// The log as of one moment, from the first segment that the manifest needs.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogEnd {
    /// Numbers of the segments, ascending, and up to where each is copied: the end of a record.
    pub(crate) segments: Vec<(u64, u64)>,
    /// Sequence number of the last operation up to there.
    pub(crate) last_sequence: u64,
}

/// Copies a store to a directory that is not there yet, or empty. Files that this names must stay as they are until it
/// is done, but for the log's growing.
///
/// # Errors
/// [`Error::AlreadyExists`]: there is something. [`Error::Io`]: what was written is removed as far as that succeeds;
/// what is left is no store.
pub(crate) fn checkpoint(
    io: &dyn Io,
    dir: &Path,
    into: &Path,
    manifest: &Manifest,
    log: &LogEnd,
) -> Result<()> {
    match io.create_dir(into) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let names = io
                .list(into)
                .map_err(|error| Error::io("list", into, error))?;
            if !names.is_empty() {
                return Err(Error::AlreadyExists {
                    path: into.to_owned(),
                });
            }
        }
        created => created.map_err(|error| Error::io("create", into, error))?,
    }
    let copied = fill(io, dir, into, manifest, log);
    if copied.is_err() {
        // FORMAT first: without it the rest is no store.
        let _ = io.remove(&into.join(store_dir::FORMAT));
        for name in io.list(into).unwrap_or_default() {
            let _ = io.remove(&into.join(name));
        }
    }
    copied
}

fn fill(io: &dyn Io, dir: &Path, into: &Path, manifest: &Manifest, log: &LogEnd) -> Result<()> {
    for run in manifest.runs() {
        let (from, to) = (run::path(dir, run.number), run::path(into, run.number));
        link_or_copy(io, &from, &to).map_err(|error| Error::io("link", &from, error))?;
    }
    for (number, len) in &log.segments {
        let (from, to) = (segment::path(dir, *number), segment::path(into, *number));
        copy_start(io, &from, &to, *len)?;
    }
    if let Some((segment, len_bytes)) = log.segments.last().copied() {
        let closed = Closed {
            segment,
            len_bytes,
            last_sequence: log.last_sequence,
        };
        write_whole(io, into, closed::NAME, &closed.encode())?;
    }
    manifest.write(io, into)?;
    // All names before the one that makes it a store.
    io.sync_dir(into)
        .map_err(|error| Error::io("sync", into, error))?;
    let format = dir.join(store_dir::FORMAT);
    let bytes = io
        .open(&format, OpenMode::Read)
        .and_then(|file| read_all(&*file))
        .map_err(|error| Error::io("read", &format, error))?;
    write_whole(io, into, store_dir::FORMAT, &bytes)?;
    let parent = store_dir::parent(into);
    io.sync_dir(parent)
        .map_err(|error| Error::io("sync", parent, error))
}

/// Copies the first bytes of a file, durably.
fn copy_start(io: &dyn Io, from: &Path, to: &Path, len: u64) -> Result<()> {
    let source = io
        .open(from, OpenMode::Read)
        .map_err(|error| Error::io("open", from, error))?;
    let copy = io
        .open(to, OpenMode::CreateEmpty)
        .map_err(|error| Error::io("create", to, error))?;
    copy_bytes(&*source, &*copy, len).map_err(|error| Error::io("copy", from, error))?;
    copy.sync().map_err(|error| Error::io("sync", to, error))
}
