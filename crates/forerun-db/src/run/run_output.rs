//! A run's file, at its end: bytes are stored, gathered, and written in large pieces.

use std::path::PathBuf;

use super::Compression;
use super::stored::{PageLocation, store};
use crate::io::{IoFile, write_all_at};
use crate::{Error, Result};

/// Bytes that are gathered before they are written.
const BUFFER_BYTES: usize = 256 << 10;

/// The file, at its end.
pub(super) struct RunOutput {
    pub(super) file: Box<dyn IoFile>,
    pub(super) path: PathBuf,
    pub(super) salt: u64,
    pub(super) compression: Compression,
    /// What is not written yet.
    pub(super) buffer: Vec<u8>,
    /// Offset of the buffer's first byte.
    pub(super) written_bytes: u64,
    /// Where the last page was stored.
    pub(super) last_page: PageLocation,
}

impl RunOutput {
    /// Where the next byte goes.
    pub(super) fn offset(&self) -> u64 {
        self.written_bytes + self.buffer.len() as u64
    }

    /// Stores a page.
    pub(super) fn page(&mut self, page: &[u8]) -> Result<PageLocation> {
        self.last_page = self.stored(page, self.compression)?;
        debug_assert!(self.last_page.is_sound());
        Ok(self.last_page)
    }

    /// Adds bytes under a checksum.
    pub(super) fn stored(
        &mut self,
        bytes: &[u8],
        compression: Compression,
    ) -> Result<PageLocation> {
        let offset = self.offset();
        let stored_len = store(self.salt, offset, bytes, compression, &mut self.buffer);
        if self.buffer.len() >= BUFFER_BYTES {
            self.write()?;
        }
        Ok(PageLocation {
            offset,
            stored_len: stored_len as u32,
            raw_len: bytes.len() as u32,
        })
    }

    /// Makes durable what was written.
    pub(super) fn sync(&self) -> Result<()> {
        let synced = self.file.sync();
        synced.map_err(|error| Error::io("sync", &self.path, error))
    }

    /// Writes what is gathered.
    pub(super) fn write(&mut self) -> Result<()> {
        write_all_at(&*self.file, &self.buffer, self.written_bytes)
            .map_err(|error| Error::io("write", &self.path, error))?;
        self.written_bytes += self.buffer.len() as u64;
        self.buffer.clear();
        // What a single large value has taken is given back.
        self.buffer.shrink_to(2 * BUFFER_BYTES);
        Ok(())
    }
}
