//! Bytes that were received and not yet consumed.
//!
//! ```text
//!   buffer   [ consumed | bytes(): not yet consumed | space(): room to read into ]
//!                    start                            end
//! ```
//!
//! A session consumes whole commands from the front. It leaves an incomplete command in the buffer;
//! such a command is always shorter than [`LINE_BYTES_MAX`]. It consumes longer data piece by
//! piece. The buffer therefore keeps its size, whatever a client sends.

/// The longest line that a session must see as a whole. It consumes longer lines in pieces or
/// refuses them. The limit is smaller than the buffer, so there is always space to read into.
pub const LINE_BYTES_MAX: usize = 16 << 10;

/// Size of the buffer once it is allocated.
const BUFFER_BYTES: usize = 64 << 10;

/// Bytes that [`Input::space`] guarantees.
const SPACE_BYTES_MIN: usize = 16 << 10;

/// The receiving side of a connection. The caller reads a socket into [`space`](Self::space), and a
/// [`Session`](crate::Session) consumes commands from it.
///
/// ```
/// use forerun_server::Input;
///
/// let mut input = Input::new();
/// input.space()[..4].copy_from_slice(b"mn\r\n");
/// input.filled(4);
/// assert_eq!(input.bytes(), b"mn\r\n");
/// ```
#[derive(Debug, Default)]
pub struct Input {
    /// Empty until the first read, then always [`BUFFER_BYTES`] long.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Input {
    /// Creates an empty input without a buffer.
    pub fn new() -> Self {
        Self::default()
    }

    /// Space to read into, at least 16 KiB. After the read, call [`filled`](Self::filled) with the
    /// number of bytes.
    pub fn space(&mut self) -> &mut [u8] {
        if self.buffer.is_empty() {
            self.buffer.resize(BUFFER_BYTES, 0);
        }
        if self.buffer.len() - self.end < SPACE_BYTES_MIN {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.buffer.len() - self.end < SPACE_BYTES_MIN {
            // This happens only if nobody consumes the input: a session leaves less than
            // LINE_BYTES_MAX.
            self.buffer.resize(self.end + BUFFER_BYTES, 0);
        }
        &mut self.buffer[self.end..]
    }

    /// Reports that `count` bytes were read into [`space`](Self::space). `count` is at most its
    /// length.
    pub fn filled(&mut self, count: usize) {
        self.end = self.buffer.len().min(self.end + count);
    }

    /// Appends `bytes` as if they had been read.
    pub fn extend(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let space = self.space();
            let count = space.len().min(bytes.len());
            space[..count].copy_from_slice(&bytes[..count]);
            self.filled(count);
            bytes = &bytes[count..];
        }
    }

    /// Moves the few bytes of an incomplete command to a small buffer. Returns the large buffer,
    /// now empty, for another connection. Returns `None` if many bytes are waiting.
    pub(crate) fn park(&mut self) -> Option<Input> {
        if self.bytes().len() > LINE_BYTES_MAX {
            return None;
        }
        let parked = Input {
            buffer: self.bytes().to_vec(),
            start: 0,
            end: self.bytes().len(),
        };
        let mut large = std::mem::replace(self, parked);
        large.consume(large.bytes().len());
        Some(large)
    }

    /// Moves the bytes from a small buffer to a large one.
    pub(crate) fn unpark(&mut self, mut large: Input) {
        large.extend(self.bytes());
        *self = large;
    }

    /// Whether the bytes are in a small buffer.
    pub(crate) fn is_parked(&self) -> bool {
        !self.is_empty() && self.buffer.len() < BUFFER_BYTES
    }

    /// Memory used by the buffer.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.buffer.capacity()
    }

    /// Bytes that were received and not yet consumed.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Whether all received bytes are consumed.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Removes up to `count` bytes from the front.
    pub fn consume(&mut self, count: usize) {
        self.start = self.end.min(self.start + count);
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_round_trip_and_the_buffer_keeps_its_size() {
        let mut input = Input::new();
        let mut expected = 0_u32;
        let mut sent = 0_u32;
        for round in 0..2_000_usize {
            let count = round * 7919 % 3_000;
            let piece: Vec<u8> = (0..count).map(|i| (sent as usize + i) as u8).collect();
            input.extend(&piece);
            sent += count as u32;
            while input.bytes().len() > 1_000 {
                for &byte in &input.bytes()[..500] {
                    assert_eq!(byte, expected as u8);
                    expected += 1;
                }
                input.consume(500);
            }
        }
        assert_eq!(input.buffer.len(), BUFFER_BYTES);
        assert_eq!(input.bytes().len() as u32, sent - expected);
    }

    #[test]
    fn parked_bytes_take_their_own_size_and_come_back() {
        let mut input = Input::new();
        input.extend(b"get a\r\nget b");
        input.consume(7);
        let large = input.park().expect("a few bytes");
        assert!(input.is_parked() && large.is_empty());
        assert_eq!((input.bytes(), input.memory_bytes()), (&b"get b"[..], 5));
        input.unpark(large);
        assert_eq!((input.bytes(), input.is_parked()), (&b"get b"[..], false));
        assert_eq!(input.memory_bytes(), BUFFER_BYTES);
        input.extend(&[b'x'; LINE_BYTES_MAX]);
        assert!(input.park().is_none());
    }
}
