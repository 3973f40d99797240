//! Inputs: files and standard input, plain or compressed, read in bounded memory.
//!
//! ```text
//! file or -  ─ counted ─ buffered ─ gunzip | unxz | as it is ─ located ─ csv, ndjson, keys, trace
//! ```
//!
//! The first bytes determine the compression, not the name. `located` counts the uncompressed
//! bytes, so that an error can name its position. A cut in compressed data is an error. A cut in
//! plain data is one where the format shows it: in a quoted field of CSV, in a line of NDJSON, in a
//! number of a trace, between the two digits of a byte. Elsewhere it looks like a last line without
//! a line end.

pub mod csv;
mod csv_records;
mod gzip_members;
pub mod key_list;
pub mod lines;
pub mod ndjson;
pub mod parsed_row;
pub mod rows;
pub mod trace;

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, ErrorKind, Read};
use std::path::Path;
use std::rc::Rc;

use gzip_members::GzipMembers;
use lzma_rust2::XzReader;

/// Memory limit for xz files. `xz -9` needs 65 MiB, and a damaged header may ask for any amount.
const XZ_MEMORY_KIB_MAX: u32 = 256 << 10;
/// The byte order mark of UTF-8, which some programs write before a text. It is not part of it.
const UTF8_MARK: &[u8] = b"\xef\xbb\xbf";

/// Why an input cannot be read. Each error names the input and the position.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// The input cannot be opened.
    #[error("cannot open {name}")]
    Open {
        /// The file.
        name: String,
        /// The system's error.
        source: io::Error,
    },
    /// Reading failed, or the compressed data is truncated or damaged.
    #[error("cannot read {name} after byte {offset_bytes}{}", of_what(*.compressed))]
    Read {
        /// The file.
        name: String,
        /// Number of (uncompressed) bytes read before the error.
        offset_bytes: u64,
        /// Whether the input is compressed.
        compressed: bool,
        /// The cause.
        source: io::Error,
    },
    /// The content is invalid.
    #[error("{name}: byte {offset_bytes}: {problem}")]
    Content {
        /// The file.
        name: String,
        /// Offset of the problem in the (uncompressed) data.
        offset_bytes: u64,
        /// The problem.
        problem: String,
    },
    /// The input is a table without a usable header.
    #[error("{name}: {problem}")]
    Heading {
        /// The file.
        name: String,
        /// The problem.
        problem: String,
    },
}

fn of_what(compressed: bool) -> &'static str {
    if compressed {
        " of the uncompressed data"
    } else {
        ""
    }
}

/// An open input. Bytes read from it are uncompressed.
pub struct Source {
    name: String,
    raw_bytes: Rc<Cell<u64>>,
    total_bytes: Option<u64>,
    compression: Compression,
    offset_bytes: Rc<Cell<u64>>,
    reader: Box<dyn BufRead>,
}

impl Source {
    /// Opens the file at `path`. `-` is standard input.
    ///
    /// # Errors
    /// [`InputError::Open`] if the file does not exist or is a directory, [`InputError::Read`] if
    /// its beginning cannot be read.
    pub fn open(path: &Path) -> Result<Source, InputError> {
        if path.as_os_str() == "-" {
            return Source::new(
                "standard input".to_owned(),
                Box::new(io::stdin().lock()),
                None,
            );
        }
        let name = path.display().to_string();
        let open = || {
            let file = File::open(path)?;
            let metadata = file.metadata()?;
            if metadata.is_dir() {
                return Err(io::Error::new(ErrorKind::IsADirectory, "it is a directory"));
            }
            Ok((file, metadata))
        };
        let (file, metadata) = open().map_err(|source| InputError::Open {
            name: name.clone(),
            source,
        })?;
        // A pipe or a device has no length.
        let total_bytes = metadata.is_file().then_some(metadata.len());
        let source = Source::new(name, Box::new(file), total_bytes)?;
        source.agrees_with_name(path)
    }

    /// Refuses a file that is named as compressed but is not. If it were read as it is, its damaged
    /// beginning would be taken for data.
    fn agrees_with_name(self, path: &Path) -> Result<Source, InputError> {
        let extension = path
            .extension()
            .map(|extension| extension.to_ascii_lowercase());
        let promised = match extension.as_ref().and_then(|extension| extension.to_str()) {
            Some("gz") => Compression::Gzip,
            Some("xz") => Compression::Xz,
            _ => return Ok(self),
        };
        if self.compression == promised {
            return Ok(self);
        }
        let problem = "its name says that it is compressed, but its first bytes do not".to_owned();
        Err(InputError::Content {
            name: self.name,
            offset_bytes: 0,
            problem,
        })
    }

    fn new(
        name: String,
        raw: Box<dyn Read>,
        total_bytes: Option<u64>,
    ) -> Result<Source, InputError> {
        let raw_bytes = Rc::new(Cell::new(0));
        let mut counted = Counted {
            inner: raw,
            count: Rc::clone(&raw_bytes),
        };
        let head =
            head(&mut counted, &[GZIP_MAGIC, XZ_MAGIC]).map_err(|source| InputError::Read {
                name: name.clone(),
                offset_bytes: 0,
                compressed: false,
                source,
            })?;
        let compression = Compression::of(&head);
        let buffered = BufReader::with_capacity(64 << 10, Cursor::new(head).chain(counted));
        let offset_bytes = Rc::new(Cell::new(0));
        let reader: Box<dyn BufRead> = match compression {
            Compression::None => located(buffered, &offset_bytes),
            Compression::Gzip => located(GzipMembers::new(buffered), &offset_bytes),
            Compression::Xz => located(
                XzReader::new_mem_limit(buffered, true, XZ_MEMORY_KIB_MAX),
                &offset_bytes,
            ),
        };
        Ok(Source {
            name,
            raw_bytes,
            total_bytes,
            compression,
            offset_bytes,
            reader,
        })
    }

    /// Separates the reader from the position that errors report.
    pub fn into_parts(self) -> (InputPosition, Box<dyn BufRead>) {
        let place = InputPosition {
            name: self.name,
            raw_bytes: self.raw_bytes,
            total_bytes: self.total_bytes,
            compressed: self.compression != Compression::None,
            offset_bytes: self.offset_bytes,
            begin_bytes: 0,
        };
        (place, self.reader)
    }

    /// The same for text: a mark at its beginning is left out.
    ///
    /// # Errors
    /// [`InputError::Read`].
    pub fn into_text(self) -> Result<(InputPosition, Box<dyn BufRead>), InputError> {
        let (mut place, mut reader) = self.into_parts();
        let mut head = head(&mut reader, &[UTF8_MARK]).map_err(|e| place.read_error(e))?;
        if head == UTF8_MARK {
            place.begin_bytes = head.len() as u64;
            head.clear();
        }
        Ok((place, Box::new(Cursor::new(head).chain(reader))))
    }
}

/// How far an input was read.
#[derive(Clone)]
pub struct InputPosition {
    name: String,
    raw_bytes: Rc<Cell<u64>>,
    total_bytes: Option<u64>,
    compressed: bool,
    offset_bytes: Rc<Cell<u64>>,
    begin_bytes: u64,
}

impl InputPosition {
    /// The name of the input in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes of the file read so far, compressed if the file is compressed. Used for the progress
    /// bar.
    pub fn raw_bytes(&self) -> u64 {
        self.raw_bytes.get()
    }

    /// The file's length, if it has one.
    pub fn total_bytes(&self) -> Option<u64> {
        self.total_bytes
    }

    /// Where the content begins: behind the mark, if the text has one.
    pub fn begin_bytes(&self) -> u64 {
        self.begin_bytes
    }

    /// The error for a failed read.
    pub fn read_error(&self, source: io::Error) -> InputError {
        InputError::Read {
            name: self.name.clone(),
            offset_bytes: self.offset_bytes.get(),
            compressed: self.compressed,
            source,
        }
    }

    /// The error for invalid content at `offset_bytes`.
    pub fn content_error(&self, offset_bytes: u64, problem: String) -> InputError {
        InputError::Content {
            name: self.name.clone(),
            offset_bytes,
            problem,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Compression {
    None,
    Gzip,
    Xz,
}

const GZIP_MAGIC: &[u8] = &[0x1f, 0x8b];
const XZ_MAGIC: &[u8] = &[0xfd, b'7', b'z', b'X', b'Z', 0];

impl Compression {
    /// The compression of an input that begins with these bytes.
    fn of(head: &[u8]) -> Compression {
        if head.starts_with(GZIP_MAGIC) {
            Compression::Gzip
        } else if head.starts_with(XZ_MAGIC) {
            Compression::Xz
        } else {
            Compression::None
        }
    }
}

/// Reads the first bytes, until they tell which of the beginnings they are, or that they are none.
/// It reads no further: the writer of a pipe may wait for an answer to what it has written.
fn head(reader: &mut impl Read, beginnings: &[&[u8]]) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let is_open = |bytes: &[u8]| {
        let mut longer = beginnings.iter().filter(|known| known.len() > bytes.len());
        longer.any(|known| known.starts_with(bytes))
    };
    while is_open(&bytes) && reader.by_ref().take(1).read_to_end(&mut bytes)? > 0 {}
    Ok(bytes)
}

/// A buffered reader that keeps `offset_bytes` at the number of bytes that the inner reader has
/// returned.
fn located(inner: impl Read + 'static, offset_bytes: &Rc<Cell<u64>>) -> Box<dyn BufRead> {
    let counted = Counted {
        inner,
        count: Rc::clone(offset_bytes),
    };
    Box::new(BufReader::with_capacity(64 << 10, counted))
}

struct Counted<R> {
    inner: R,
    count: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // A decoder above would take an interrupted read for the end of its data.
        let read = loop {
            match self.inner.read(buffer) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => break read?,
            }
        };
        self.count.set(self.count.get() + read as u64);
        Ok(read)
    }
}

/// Inputs for the tests.
#[cfg(test)]
pub mod testing {
    use std::io::{self, Cursor, Read, Write};

    use super::Source;

    /// An input with the content `bytes`.
    pub fn source(bytes: &[u8]) -> Source {
        let total = Some(bytes.len() as u64);
        Source::new(
            "test".to_owned(),
            Box::new(Cursor::new(bytes.to_vec())),
            total,
        )
        .expect("memory can be read")
    }

    /// `bytes` in gzip.
    pub fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).expect("memory can be written");
        encoder.finish().expect("memory can be written")
    }

    /// An input with the content `bytes` that returns the first of them together and the others one
    /// by one. Each read is interrupted once.
    pub fn pieces(bytes: &[u8], first: usize) -> Source {
        let pieces = Pieces {
            rest: Cursor::new(bytes.to_vec()),
            length: first,
            is_interrupted: true,
        };
        Source::new("test".to_owned(), Box::new(pieces), None).expect("memory can be read")
    }

    struct Pieces {
        rest: Cursor<Vec<u8>>,
        length: usize,
        is_interrupted: bool,
    }

    impl Read for Pieces {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.is_interrupted = !self.is_interrupted;
            if !self.is_interrupted {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let length = std::mem::replace(&mut self.length, 1).min(buffer.len());
            self.rest.read(&mut buffer[..length])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{gzip, pieces, source};
    use super::*;

    fn read_all(bytes: &[u8]) -> Result<Vec<u8>, InputError> {
        read_source(source(bytes))
    }

    fn read_source(source: Source) -> Result<Vec<u8>, InputError> {
        let (place, mut reader) = source.into_parts();
        let mut text = Vec::new();
        reader
            .read_to_end(&mut text)
            .map_err(|error| place.read_error(error))?;
        Ok(text)
    }

    #[test]
    fn compression_is_detected_from_the_first_bytes() {
        let text: Vec<u8> = (0..200_000u32)
            .flat_map(|i| (i / 7).to_le_bytes())
            .collect();
        assert_eq!(read_all(&text).unwrap(), text);
        assert_eq!(read_all(&gzip(&text)).unwrap(), text);
        // A gzip file may have several members, as `cat a.gz b.gz` produces them.
        let two = [gzip(&text), gzip(b"end")].concat();
        assert_eq!(read_all(&two).unwrap(), [&text[..], b"end"].concat());
        assert_eq!(read_all(b"").unwrap(), b"");
        assert_eq!(read_all(b"\x1f").unwrap(), b"\x1f");
    }

    /// The bytes 0 to 63, eight times, compressed by `xz`.
    const XZ: &[u8] = b"\
        \xfd\x37\x7a\x58\x5a\x00\x00\x04\xe6\xd6\xb4\x46\x02\x00\x21\x01\x16\x00\x00\x00\x74\x2f\
        \xe5\xa3\xe0\x01\xff\x00\x44\x5d\x00\x00\x00\x52\x50\x0a\x84\xf9\x9b\xb2\x80\x21\xa9\x69\
        \xd6\x27\xe0\x3e\x06\x5a\x5f\x04\x8d\x53\xd4\x04\xba\x39\x57\x05\x09\xc1\x55\x24\xde\x9d\
        \xb8\x71\x59\x31\x60\xa1\x9f\xf9\x6f\x49\x73\xf2\xc8\xea\x8c\xba\x1a\x8b\x29\x69\x21\x80\
        \xfe\x33\x83\x7c\xe2\x37\x0e\xfd\x66\xc0\x00\x00\x5a\x90\x00\x32\x90\xb8\xf5\xa2\x00\x01\
        \x60\x80\x04\x00\x00\x00\x42\xfc\x25\xf5\xb1\xc4\x67\xfb\x02\x00\x00\x00\x00\x04\x59\x5a";

    #[test]
    fn xz_is_read_and_damage_in_it_is_an_error_never_a_panic() {
        let text: Vec<u8> = (0..64).collect::<Vec<u8>>().repeat(8);
        assert_eq!(read_all(XZ).unwrap(), text);
        for at in 6..XZ.len() {
            for bit in 0..8 {
                let mut damaged = XZ.to_vec();
                damaged[at] ^= 1 << bit;
                assert!(
                    read_all(&damaged).is_err(),
                    "bit {bit} of byte {at} is flipped"
                );
            }
            assert!(read_all(&XZ[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn compression_is_detected_from_a_pipe_that_returns_single_bytes() {
        let text: Vec<u8> = (0..64).collect::<Vec<u8>>().repeat(8);
        for first in 1..8 {
            for bytes in [&gzip(&text)[..], XZ, &text] {
                let found = read_source(pieces(bytes, first));
                assert_eq!(found.expect("it is whole"), text, "first read of {first}");
            }
        }
    }

    #[test]
    fn a_mark_before_a_text_is_left_out_once() {
        for (text, rest) in [
            (&b"\xef\xbb\xbfa"[..], &b"a"[..]),
            (b"\xef\xbb\xbf", b""),
            (b"\xef\xbb", b"\xef\xbb"),
            (b"a\xef\xbb\xbf", b"a\xef\xbb\xbf"),
            (b"", b""),
        ] {
            for source in [source(text), pieces(text, 1), pieces(&gzip(text), 1)] {
                let (place, mut reader) = source.into_text().expect("it can be read");
                let mut found = Vec::new();
                reader.read_to_end(&mut found).expect("it can be read");
                assert_eq!(found, rest);
                assert_eq!(place.begin_bytes(), (text.len() - rest.len()) as u64);
            }
        }
    }

    #[test]
    fn zero_bytes_behind_gzip_are_padding_and_other_bytes_are_an_error() {
        let member = gzip(b"text");
        for zeros in [1, 2, 511, 200_000] {
            let padded = [&member[..], &vec![0; zeros]].concat();
            assert_eq!(
                read_all(&padded).expect("padding"),
                b"text",
                "{zeros} zeros"
            );
            for rest in [&b"x"[..], &member] {
                let error = read_all(&[&padded[..], rest].concat()).expect_err("data is lost");
                let InputError::Read { source, .. } = error else {
                    panic!("{error}")
                };
                assert!(source.to_string().contains("after zero bytes"), "{source}");
            }
        }
        assert!(read_all(&[&member[..], b"x"].concat()).is_err());
    }

    #[test]
    fn data_cut_short_is_an_error_that_says_where() {
        let text: Vec<u8> = (0..100_000u32)
            .flat_map(|i| i.wrapping_mul(0x9e37_79b9).to_le_bytes())
            .collect();
        let compressed = gzip(&text);
        let error = read_all(&compressed[..compressed.len() / 2]).unwrap_err();
        let InputError::Read {
            offset_bytes,
            compressed: true,
            ..
        } = error
        else {
            panic!("{error}")
        };
        assert!(
            offset_bytes > 0 && offset_bytes < text.len() as u64,
            "{offset_bytes}"
        );
    }

    #[test]
    fn a_path_that_is_no_file_is_an_error_that_names_it() {
        let missing = Source::open(Path::new("/no/such/file.csv"))
            .err()
            .expect("there is none");
        assert_eq!(missing.to_string(), "cannot open /no/such/file.csv");
        let directory = Source::open(Path::new("/"))
            .err()
            .expect("it is a directory");
        assert!(matches!(directory, InputError::Open { .. }));
    }
}
