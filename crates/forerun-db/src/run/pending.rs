//! A run whose versions get their sequence number when its pages are written already.
//!
//! ```text
//!   finish_later   │ header │ pages … │ root │ filter │                        synced; no run yet: nothing to begin at
//!   finish(@7)     │ header │ pages … │ root │ filter │ meta: all @7 │ footer │ synced; small, whatever the run's size
//! ```
//!
//! So an ingestion takes its number last, and the run tells it itself: a run that is opened, copied or found by a repair
//! needs nobody to know how old its versions are.

use std::path::PathBuf;

use super::Compression;
use super::meta::{Footer, RunMeta};
use super::run_output::RunOutput;
use super::stored::PageLocation;
use crate::io::{Io, OpenMode};
use crate::planted::{self, Defect};
use crate::{Error, Result};

/// The sequence number that is written beside the versions of an ingestion, whose own comes later.
pub(crate) const INGESTED_SEQUENCE: u64 = 1;

/// What a run's file still needs: its description, behind the filter.
#[derive(Debug)]
pub(super) struct Undescribed {
    pub(super) meta: RunMeta,
    pub(super) root: PageLocation,
    pub(super) filter_offset: u64,
}

impl Undescribed {
    /// Writes the end of the file, and makes all of it durable.
    pub(super) fn describe(self, out: &mut RunOutput) -> Result<RunMeta> {
        let mut meta = self.meta;
        let meta_offset = out.offset();
        out.stored(&meta.encode(), Compression::None)?;
        let footer = Footer {
            pages: meta.pages(),
            root: self.root,
            filter_offset: self.filter_offset,
            meta_offset,
            salt: out.salt,
        };
        let (bytes, checksum) = footer.encode(out.offset());
        out.buffer.extend_from_slice(&bytes);
        out.write()?;
        if !planted::is(Defect::RunUnsynced) {
            out.sync()?;
        }
        meta.file_bytes = out.offset();
        meta.checksum = checksum;
        Ok(meta)
    }
}

/// A file that has all of a run but its description, which names its sequence number. No file is held open for it.
#[derive(Debug)]
pub(crate) struct PendingRun {
    path: PathBuf,
    /// Where the description goes.
    offset: u64,
    salt: u64,
    rest: Undescribed,
}

impl PendingRun {
    /// Lets go of a file to which all was written that there is.
    pub(super) fn new(out: RunOutput, rest: Undescribed) -> PendingRun {
        PendingRun {
            offset: out.offset(),
            salt: out.salt,
            path: out.path,
            rest,
        }
    }

    /// Gives all versions a sequence number, describes the run, and makes that durable.
    ///
    /// # Errors
    /// [`Error::Io`]; it is still no run then.
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
            compression: Compression::None,
            buffer: Vec::new(),
            written_bytes: self.offset,
            last_page: self.rest.root,
        };
        self.rest.describe(&mut out)
    }
}
