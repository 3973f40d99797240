//! Buffers that report a lack of memory, and one that starts on a cache line.

use super::page::LINE_BYTES;
use crate::{Error, Result};

/// Zeros in memory that may be lacking.
pub(super) fn zeros(len: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    resize(&mut bytes, len)?;
    Ok(bytes)
}

/// Resizes a buffer, for which memory may be lacking.
pub(super) fn resize(bytes: &mut Vec<u8>, len: usize) -> Result<()> {
    let more = len.saturating_sub(bytes.len());
    let reserved = bytes.try_reserve(more);
    reserved.map_err(|error| Error::OutOfMemory {
        needed_bytes: more,
        reason: error.to_string(),
    })?;
    bytes.resize(len, 0);
    Ok(())
}

/// Bytes that start on a cache line.
#[derive(Debug)]
pub(super) struct LineAligned {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl LineAligned {
    pub(super) fn zeros(len: usize) -> Result<Self> {
        let bytes = zeros(len + LINE_BYTES - 1)?;
        // The vector never grows, so its bytes do not move.
        let start = bytes.as_ptr().align_offset(LINE_BYTES).min(LINE_BYTES - 1);
        Ok(LineAligned { bytes, start, len })
    }

    #[inline(always)]
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}
