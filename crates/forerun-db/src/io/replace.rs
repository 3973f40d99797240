//! Files that are replaced atomically: written under another name, synced, renamed, and the
//! directory synced.

use std::path::Path;

use super::{Io, OpenMode, write_all_at};
use crate::{Error, Result};

/// Why a file was not replaced.
#[derive(Debug)]
pub(crate) enum ReplaceError {
    /// The old file is still there.
    Unchanged(Error),
    /// After a crash, the file may be the old or the new one.
    InDoubt(Error),
}

impl From<ReplaceError> for Error {
    fn from(error: ReplaceError) -> Error {
        match error {
            ReplaceError::Unchanged(error) | ReplaceError::InDoubt(error) => error,
        }
    }
}

/// Creates or replaces a file, atomically and durably.
///
/// # Errors
/// [`ReplaceError::Unchanged`]: what was written is removed, if that is possible.
/// [`ReplaceError::InDoubt`]: the rename or the sync of the directory failed; either file may be
/// there.
pub(crate) fn replace_file(
    io: &dyn Io,
    dir: &Path,
    name: &str,
    bytes: &[u8],
) -> Result<(), ReplaceError> {
    let (new, path) = (dir.join(format!("{name}.new")), dir.join(name));
    write_new(io, &new, bytes).map_err(|error| {
        // If this fails too, the next write truncates the file.
        let _ = io.remove(&new);
        ReplaceError::Unchanged(error)
    })?;
    // A failed rename may still have happened, on a network file system for example.
    let renamed = io.rename(&new, &path);
    renamed.map_err(|error| ReplaceError::InDoubt(Error::io("rename", &new, error)))?;
    let synced = io.sync_dir(dir);
    synced.map_err(|error| ReplaceError::InDoubt(Error::io("sync", dir, error)))
}

/// Writes and syncs a file, but not its name.
fn write_new(io: &dyn Io, path: &Path, bytes: &[u8]) -> Result<()> {
    let file = io
        .open(path, OpenMode::CreateEmpty)
        .map_err(|error| Error::io("create", path, error))?;
    write_all_at(&*file, bytes, 0).map_err(|error| Error::io("write", path, error))?;
    file.sync().map_err(|error| Error::io("sync", path, error))
}
