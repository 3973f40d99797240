//! A run whose pages are written before its versions get their sequence number.
//!
//! ```text
//!   finish_later   │ header │ pages … │ root │ filter │ index │ zeros                 │ synced; not a run yet: it has no footer
//!   finish(@7)     │ header │ pages … │ root │ filter │ index │ meta: all @7 │ footer │ synced; small, whatever the run's size
//! ```
//!
//! An ingestion takes its number last, and the run itself stores it. So every program that opens,
//! copies or repairs the run knows how old its versions are. The file has its length from the
//! beginning: while writes wait, the sync at the end then makes the file system write a block or
//! two of data, and nothing about the file.

use std::path::PathBuf;

use super::codec::Compressor;
use super::meta::{FOOTER_BYTES, Footer, RunMeta};
use super::run_output::RunOutput;
use super::stored::{PageLocation, TRAILER_BYTES};
use crate::io::write_out::WriteOut;
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
    /// Bytes of the end of the file, whatever the sequence number.
    fn bytes(&self) -> usize {
        self.meta.encode().len() + TRAILER_BYTES + FOOTER_BYTES
    }

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
    /// Writes everything known, and zeros in place of the rest, makes that durable, and closes the
    /// file.
    pub(super) fn new(mut out: RunOutput, rest: PendingMeta) -> Result<PendingRun> {
        let offset = out.offset();
        out.buffer.resize(out.buffer.len() + rest.bytes(), 0);
        out.write()?;
        out.sync()?;
        Ok(PendingRun {
            offset,
            salt: out.salt,
            path: out.path,
            rest,
        })
    }

    /// Bytes written so far.
    pub(crate) fn written_bytes(&self) -> u64 {
        self.offset
    }

    /// Gives all versions their sequence number, writes the metadata, and makes the file durable.
    ///
    /// # Errors
    /// [`Error::Io`]; then the file may or may not be a run.
    pub(crate) fn finish(&self, io: &dyn Io, sequence: u64) -> Result<RunMeta> {
        let rest = PendingMeta {
            meta: RunMeta {
                ingested_sequence: sequence,
                smallest_sequence: sequence,
                largest_sequence: sequence,
                ..self.rest.meta.clone()
            },
            ..self.rest
        };
        let opened = io.open(&self.path, OpenMode::ReadWrite);
        let file = opened.map_err(|error| Error::io("open", &self.path, error))?;
        let mut out = RunOutput {
            file,
            path: self.path.clone(),
            salt: self.salt,
            compressor: Compressor::None,
            buffer: Vec::new(),
            written_bytes: self.offset,
            write_out: WriteOut::after(self.offset),
            last_page: rest.root,
        };
        rest.describe(&mut out)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::comparator::KeyOrder;
    use crate::io::fault::FaultIo;
    use crate::run::file_tests::{PATH, name, numbered, open, version};
    use crate::run::{RunOptions, RunWriter};
    use crate::versions::{SEQUENCE_MAX, Version};

    #[test]
    fn a_run_whose_number_comes_later_has_its_length_before() {
        let (io, order) = (FaultIo::new(), KeyOrder::Bytewise);
        let (path, options) = (Path::new(PATH), RunOptions::default());
        let mut writer = RunWriter::create(&io, path, &order, &name(&order), options).unwrap();
        for entry in &numbered(100, |_| vec![7; 10]) {
            let sequence = INGESTED_SEQUENCE;
            let version = version(entry);
            writer
                .add(Version {
                    sequence,
                    ..version
                })
                .unwrap();
        }
        let pending = writer.finish_later().unwrap();
        let len = || io.read(PATH).unwrap().len();
        let before = len();
        assert!(open(&io, &order).is_err(), "it is no run yet");
        for sequence in [7, SEQUENCE_MAX] {
            let meta = pending.finish(&io, sequence).unwrap();
            assert_eq!((len(), meta.file_bytes), (before, before as u64));
            let run = open(&io, &order).unwrap();
            assert_eq!(run.meta(), &meta);
            assert_eq!(run.sequence(INGESTED_SEQUENCE), sequence);
        }
    }
}
