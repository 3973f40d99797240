//! Access traces: the keys that a program read, in order. The whole trace is read into memory, so
//! that a replay measures only the store.
//!
//! | format | a read |
//! |---|---|
//! | `text` | one line, unchanged; empty lines are skipped |
//! | `u32be` | 4 bytes, big-endian; the key is those 4 bytes |
//! | `u64be` | 8 bytes, big-endian; the key is those 8 bytes |
//!
//! Big-endian bytes sort like the numbers, so the store's order is the numbers' order.

use super::lines::Lines;
use super::{InputError, Source};

/// The format of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum TraceFormat {
    /// One key per line
    Text,
    /// Big-endian numbers of 4 bytes
    U32be,
    /// Big-endian numbers of 8 bytes
    U64be,
}

/// A trace in memory.
pub enum Trace {
    /// Keys of any length.
    Text(TextKeys),
    /// Keys of 4 bytes.
    U32(Vec<[u8; 4]>),
    /// Keys of 8 bytes.
    U64(Vec<[u8; 8]>),
}

/// Maximum key length of a text trace. A longer line is probably not text.
const LINE_BYTES_MAX: usize = 65_536;

impl Trace {
    /// Reads a whole trace.
    ///
    /// # Errors
    /// [`InputError::Content`] if the trace is empty, ends within a key, or is `text` and contains
    /// NUL bytes; [`InputError::Read`] if reading fails or compressed data is truncated or damaged.
    /// Each error names the byte.
    pub fn read(source: Source, format: TraceFormat) -> Result<Trace, InputError> {
        Ok(match format {
            TraceFormat::Text => Trace::Text(TextKeys::read(source)?),
            TraceFormat::U32be => Trace::U32(read_fixed(source)?),
            TraceFormat::U64be => Trace::U64(read_fixed(source)?),
        })
    }
}

/// Keys of any length, one after another in one buffer.
#[derive(Default)]
pub struct TextKeys {
    bytes: Vec<u8>,
    /// End offset of each key. A key starts where the key before it ends.
    ends: Vec<usize>,
}

impl TextKeys {
    fn read(source: Source) -> Result<TextKeys, InputError> {
        let mut lines = Lines::new(source, LINE_BYTES_MAX)?;
        let mut keys = TextKeys::default();
        while let Some(line) = lines.next()? {
            if let Some(at) = line.bytes.iter().position(|&byte| byte == 0) {
                let offset_bytes = line.offset_bytes + at as u64;
                let problem =
                    "a NUL byte: the trace is not text; perhaps its format is u32be or u64be"
                        .to_owned();
                return Err(lines.place().content_error(offset_bytes, problem));
            }
            if !line.bytes.is_empty() {
                keys.bytes.extend_from_slice(line.bytes);
                keys.ends.push(keys.bytes.len());
            }
        }
        if keys.ends.is_empty() {
            return Err(lines
                .place()
                .content_error(0, "the trace contains no key".to_owned()));
        }
        Ok(keys)
    }

    /// The keys, in order.
    pub fn as_slices(&self) -> Vec<&[u8]> {
        let begins = std::iter::once(0).chain(self.ends.iter().copied());
        begins
            .zip(&self.ends)
            .map(|(begin, &end)| &self.bytes[begin..end])
            .collect()
    }
}

fn read_fixed<const N: usize>(source: Source) -> Result<Vec<[u8; N]>, InputError> {
    let (place, mut reader) = source.into_parts();
    let mut keys: Vec<[u8; N]> = Vec::new();
    let mut partial = [0; N];
    let mut held = 0;
    loop {
        let buffer = reader.fill_buf().map_err(|error| place.read_error(error))?;
        let length = buffer.len();
        if length == 0 {
            break;
        }
        // A key may span two buffers. Its first part waits in `partial`.
        let (head, rest) = buffer.split_at(if held > 0 { (N - held).min(length) } else { 0 });
        partial[held..held + head.len()].copy_from_slice(head);
        held += head.len();
        if held == N {
            keys.push(partial);
            held = 0;
        }
        let (whole, tail) = rest.as_chunks::<N>();
        keys.extend_from_slice(whole);
        if !tail.is_empty() {
            partial[..tail.len()].copy_from_slice(tail);
            held = tail.len();
        }
        reader.consume(length);
    }
    let whole_bytes = (keys.len() * N) as u64;
    if held > 0 {
        let problem = format!("the trace ends within a key, after {held} of {N} bytes");
        return Err(place.content_error(whole_bytes, problem));
    }
    if keys.is_empty() {
        return Err(place.content_error(0, "the trace contains no key".to_owned()));
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{gzip, pieces, source};
    use super::*;

    fn fixed<const N: usize>(bytes: &[u8]) -> Result<Vec<[u8; N]>, InputError> {
        read_fixed(source(bytes))
    }

    #[test]
    fn numbers_are_read_whole_across_buffers() {
        // Gzip returns its output in pieces whose lengths are not multiples of a key.
        let numbers: Vec<[u8; 4]> = (0..100_003u32)
            .map(|i| i.wrapping_mul(0x9e37_79b9).to_be_bytes())
            .collect();
        assert_eq!(fixed(numbers.as_flattened()).unwrap(), numbers);
        assert_eq!(fixed(&gzip(numbers.as_flattened())).unwrap(), numbers);
        // One byte per read, so every key spans several reads.
        let dribble = pieces(numbers[..1000].as_flattened(), 1);
        assert_eq!(read_fixed::<4>(dribble).unwrap(), &numbers[..1000]);
    }

    #[test]
    fn a_short_trace_is_an_error_at_its_byte() {
        let error = fixed::<4>(&[0; 11]).unwrap_err().to_string();
        assert_eq!(
            error,
            "test: byte 8: the trace ends within a key, after 3 of 4 bytes"
        );
        let error = fixed::<8>(b"").unwrap_err().to_string();
        assert_eq!(error, "test: byte 0: the trace contains no key");
    }

    #[test]
    fn text_keys_are_lines_and_binary_is_refused() {
        let keys = TextKeys::read(source(b"a\n\nbb\r\nccc")).unwrap();
        assert_eq!(keys.as_slices(), [&b"a"[..], b"bb", b"ccc"]);
        let error = TextKeys::read(source(b"abc\n\x01\x00"))
            .err()
            .unwrap()
            .to_string();
        assert!(error.starts_with("test: byte 5: a NUL byte"), "{error}");
        assert!(TextKeys::read(source(b"\n\n")).is_err());
    }

    #[test]
    fn damaged_compressed_data_is_an_error_never_a_panic() {
        let numbers: Vec<[u8; 4]> = (0..5000u32).map(|i| (i % 97).to_be_bytes()).collect();
        let whole = gzip(numbers.as_flattened());
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x55;
            // Gzip does not protect the time and the name in its header, but a flip in the data
            // must break the checksum.
            if let Ok(keys) = fixed::<4>(&damaged) {
                assert!(at < 10, "byte {at} is damaged");
                assert!(keys == numbers || at < 3);
            }
        }
        for cut in 10..whole.len() {
            assert!(fixed::<4>(&whole[..cut]).is_err(), "cut at {cut}");
        }
    }
}
