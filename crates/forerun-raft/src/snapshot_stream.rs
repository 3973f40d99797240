//! A snapshot as a stream of bytes.
//!
//! ```text
//!   header   "FRRAFTS1"
//!   frame    length of the body, u32  |  CRC-32C of the body, u32  |  body
//!   …
//!
//!   body     1  |  entries: length of the key, u32 | length of the value, u32 | key | value  …
//!            2  |  number of entries in all frames, u64: the last frame
//! ```
//!
//! Numbers are little-endian. Entries are in ascending order of their keys.

use forerun_db::{Iter, KEY_BYTES_MAX};

use crate::request::REQUEST_BYTES_MAX;
use crate::{Error, Result};

const HEADER: &[u8; 8] = b"FRRAFTS1";
/// The length and the checksum of a body.
const FRAME_HEADER_BYTES: usize = 8;
/// The lengths of a key and of its value.
const ENTRY_HEADER_BYTES: usize = 8;
const ENTRIES: u8 = 1;
const END: u8 = 2;
/// A frame with a body of at least this size is complete.
const BODY_BYTES: usize = 64 << 10;
const BODY_BYTES_MAX: usize = BODY_BYTES + ENTRY_HEADER_BYTES + KEY_BYTES_MAX + REQUEST_BYTES_MAX;

/// Encodes the entries of an iterator.
pub(crate) struct Encoder {
    /// `None` after the last frame.
    stored: Option<Iter>,
    has_header: bool,
    entries: u64,
}

impl Encoder {
    pub(crate) fn new(stored: Iter) -> Encoder {
        Encoder {
            stored: Some(stored),
            has_header: false,
            entries: 0,
        }
    }

    /// Replaces the content of `bytes` by the next bytes of the stream. They are empty at its end.
    pub(crate) fn next(&mut self, bytes: &mut Vec<u8>) -> Result<()> {
        bytes.clear();
        let Some(stored) = &mut self.stored else {
            return Ok(());
        };
        if !self.has_header {
            bytes.extend_from_slice(HEADER);
            self.has_header = true;
        }
        let frame = bytes.len();
        let body = frame + FRAME_HEADER_BYTES;
        bytes.resize(body, 0);
        bytes.push(ENTRIES);
        let before = self.entries;
        while bytes.len() - body < BODY_BYTES
            && let Some(entry) = stored.next_entry()?
        {
            for length in [entry.key.len(), entry.value.len()] {
                bytes.extend_from_slice(&length_bytes(length)?);
            }
            bytes.extend_from_slice(entry.key);
            bytes.extend_from_slice(entry.value);
            self.entries += 1;
        }
        if self.entries == before {
            bytes.truncate(body);
            bytes.push(END);
            bytes.extend_from_slice(&self.entries.to_le_bytes());
            self.stored = None;
        }
        let length = length_bytes(bytes.len() - body)?;
        let checksum = crc32c::crc32c(&bytes[body..]);
        bytes[frame..frame + 4].copy_from_slice(&length);
        bytes[frame + 4..body].copy_from_slice(&checksum.to_le_bytes());
        Ok(())
    }
}

fn length_bytes(length: usize) -> Result<[u8; 4]> {
    let length = u32::try_from(length).map_err(|_| Error::Encode {
        record: "an entry of a snapshot".to_owned(),
        reason: format!("{length} bytes"),
    })?;
    Ok(length.to_le_bytes())
}

/// Decodes a stream that arrives in pieces of any size.
#[derive(Default)]
pub(crate) struct Decoder {
    /// What has arrived of the next frame.
    pending: Vec<u8>,
    /// The offset of `pending` in the stream.
    offset: u64,
    entries: u64,
    has_ended: bool,
}

impl Decoder {
    /// Takes the next bytes and passes the entries that are complete to `add`. After an error, the
    /// rest of the stream cannot be decoded.
    pub(crate) fn push(
        &mut self,
        bytes: &[u8],
        mut add: impl FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        self.pending.extend_from_slice(bytes);
        let mut taken = 0;
        if self.offset == 0 {
            let Some(header) = self.pending.first_chunk::<{ HEADER.len() }>() else {
                return Ok(());
            };
            if header != HEADER {
                return Err(self.bad(0, "it does not begin as a snapshot does"));
            }
            taken = HEADER.len();
        }
        while let Some(body_bytes) = self.body_bytes(taken)? {
            let body = taken + FRAME_HEADER_BYTES;
            let Some(frame) = self.pending.get(taken..body + body_bytes) else {
                break;
            };
            let (header, body) = frame.split_at(FRAME_HEADER_BYTES);
            if crc32c::crc32c(body).to_le_bytes() != header[4..] {
                return Err(self.bad(taken, "the checksum of this frame is wrong"));
            }
            match body.split_first() {
                Some((&ENTRIES, entries)) => match each_entry(entries, &mut add)? {
                    Some(count) => self.entries += count,
                    None => return Err(self.bad(taken, "an entry ends after its frame")),
                },
                Some((&END, count)) if count == self.entries.to_le_bytes() => {
                    self.has_ended = true;
                }
                Some((&END, _)) => return Err(self.bad(taken, "the number of entries is wrong")),
                _ => return Err(self.bad(taken, "this frame is of an unknown kind")),
            }
            taken += frame.len();
        }
        if self.has_ended && taken < self.pending.len() {
            return Err(self.bad(taken, "the snapshot has ended before"));
        }
        self.pending.drain(..taken);
        self.offset += taken as u64;
        Ok(())
    }

    /// Checks that the whole stream has arrived.
    pub(crate) fn check_ended(&self) -> Result<()> {
        if self.has_ended {
            Ok(())
        } else {
            Err(self.bad(self.pending.len(), "the end is missing"))
        }
    }

    /// The size of the body of the frame that begins at `taken`, if it has arrived.
    fn body_bytes(&self, taken: usize) -> Result<Option<usize>> {
        let Some(length) = self.pending[taken..].first_chunk::<4>() else {
            return Ok(None);
        };
        match u32::from_le_bytes(*length) as usize {
            body_bytes if body_bytes <= BODY_BYTES_MAX => Ok(Some(body_bytes)),
            _ => Err(self.bad(taken, "this frame is too long")),
        }
    }

    fn bad(&self, at: usize, reason: &str) -> Error {
        Error::SnapshotStream {
            offset: self.offset + at as u64,
            reason: reason.to_owned(),
        }
    }
}

/// Passes all entries to `add` and returns their number; `None` if the last one is incomplete.
fn each_entry(
    mut entries: &[u8],
    add: &mut impl FnMut(&[u8], &[u8]) -> Result<()>,
) -> Result<Option<u64>> {
    let mut count = 0;
    while !entries.is_empty() {
        let parts = entries.split_first_chunk::<4>().and_then(|(key, rest)| {
            let (value, rest) = rest.split_first_chunk::<4>()?;
            let (key, rest) = rest.split_at_checked(u32::from_le_bytes(*key) as usize)?;
            let (value, rest) = rest.split_at_checked(u32::from_le_bytes(*value) as usize)?;
            Some((key, value, rest))
        });
        let Some((key, value, rest)) = parts else {
            return Ok(None);
        };
        add(key, value)?;
        (entries, count) = (rest, count + 1);
    }
    Ok(Some(count))
}

#[cfg(test)]
mod tests {
    use forerun_db::{Db, Options};

    use super::*;

    type Entries = Vec<(Vec<u8>, Vec<u8>)>;

    fn encoded(entries: &[(&[u8], &[u8])]) -> Vec<u8> {
        let directory = tempfile::tempdir().unwrap();
        let db = Db::open(directory.path().join("store"), Options::default()).unwrap();
        for (key, value) in entries {
            db.put(key, value).unwrap();
        }
        let (mut stream, mut frame) = (Vec::new(), Vec::new());
        let mut encoder = Encoder::new(db.iter());
        loop {
            encoder.next(&mut frame).unwrap();
            if frame.is_empty() {
                return stream;
            }
            stream.extend_from_slice(&frame);
        }
    }

    fn decoded(stream: &[u8], piece_bytes: usize) -> Result<Entries> {
        let (mut decoder, mut entries) = (Decoder::default(), Entries::new());
        for piece in stream.chunks(piece_bytes) {
            decoder.push(piece, |key, value| {
                entries.push((key.to_vec(), value.to_vec()));
                Ok(())
            })?;
        }
        decoder.check_ended()?;
        Ok(entries)
    }

    #[test]
    fn entries_come_back_from_pieces_of_any_size() {
        let large = vec![7; 3 * BODY_BYTES];
        let entries: [(&[u8], &[u8]); 4] = [(b"", b""), (b"a", &large), (b"b", b"x"), (b"c", b"y")];
        let stream = encoded(&entries);
        let expected = entries.map(|(key, value)| (key.to_vec(), value.to_vec()));
        for piece_bytes in [1, 7, 4096, stream.len()] {
            assert_eq!(decoded(&stream, piece_bytes).unwrap(), expected);
        }
        assert_eq!(decoded(&encoded(&[]), 1).unwrap(), []);
    }

    #[test]
    fn a_stream_that_is_cut_or_changed_is_an_error() {
        let stream = encoded(&[(b"a", b"1"), (b"b", b"2")]);
        for length in 0..stream.len() {
            let error = decoded(&stream[..length], 5).unwrap_err();
            assert!(
                error.to_string().contains("the end is missing"),
                "{length}: {error}"
            );
        }
        for at in 0..stream.len() {
            for bit in 0..8 {
                let mut changed = stream.clone();
                changed[at] ^= 1 << bit;
                assert!(decoded(&changed, 5).is_err(), "bit {bit} of byte {at}");
            }
        }
        let longer = [&stream[..], b"x"].concat();
        assert!(decoded(&longer, 5).is_err());
    }
}
