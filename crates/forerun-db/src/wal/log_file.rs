//! A segment of the log: its name and its header.
//!
//! ```text
//!  0        8        16               24     28         32
//! ┌────────┬────────┬────────────────┬──────┬──────────┐
//! │ magic  │ number │ first_sequence │ salt │ checksum │ records ...
//! └────────┴────────┴────────────────┴──────┴──────────┘
//! checksum = crc32c(bytes 0..28)
//! ```

use std::path::{Path, PathBuf};

use forerun_core::sync::random_seed;

use crate::Result;
use crate::bytes::{u32_at, u64_at};

/// Bytes before the first record.
pub(crate) const HEADER_BYTES: usize = 32;

const MAGIC: [u8; 8] = *b"FORE-WAL";

/// The contents of a segment's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// The number in the file's name.
    pub(crate) number: u64,
    /// Sequence number of the first operation in the segment.
    pub(crate) first_sequence: u64,
    /// A random number that enters the checksum of each record.
    pub(crate) salt: u32,
}

impl Header {
    /// The header of a new segment, with a salt of its own.
    pub(crate) fn new(number: u64, first_sequence: u64) -> Header {
        // It must be a number that no outsider can guess.
        let salt = random_seed() as u32;
        Header {
            number,
            first_sequence,
            salt,
        }
    }

    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.first_sequence.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.salt.to_le_bytes());
        let checksum = crc32c::crc32c(&bytes[..28]);
        bytes[28..32].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads the header at the start of a segment, or reports what is wrong with it.
    pub(crate) fn decode(segment: &[u8]) -> Result<Header, &'static str> {
        let bytes = segment
            .get(..HEADER_BYTES)
            .ok_or("the segment's header is incomplete")?;
        if bytes[..8] != MAGIC {
            return Err("this is not a log segment");
        }
        if crc32c::crc32c(&bytes[..28]) != u32_at(bytes, 28) {
            return Err("the checksum of the segment's header does not match");
        }
        Ok(Header {
            number: u64_at(bytes, 8),
            first_sequence: u64_at(bytes, 16),
            salt: u32_at(bytes, 24),
        })
    }
}

/// The path of a segment.
pub(crate) fn path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("wal-{number:06}.log"))
}

/// The number in a segment's name; `None` if the name is not a segment's.
pub(crate) fn number(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("wal-")?.strip_suffix(".log")?;
    let number = digits.parse().ok()?;
    // Accept only the form that `path` writes: no sign, no missing or extra zeros.
    (number > 0 && format!("{number:06}") == digits).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_gives_its_number_back() {
        for n in [1, 42, 999_999, 1_000_000, u64::MAX] {
            let path = path(Path::new("dir"), n);
            assert_eq!(number(path.file_name().unwrap().to_str().unwrap()), Some(n));
        }
        for other in [
            "wal-1.log",
            "wal-+00001.log",
            "wal-000000.log",
            "wal-0000001.log",
            "wal-000001.log.new",
            "LOCK",
        ] {
            assert_eq!(number(other), None, "{other}");
        }
    }

    #[test]
    fn a_header_is_read_back_and_any_changed_bit_is_seen() {
        let header = Header::new(3, 500);
        let good = header.encode();
        assert_eq!(Header::decode(&good), Ok(header));
        for bit in 0..good.len() * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::decode(&bad).is_err(), "bit {bit}");
        }
        assert!(Header::decode(&good[..31]).is_err());
    }

    #[test]
    fn salts_differ() {
        let salts: Vec<u32> = (0..8).map(|_| Header::new(1, 1).salt).collect();
        assert!(salts.iter().any(|salt| *salt != salts[0]), "{salts:?}");
    }
}
