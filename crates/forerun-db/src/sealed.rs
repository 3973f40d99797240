//! Small files that are written as a whole: a head that is the same in every version, a body, and a
//! checksum of the body.
//!
//! ```text
//!  0       8         12         16       20
//! ┌───────┬─────────┬──────────┬────────┬──────┬──────────┐
//! │ magic │ version │ checksum │ length │ body │ checksum │
//! └───────┴─────────┴──────────┴────────┴──────┴──────────┘
//!  └──── of the version ─────┘ └─── of the body ────┘
//! ```
//!
//! `MANIFEST` is such a file, and so are the files in a directory of backups;
//! `docs/internals/format.md` defines them. `FORMAT` begins with the same head.

use std::path::Path;

use crate::bytes::{u32_at, u64_at};
use crate::{Error, Result};

/// Bytes of magic, version and their checksum.
pub(crate) const VERSION_BYTES: usize = 16;
/// The bytes before the body.
pub(crate) const HEAD_BYTES: usize = 20;

/// A kind of such files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) magic: [u8; 8],
    /// The newest version, which is the one written.
    pub(crate) version: u32,
}

/// Why bytes are not a file of this kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bad {
    Bytes {
        offset: usize,
        reason: &'static str,
    },
    /// The file has a newer version.
    Newer(u32),
}

impl Kind {
    /// The first bytes of a file.
    pub(crate) fn head(&self) -> Vec<u8> {
        let mut bytes = self.magic.to_vec();
        bytes.extend_from_slice(&self.version.to_le_bytes());
        let checksum = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Checks that bytes begin like a file that this release can read.
    pub(crate) fn check_head(&self, bytes: &[u8]) -> Result<(), Bad> {
        let bad = |offset, reason| Err(Bad::Bytes { offset, reason });
        if bytes.len() < VERSION_BYTES {
            return bad(bytes.len(), "the file is too short");
        }
        if bytes[..8] != self.magic || crc32c::crc32c(&bytes[..12]) != u32_at(bytes, 12) {
            return bad(0, "the checksum of the version does not match");
        }
        match u32_at(bytes, 8) {
            0 => bad(8, "the version is 0"),
            version if version > self.version => Err(Bad::Newer(version)),
            _ => Ok(()),
        }
    }

    /// Makes a file whose body `write` appends.
    pub(crate) fn seal(&self, write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut bytes = self.head();
        bytes.extend_from_slice(&[0; HEAD_BYTES - VERSION_BYTES]);
        write(&mut bytes);
        let length = (bytes.len() - HEAD_BYTES) as u32;
        bytes[VERSION_BYTES..HEAD_BYTES].copy_from_slice(&length.to_le_bytes());
        let checksum = crc32c::crc32c(&bytes[VERSION_BYTES..]);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Makes a file with any body, to test how invalid contents with valid checksums are handled.
    pub(crate) fn seal_bytes(&self, body: &[u8]) -> Vec<u8> {
        self.seal(|bytes| bytes.extend_from_slice(body))
    }

    /// Checks a file and reads its whole body with `read`.
    pub(crate) fn unseal<T>(
        &self,
        bytes: &[u8],
        read: impl FnOnce(&mut Reader<'_>) -> Result<T, Bad>,
    ) -> Result<T, Bad> {
        let bad = |offset, reason| Err(Bad::Bytes { offset, reason });
        if bytes.len() < HEAD_BYTES + 4 {
            return bad(bytes.len(), "the file is too short");
        }
        self.check_head(bytes)?;
        let end = bytes.len() - 4;
        if u32_at(bytes, VERSION_BYTES) as usize != end - HEAD_BYTES {
            return bad(VERSION_BYTES, "the length does not match the file");
        }
        if crc32c::crc32c(&bytes[VERSION_BYTES..end]) != u32_at(bytes, end) {
            return bad(VERSION_BYTES, "the checksum does not match");
        }
        let mut reader = Reader {
            bytes: &bytes[..end],
            at: HEAD_BYTES,
        };
        let read = read(&mut reader)?;
        if reader.at == end {
            Ok(read)
        } else {
            Err(reader.bad("there are bytes after the last part"))
        }
    }
}

impl Bad {
    /// The error for a file. If the version is newer, the error names `thing`.
    pub(crate) fn of(self, kind: &Kind, path: &Path, thing: &Path) -> Error {
        match self {
            Bad::Bytes { offset, reason } => Error::corrupt_file(path, offset as u64, reason),
            Bad::Newer(found) => Error::NewerFormat {
                path: thing.to_owned(),
                found,
                supported: kind.version,
            },
        }
    }
}

/// Reads a body from front to back.
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// The offset from the start of the file.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// The number of bytes left.
    pub(crate) fn rest(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Bad> {
        self.take(4).map(|bytes| u32_at(bytes, 0))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Bad> {
        self.take(8).map(|bytes| u64_at(bytes, 0))
    }

    /// Reads bytes preceded by their length.
    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], Bad> {
        let len = self.u32()? as usize;
        self.take(len)
    }

    /// Reads text preceded by its length.
    pub(crate) fn text(&mut self) -> Result<&'a str, Bad> {
        let bytes = self.bytes()?;
        std::str::from_utf8(bytes).map_err(|_| self.bad("a name is not UTF-8"))
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], Bad> {
        match self.bytes.get(self.at..).and_then(|rest| rest.get(..len)) {
            Some(bytes) => {
                self.at += len;
                Ok(bytes)
            }
            None => Err(self.bad("it ends early")),
        }
    }

    /// Reports what is wrong at the current offset.
    pub(crate) fn bad(&self, reason: &'static str) -> Bad {
        Bad::Bytes {
            offset: self.at,
            reason,
        }
    }
}

pub(crate) fn put_u32(bytes: &mut Vec<u8>, value: usize) {
    // These are counts and lengths of things in memory; no store has 2^32 runs.
    bytes.extend_from_slice(&(value as u32).to_le_bytes());
}

pub(crate) fn put_u64(bytes: &mut Vec<u8>, value: u64) {
    bytes.extend_from_slice(&value.to_le_bytes());
}

pub(crate) fn put_bytes(bytes: &mut Vec<u8>, value: &[u8]) {
    put_u32(bytes, value.len());
    bytes.extend_from_slice(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: Kind = Kind {
        magic: *b"FORETEST",
        version: 3,
    };

    fn read(bytes: &[u8]) -> Result<(u64, String), Bad> {
        KIND.unseal(bytes, |reader| Ok((reader.u64()?, reader.text()?.into())))
    }

    #[test]
    fn a_body_round_trips_and_every_flipped_bit_is_detected() {
        let good = KIND.seal(|bytes| {
            put_u64(bytes, 77);
            put_bytes(bytes, b"name");
        });
        assert_eq!(read(&good), Ok((77, "name".into())));
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&bad).is_err(), "bit {bit}");
        }
        for len in 0..good.len() {
            assert!(read(&good[..len]).is_err(), "cut to {len}");
        }
    }

    #[test]
    fn older_versions_are_read_and_newer_ones_reported() {
        let body = [&9_u64.to_le_bytes()[..], &0_u32.to_le_bytes()].concat();
        let of = |version| Kind { version, ..KIND }.seal_bytes(&body);
        assert_eq!(read(&of(2)), Ok((9, String::new())));
        assert_eq!(read(&of(4)), Err(Bad::Newer(4)));
        assert!(matches!(read(&of(0)), Err(Bad::Bytes { offset: 8, .. })));
        for body in [&body[..11], &[&body[..], b"x"].concat()] {
            assert!(read(&KIND.seal_bytes(body)).is_err(), "{body:?}");
        }
    }
}
