//! `CLOSED`: where the log ended when the store was closed.
//!
//! ```text
//!  0       8         16       24              32
//! ┌───────┬─────────┬────────┬───────────────┬──────────┐
//! │ magic │ segment │ length │ last_sequence │ checksum │
//! └───────┴─────────┴────────┴───────────────┴──────────┘
//! checksum = crc32c(bytes 0..32)
//! ```

use crate::Result;
use crate::bytes::{u32_at, u64_at};

/// Name of the file.
pub(crate) const NAME: &str = "CLOSED";

const BYTES: usize = 36;
const MAGIC: [u8; 8] = *b"FORE-END";

/// The contents of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CleanShutdown {
    /// Number of the last segment; 0 if there was none.
    pub(crate) segment: u64,
    /// Its length in bytes.
    pub(crate) len_bytes: u64,
    /// Sequence number of the last operation in the log.
    pub(crate) last_sequence: u64,
}

impl CleanShutdown {
    pub(crate) fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[0..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.segment.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.len_bytes.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.last_sequence.to_le_bytes());
        let checksum = crc32c::crc32c(&bytes[..32]);
        bytes[32..36].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<CleanShutdown, &'static str> {
        if bytes.len() != BYTES {
            return Err("it is not 36 bytes long");
        }
        if bytes[..8] != MAGIC || crc32c::crc32c(&bytes[..32]) != u32_at(bytes, 32) {
            return Err("its checksum does not match");
        }
        Ok(CleanShutdown {
            segment: u64_at(bytes, 8),
            len_bytes: u64_at(bytes, 16),
            last_sequence: u64_at(bytes, 24),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_round_trips_and_every_flipped_bit_is_detected() {
        let shutdown = CleanShutdown {
            segment: 2,
            len_bytes: 700,
            last_sequence: 31,
        };
        let good = shutdown.encode();
        assert_eq!(CleanShutdown::decode(&good), Ok(shutdown));
        for bit in 0..good.len() * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(CleanShutdown::decode(&bad).is_err(), "bit {bit}");
        }
    }
}
