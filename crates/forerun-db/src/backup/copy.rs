//! Copies of run files into and out of a directory of backups, with a checksum of all their bytes.

use forerun_core::size::counted;
use forerun_core::sync::atomic::AtomicBool;
use std::hash::Hasher;
use std::io::ErrorKind;
use std::path::Path;

use twox_hash::XxHash3_64;

use super::{BackupProgress, Backups};
use crate::io::{Io, IoFile, OpenMode, read_pieces, write_all_at};
use crate::tree::limiter;
use crate::{Error, Result, panics};

/// Work on bytes that reports its progress and can be stopped.
pub(super) struct Meter<'a> {
    backups: &'a Backups,
    /// Whether the store that is backed up is closing.
    closing: Option<&'a AtomicBool>,
    progress: BackupProgress,
}

impl<'a> Meter<'a> {
    /// A meter for work on this many bytes.
    pub(super) fn new(
        backups: &'a Backups,
        closing: Option<&'a AtomicBool>,
        total_bytes: u64,
    ) -> Self {
        Meter {
            backups,
            closing,
            progress: BackupProgress {
                done_bytes: 0,
                total_bytes,
            },
        }
    }

    fn add(&mut self, bytes: usize) -> Result<()> {
        self.progress.done_bytes += bytes as u64;
        if let Some(watch) = &self.backups.watch {
            panics::catch("reporting the progress of a backup", || {
                watch(self.progress);
                Ok(())
            })?;
        }
        self.check()
    }

    /// # Errors
    /// [`Error::Closed`]: the store is closing. [`Error::Interrupted`]. [`Error::Panicked`]: the
    /// user's function panicked.
    fn check(&self) -> Result<()> {
        self.closing.map_or(Ok(()), limiter::check)?;
        match &self.backups.interrupt {
            Some(ask) => {
                if panics::catch("asking whether to stop", || Ok(ask()))? {
                    Err(Error::Interrupted)
                } else {
                    Ok(())
                }
            }
            None => Ok(()),
        }
    }
}

/// Copies the first `len` bytes of a file to another one, durably, and returns their XXH3 hash.
pub(super) fn copy(
    (source, path): (&dyn IoFile, &Path),
    io: &dyn Io,
    to: &Path,
    len: u64,
    meter: &mut Meter<'_>,
) -> Result<u64> {
    meter.check()?;
    let copy = io
        .open(to, OpenMode::CreateEmpty)
        .map_err(|error| Error::io("create", to, error))?;
    let mut hasher = XxHash3_64::with_seed(0);
    let unread = |error| Error::io("read", path, error);
    read_pieces(source, len, unread, |piece, offset| {
        hasher.write(piece);
        write_all_at(&*copy, piece, offset).map_err(|error| Error::io("write", to, error))?;
        meter.add(piece.len())
    })?;
    copy.sync().map_err(|error| Error::io("sync", to, error))?;
    Ok(hasher.finish())
}

/// Reads a file that must have `len` bytes, and returns its XXH3 hash.
///
/// # Errors
/// The errors of [`open`], and that of a failed call.
pub(super) fn checksum(io: &dyn Io, path: &Path, len: u64, meter: &mut Meter<'_>) -> Result<u64> {
    meter.check()?;
    let file = open(io, path, len)?;
    let mut hasher = XxHash3_64::with_seed(0);
    let unread = |error| Error::io("read", path, error);
    read_pieces(&*file, len, unread, |piece, _| {
        hasher.write(piece);
        meter.add(piece.len())
    })?;
    Ok(hasher.finish())
}

/// Opens a file that must have `len` bytes.
///
/// # Errors
/// [`Error::CorruptFile`]: it is missing or has another length.
pub(super) fn open(io: &dyn Io, path: &Path, len: u64) -> Result<Box<dyn IoFile>> {
    let file = match io.open(path, OpenMode::Read) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(Error::corrupt_file(path, 0, "it is missing"));
        }
        opened => opened.map_err(|error| Error::io("open", path, error))?,
    };
    let found = file.len().map_err(|error| Error::io("read", path, error))?;
    if found == len {
        Ok(file)
    } else {
        let reason = format!("it has {} instead of {len}", counted(found, "byte"));
        Err(Error::corrupt_file(path, found.min(len), reason))
    }
}
