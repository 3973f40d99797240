//! What a read asks for: exactly the wanted bytes, or the blocks around them.
//!
//! ```text
//!   file      │ block │ block │ block │ block │
//!   wanted        └────────────────┘              an ordinary read asks for just that
//!   blocks    └───────────────────────┘           a direct read, into memory that begins at a block
//! ```
//!
//! A direct read bypasses the system's memory: the device writes into the buffer. So offset, length
//! and memory are multiples of the device's block.

use std::io;
use std::ops::Range;

use forerun_core::size::counted;

/// A multiple of the blocks of devices, which are 512 or 4,096 bytes long.
pub(in crate::io) const BLOCK_BYTES: usize = 4096;

/// A part of a file, where it goes in a buffer, and how much of it has been read.
#[derive(Clone, Debug)]
pub(in crate::io) struct Extent {
    /// Where it begins in the file.
    offset: u64,
    /// Where it goes in the buffer.
    room: Range<usize>,
    /// What the caller wants of that.
    wanted: Range<usize>,
    /// The length of a block; 1 for an ordinary read.
    block_bytes: usize,
    /// Always whole blocks.
    filled: usize,
}

impl Extent {
    /// The wanted bytes, at the start of the buffer.
    pub(in crate::io) fn exact(offset: u64, len: usize) -> Extent {
        Extent {
            offset,
            room: 0..len,
            wanted: 0..len,
            block_bytes: 1,
            filled: 0,
        }
    }

    /// The blocks around the wanted bytes. Makes the buffer long enough; it then must not be
    /// reallocated.
    pub(in crate::io) fn blocks(offset: u64, len: usize, buffer: &mut Vec<u8>) -> Extent {
        let before = (offset % BLOCK_BYTES as u64) as usize;
        let room_bytes = (before + len).next_multiple_of(BLOCK_BYTES);
        if buffer.len() < room_bytes + BLOCK_BYTES {
            buffer.resize(room_bytes + BLOCK_BYTES, 0);
        }
        // Bytes up to the next multiple.
        let at = buffer.as_ptr().addr().wrapping_neg() % BLOCK_BYTES;
        Extent {
            offset: offset - before as u64,
            room: at..at + room_bytes,
            wanted: at + before..at + before + len,
            block_bytes: BLOCK_BYTES,
            filled: 0,
        }
    }

    /// The same from the beginning, into another buffer of the same length.
    #[cfg(any(target_os = "linux", test))]
    pub(super) fn restart(&self, buffer: &mut Vec<u8>) -> Extent {
        let before = self.wanted.start - self.room.start;
        let (offset, len) = (self.offset + before as u64, self.wanted.len());
        if self.block_bytes == 1 {
            Extent::exact(offset, len)
        } else {
            Extent::blocks(offset, len, buffer)
        }
    }

    /// Where the caller's bytes are in the buffer.
    pub(in crate::io) fn wanted(&self) -> Range<usize> {
        self.wanted.clone()
    }

    /// Where the remaining bytes are read from and written to.
    #[inline]
    pub(in crate::io) fn rest<'b>(&self, buffer: &'b mut [u8]) -> (u64, &'b mut [u8]) {
        (
            self.offset + self.filled as u64,
            &mut buffer[self.room.start + self.filled..self.room.end],
        )
    }

    /// How many of the wanted bytes there are after a call that read so many.
    pub(in crate::io) fn wanted_of(&self, got: usize) -> usize {
        let end = self.room.start + self.filled + got;
        end.clamp(self.wanted.start, self.wanted.end) - self.wanted.start
    }

    /// Records the result of a call. Returns whether all wanted bytes have been read.
    pub(super) fn advance(&mut self, result: io::Result<usize>) -> io::Result<bool> {
        let got = match result {
            Ok(got) => got,
            // The kernel may ask for an io_uring read to be retried.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
                ) =>
            {
                return Ok(false);
            }
            Err(error) => return Err(error),
        };
        let missing = self.wanted.len() - self.wanted_of(got);
        let filled = self.room.len().min(self.filled + got);
        if self.room.start + filled >= self.wanted.end {
            self.filled = filled;
            return Ok(true);
        }
        // A direct read ends inside a block only where the file ends.
        let whole = filled / self.block_bytes * self.block_bytes;
        if whole == self.filled {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("the file ends {} too early", counted(missing, "byte")),
            ));
        }
        self.filled = whole;
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_surround_the_wanted_bytes_and_their_memory_begins_at_a_block() {
        let block = BLOCK_BYTES as u64;
        for offset in [0, 1, block - 1, block, 3 * block + 17] {
            for len in [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, 3 * BLOCK_BYTES + 5] {
                let mut buffer = vec![7; len];
                let extent = Extent::blocks(offset, len, &mut buffer);
                let wanted = extent.wanted();
                let at = wanted.start - extent.room.start;
                let (start, rest) = extent.rest(&mut buffer);
                assert_eq!(start % block, 0);
                assert_eq!(rest.as_ptr().addr() % BLOCK_BYTES, 0);
                assert_eq!(rest.len() % BLOCK_BYTES, 0);
                assert_eq!((start + at as u64, wanted.len()), (offset, len));
                assert!(at + len <= rest.len());
            }
        }
    }

    #[test]
    fn a_short_direct_read_goes_on_at_a_block_until_the_file_ends() {
        let mut buffer = Vec::new();
        let mut extent = Extent::blocks(100, 2 * BLOCK_BYTES, &mut buffer);
        assert!(!extent.advance(Ok(BLOCK_BYTES + 512)).unwrap());
        assert_eq!(extent.rest(&mut buffer).0, BLOCK_BYTES as u64);
        let mut complete = extent.clone();
        assert!(complete.advance(Ok(BLOCK_BYTES + 100)).unwrap());
        let error = extent.restart(&mut buffer).advance(Ok(99)).unwrap_err();
        assert!(error.to_string().contains("8192 bytes"), "{error}");
        let error = extent.advance(Ok(50)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        let missing = BLOCK_BYTES + 100 - 50;
        assert!(error.to_string().contains(&missing.to_string()), "{error}");
    }
}
