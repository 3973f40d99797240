//! A run whose pages are written before its versions get their sequence number.
//!
//! ```text
//!   finish_later   │ header │ pages … │ root │ filter │ index │                        synced; not a run yet: it has no footer
//!   finish(@7)     │ header │ pages … │ root │ filter │ index │ meta: all @7 │ footer │ synced; small, whatever the run's size
//! ```
//!
//! An ingestion takes its number last, and the run itself stores it. So every program that opens,
//! copies or repairs the run knows how old its versions are.

use std::path::PathBuf;

use super::codec::Compressor;
use super::meta::{Footer, RunMeta};
use super::run_output::RunOutput;
use super::stored::PageLocation;
use crate::io::{Io, OpenMode};
use crate::{Error, Result};

/// The sequence number stored with an ingestion's versions. The real one comes later.
pub(crate) const INGESTED_SEQUENCE: u64 = 1;

/// The missing part of a run's file: its metadata, after the index.
#[derive(Debug)]
pub(super) struct PendingMeta {
    pub(super) meta: RunMeta,
    pub(super) root: PageLocation,
    pub(super) filter_offset: u64,
    pub(super) index_offset: u64,
}

impl PendingMeta {
    /// Writes the end of the file, and makes it durable.
    pub(super) fn describe(self, out: &mut RunOutput) -> Result<RunMeta> {
        let mut meta = self.meta;
        let meta_offset = out.offset();
        out.plain(&meta.encode())?;
        let footer = Footer {
            version: meta.version(),
            pages: meta.pages(),
            root: self.root,
            filter_offset: self.filter_offset,
            index_offset: self.index_offset,
            meta_offset,
            salt: out.salt,
        };
        let (bytes, checksum) = footer.encode(out.offset());
        out.buffer.extend_from_slice(&bytes);
        out.write()?;
        out.sync()?;
        meta.file_bytes = out.offset();
        meta.checksum = checksum;
        Ok(meta)
    }
}

/// A run's file that lacks only its metadata, which contains the sequence number. The file is not
/// kept open.
#[derive(Debug)]
pub(crate) struct PendingRun {
    path: PathBuf,
    /// The offset at which the metadata is written.
    offset: u64,
    salt: u64,
    rest: PendingMeta,
}

impl PendingRun {
    /// Closes a file to which everything known has been written.
    pub(super) fn new(out: RunOutput, rest: PendingMeta) -> PendingRun {
        PendingRun {
            offset: out.offset(),
            salt: out.salt,
            path: out.path,
            rest,
        }
    }

    /// Bytes written so far.
    pub(crate) fn written_bytes(&self) -> u64 {
        self.offset
    }

    /// Gives all versions their sequence number, writes the metadata, and makes the file durable.
    ///
    /// # Errors
    /// [`Error::Io`]; then the file is still not a run.
    pub(crate) fn finish(mut self, io: &dyn Io, sequence: u64) -> Result<RunMeta> {
        let meta = &mut self.rest.meta;
        meta.ingested_sequence = sequence;
        (meta.smallest_sequence, meta.largest_sequence) = (sequence, sequence);
        let opened = io.open(&self.path, OpenMode::ReadWrite);
        let file = opened.map_err(|error| Error::io("open", &self.path, error))?;
        let mut out = RunOutput {
            file,
            path: self.path,
            salt: self.salt,
            compressor: Compressor::None,
            buffer: Vec::new(),
            written_bytes: self.offset,
            last_page: self.rest.root,
        };
        self.rest.describe(&mut out)
    }
}
