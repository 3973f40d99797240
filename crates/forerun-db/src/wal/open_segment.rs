//! A segment of the log that is open for writing.

use std::path::PathBuf;
use std::sync::Arc;

use crate::io::write_out::WriteOut;
use crate::io::{IoFile, read_pieces, write_all_at};
use crate::{Error, Result};

/// Why a change of the log failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Nothing has changed. The next attempt may succeed.
    NotWritten(Error),
    /// The contents of the log are unknown, and the log accepts no more writes.
    Unknown(Error),
}

/// An open segment of the log.
#[derive(Debug)]
pub(crate) struct OpenSegment {
    pub(crate) number: u64,
    pub(crate) path: PathBuf,
    pub(crate) file: Arc<dyn IoFile>,
    pub(crate) salt: u32,
    /// Where the next record goes.
    pub(crate) len: u64,
    /// The length known to be on stable storage.
    pub(crate) synced_len: u64,
    /// What the system was told to write out.
    pub(crate) write_out: WriteOut,
    /// Whether its name is known to be on stable storage.
    pub(crate) is_named: bool,
    /// Whether an earlier process wrote it. Then a sync proves nothing until the bytes are written
    /// again: if a sync failed in that process, the system may have dropped the record that they
    /// are not on the disk yet.
    pub(crate) is_recovered: bool,
}

impl OpenSegment {
    /// Whether all of it is on stable storage.
    pub(crate) fn is_durable(&self) -> bool {
        self.synced_len == self.len && self.is_named
    }

    /// Overwrites the segment with its own bytes, so an interrupted write leaves it as it is.
    pub(crate) fn rewrite(&self) -> Result<(), Failure> {
        let not_written = |op| move |error| Failure::NotWritten(Error::io(op, &self.path, error));
        read_pieces(
            |buffer, offset| self.file.read_at(buffer, offset),
            self.len,
            not_written("read"),
            |bytes, offset| write_all_at(&*self.file, bytes, offset).map_err(not_written("write")),
        )
    }

    /// Makes its bytes durable. After a failure, the system may no longer know which bytes were not
    /// written, so another sync would prove nothing.
    pub(crate) fn sync(&self) -> Result<(), Failure> {
        let synced = self.file.sync();
        synced.map_err(|error| Failure::Unknown(Error::io("sync", &self.path, error)))
    }
}
