//! The run files of a directory of backups, opened and read in full.

use std::io::ErrorKind;
use std::path::Path;

use forerun_core::size::counted;

use crate::io::{Io, IoFile, OpenMode};
use crate::tree::file_copy::{self, Meter};
use crate::{Error, Result};

/// Reads a file that must have `len` bytes, and returns its XXH3 hash.
///
/// # Errors
/// The errors of [`open`], and that of a failed call.
pub(super) fn checksum(io: &dyn Io, path: &Path, len: u64, meter: &mut Meter<'_>) -> Result<u64> {
    meter.check()?;
    let file = open(io, path, len)?;
    file_copy::hash((&*file, path), len, meter)
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
