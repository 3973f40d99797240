//! A backup's record: the file that names the backup and everything it consists of.
//!
//! ```text
//!  0      20       28        36             40
//! ┌──────┬────────┬─────────┬──────────────┬──────────┬──────┬──────────────────┬──────────┐
//! │ head │ number │ created │ manifest_len │ manifest │ runs │ runs × checksum  │ checksum │
//! └──────┴────────┴─────────┴──────────────┴──────────┴──────┴──────────────────┴──────────┘
//! ```
//!
//! `docs/internals/format-other.md` defines it. The manifest names the runs; the checksums cover
//! all bytes of their files.

use crate::sealed::{Bad, Kind, put_bytes, put_u32, put_u64};
use crate::tree::manifest::{Manifest, RunRecord};

pub(crate) const KIND: Kind = Kind {
    magic: *b"FOREBACK",
    version: 1,
};

/// The contents of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// The backup's number, which is also in the file's name.
    pub(super) number: u64,
    /// When it was made, in seconds since 1970.
    pub(super) created_unix: u64,
    /// The store's manifest at that moment. The runs hold everything, so a backup has no log.
    pub(crate) manifest: Manifest,
    /// The XXH3 hash of each run file, in the manifest's order.
    pub(crate) checksums: Vec<u64>,
}

impl Record {
    /// The runs, each with the checksum of its file.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (&RunRecord, u64)> {
        self.manifest.runs().zip(self.checksums.iter().copied())
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        KIND.seal(|bytes| {
            put_u64(bytes, self.number);
            put_u64(bytes, self.created_unix);
            put_bytes(bytes, &self.manifest.encode());
            put_u32(bytes, self.checksums.len());
            for checksum in &self.checksums {
                put_u64(bytes, *checksum);
            }
        })
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Record, Bad> {
        KIND.unseal(bytes, |reader| {
            let number = reader.u64()?;
            let created_unix = reader.u64()?;
            let encoded = reader.bytes()?;
            let start = reader.at() - encoded.len();
            let manifest = Manifest::decode(encoded).map_err(|bad| within(bad, start))?;
            let runs = reader.u32()? as usize;
            if runs != manifest.runs().count() {
                return Err(reader.bad("it does not have one checksum for each run"));
            }
            let checksums = (0..runs).map(|_| reader.u64());
            Ok(Record {
                number,
                created_unix,
                manifest,
                checksums: checksums.collect::<Result<_, _>>()?,
            })
        })
    }
}

/// The problem in the part of a file that begins at `start`.
fn within(bad: Bad, start: usize) -> Bad {
    match bad {
        Bad::Bytes { offset, reason } => Bad::Bytes {
            offset: start + offset,
            reason,
        },
        Bad::Newer(_) => Bad::Bytes {
            offset: start,
            reason: "the manifest in it is of a newer version",
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::fuzz;

    fn sample() -> Record {
        let run = |number| RunRecord {
            number,
            bytes: number * 1000,
            checksum: !number,
        };
        let mut manifest = Manifest::new("forerun.bytewise");
        manifest.next_run = 10;
        manifest.flushed_sequence = 77;
        manifest.keyspaces[0].levels[0] = vec![run(9)];
        manifest.keyspaces[0].levels[6] = vec![run(3), run(4)];
        Record {
            number: 12,
            created_unix: 1_700_000_000,
            manifest,
            checksums: vec![1, u64::MAX, 3],
        }
    }

    #[test]
    fn a_record_round_trips_and_every_flipped_bit_is_detected() {
        let good = sample().encode();
        assert_eq!(Record::decode(&good), Ok(sample()));
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Record::decode(&bad).is_err(), "bit {bit}");
        }
        for len in 0..good.len() {
            assert!(Record::decode(&good[..len]).is_err(), "cut to {len}");
        }
    }

    #[test]
    fn contradictory_contents_with_valid_checksums_are_refused() {
        let body = |of: &Record| of.encode()[20..of.encode().len() - 4].to_vec();
        let mut few = sample();
        few.checksums.pop();
        assert!(Record::decode(&few.encode()).is_err());
        // A bad bit in the manifest, after its own checksum. Its offset counts from the start of
        // the file.
        let mut bytes = body(&sample());
        bytes[20 + 30] ^= 1;
        let Err(Bad::Bytes { offset, .. }) = Record::decode(&KIND.seal_bytes(&bytes)) else {
            panic!("it is read");
        };
        assert!(offset >= 40, "{offset}");
        // A count that would take all memory.
        let mut bytes = body(&sample());
        let at = bytes.len() - 28;
        bytes[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(Record::decode(&KIND.seal_bytes(&bytes)).is_err());
        let encoded = sample().manifest.encode();
        let manifest_body = &encoded[20..encoded.len() - 4];
        let around = [
            &body(&sample())[..16],
            &body(&sample())[20 + encoded.len()..],
        ]
        .concat();
        assert_eq!(fuzz::backup_record(&around, manifest_body), 3);
    }
}
