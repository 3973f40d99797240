//! The output file of a run writer: encodes, buffers and writes in large pieces.

use std::path::PathBuf;

use super::codec::Compressor;
use super::stored::{PageLocation, store};
use crate::io::write_out::{WriteOut, start_write_out};
use crate::io::{IoFile, write_all_at};
use crate::{Error, Result};

/// Size of the write buffer.
const BUFFER_BYTES: usize = 256 << 10;

/// The output file.
pub(super) struct RunOutput {
    pub(super) file: Box<dyn IoFile>,
    pub(super) path: PathBuf,
    pub(super) salt: u64,
    /// Compresses pages.
    pub(super) compressor: Compressor,
    /// Bytes not written yet.
    pub(super) buffer: Vec<u8>,
    /// Offset of the buffer's first byte.
    pub(super) written_bytes: u64,
    /// What of it the system was told to write out.
    pub(super) write_out: WriteOut,
    /// Where the last page was stored.
    pub(super) last_page: PageLocation,
}

impl RunOutput {
    /// The offset of the next byte.
    pub(super) fn offset(&self) -> u64 {
        self.written_bytes + self.buffer.len() as u64
    }

    /// Stores a page.
    pub(super) fn page(&mut self, page: &[u8]) -> Result<PageLocation> {
        let offset = self.offset();
        let stored_len = store(
            self.salt,
            offset,
            page,
            &mut self.compressor,
            &mut self.buffer,
        );
        self.last_page = self.stored(page, offset, stored_len)?;
        debug_assert!(self.last_page.is_sound());
        Ok(self.last_page)
    }

    /// Appends bytes with a checksum, not compressed.
    pub(super) fn plain(&mut self, bytes: &[u8]) -> Result<PageLocation> {
        let offset = self.offset();
        let none = &mut Compressor::None;
        let stored_len = store(self.salt, offset, bytes, none, &mut self.buffer);
        self.stored(bytes, offset, stored_len)
    }

    /// The location of bytes in the buffer, which is written if it is full.
    fn stored(&mut self, bytes: &[u8], offset: u64, stored_len: usize) -> Result<PageLocation> {
        if self.buffer.len() >= BUFFER_BYTES {
            self.write()?;
        }
        Ok(PageLocation {
            offset,
            stored_len: stored_len as u32,
            raw_len: bytes.len() as u32,
        })
    }

    /// Syncs the file.
    pub(super) fn sync(&self) -> Result<()> {
        let synced = self.file.sync();
        synced.map_err(|error| Error::io("sync", &self.path, error))
    }

    /// Writes the buffer.
    pub(super) fn write(&mut self) -> Result<()> {
        write_all_at(&*self.file, &self.buffer, self.written_bytes)
            .map_err(|error| Error::io("write", &self.path, error))?;
        self.written_bytes += self.buffer.len() as u64;
        if let Some(due) = self.write_out.take_due(0, self.written_bytes) {
            start_write_out(&*self.file, due);
        }
        self.buffer.clear();
        // Frees what a single large value has allocated.
        self.buffer.shrink_to(2 * BUFFER_BYTES);
        Ok(())
    }
}
