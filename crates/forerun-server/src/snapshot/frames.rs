//! A stream of bytes split into frames, each with its own checksum.
//!
//! ```text
//!   ┌────────┬──────────┬───────────────┐
//!   │ length │ checksum │ bytes         │      length: 1 to FRAME_BYTES
//!   │ 4      │ 4        │ length        │      checksum: crc32c(number of the frame, 8 bytes ‖ length ‖ bytes)
//!   └────────┴──────────┴───────────────┘
//! ```
//!
//! The frame's number is not stored. The checksum covers it, so a missing or misplaced frame is
//! detected.

use std::io::{self, ErrorKind, Read, Write};

use super::Fault;

/// Maximum length of a frame.
pub(super) const FRAME_BYTES: usize = 256 << 10;

fn checksum(number: u64, bytes: &[u8]) -> u32 {
    let start = crc32c::crc32c(&number.to_le_bytes());
    let length = (bytes.len() as u32).to_le_bytes();
    crc32c::crc32c_append(crc32c::crc32c_append(start, &length), bytes)
}

/// Splits the bytes written to it into frames. [`FrameWriter::finish`] writes the last frame.
pub(super) struct FrameWriter<W> {
    to: W,
    frame: Vec<u8>,
    number: u64,
    written: u64,
}

impl<W: Write> FrameWriter<W> {
    pub(super) fn new(to: W) -> FrameWriter<W> {
        FrameWriter {
            to,
            frame: Vec::with_capacity(FRAME_BYTES),
            number: 0,
            written: 0,
        }
    }

    /// The underlying writer.
    pub(super) fn to(&self) -> &W {
        &self.to
    }

    /// Number of bytes written in frames so far.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Writes the remaining bytes and returns the length of all frames.
    pub(super) fn finish(mut self) -> io::Result<u64> {
        self.put()?;
        Ok(self.written)
    }

    fn put(&mut self) -> io::Result<()> {
        if self.frame.is_empty() {
            return Ok(());
        }
        self.to
            .write_all(&(self.frame.len() as u32).to_le_bytes())?;
        let sum = checksum(self.number, &self.frame);
        self.to.write_all(&sum.to_le_bytes())?;
        self.to.write_all(&self.frame)?;
        self.number += 1;
        self.written += 8 + self.frame.len() as u64;
        self.frame.clear();
        Ok(())
    }
}

impl<W: Write> Write for FrameWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(FRAME_BYTES - self.frame.len());
        self.frame.extend_from_slice(&bytes[..taken]);
        if self.frame.len() == FRAME_BYTES {
            self.put()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        // A frame is written when it is full. `finish` writes the rest.
        Ok(())
    }
}

/// Reads the frames of a [`FrameWriter`]. It never returns bytes of a frame with a wrong checksum.
pub(super) struct FrameReader<R> {
    from: R,
    frame: Vec<u8>,
    /// Number of bytes of the frame that were returned.
    given: usize,
    number: u64,
    /// Offset of the next frame.
    offset: u64,
}

impl<R: Read> FrameReader<R> {
    /// Reads frames. The first one starts at `offset` of its file.
    pub(super) fn new(from: R, offset: u64) -> FrameReader<R> {
        FrameReader {
            from,
            frame: Vec::new(),
            given: 0,
            number: 0,
            offset,
        }
    }

    /// Fills `into` with the next bytes.
    pub(super) fn take(&mut self, mut into: &mut [u8]) -> Result<(), Fault> {
        while !into.is_empty() {
            if self.given == self.frame.len() && !self.next_frame()? {
                return Err(self.damaged("the file ends early"));
            }
            let there = &self.frame[self.given..];
            let count = there.len().min(into.len());
            let (now, later) = into.split_at_mut(count);
            now.copy_from_slice(&there[..count]);
            self.given += count;
            into = later;
        }
        Ok(())
    }

    /// Whether the file ends here.
    pub(super) fn is_at_end(&mut self) -> Result<bool, Fault> {
        Ok(self.given == self.frame.len() && !self.next_frame()?)
    }

    /// Offset of the next frame. All bytes before it are read.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    pub(super) fn damaged(&self, what: &'static str) -> Fault {
        Fault::Damaged {
            what,
            offset: self.offset,
        }
    }

    /// Reads the next frame. Returns false at the end of the file.
    fn next_frame(&mut self) -> Result<bool, Fault> {
        let mut head = [0; 8];
        let head_bytes = read_up_to(&mut self.from, &mut head)?;
        if head_bytes == 0 {
            return Ok(false);
        }
        let [l0, l1, l2, l3, c0, c1, c2, c3] = head;
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        if head_bytes < head.len() {
            return Err(self.damaged("the file ends early"));
        }
        if length == 0 || length > FRAME_BYTES {
            return Err(self.damaged("a frame's length is wrong"));
        }
        self.frame.resize(length, 0);
        self.given = 0;
        if read_up_to(&mut self.from, &mut self.frame)? < length {
            return Err(self.damaged("the file ends early"));
        }
        if checksum(self.number, &self.frame) != u32::from_le_bytes([c0, c1, c2, c3]) {
            return Err(self.damaged("a frame's checksum is wrong"));
        }
        self.number += 1;
        self.offset += 8 + length as u64;
        Ok(true)
    }
}

/// Reads until `into` is full or the file ends, and returns the number of bytes.
fn read_up_to(from: &mut impl Read, into: &mut [u8]) -> Result<usize, Fault> {
    let mut done = 0;
    while done < into.len() {
        match from.read(&mut into[done..]) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(Fault::Io(error)),
        }
    }
    Ok(done)
}
