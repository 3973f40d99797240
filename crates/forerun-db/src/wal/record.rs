//! One record of the log: a batch of writes and its checksum.
//!
//! ```text
//!  0          4        8          16      20      24        28
//! ┌──────────┬────────┬──────────┬───────┬───────┬─────────┬─────────┐
//! │ checksum │ length │ sequence │ count │ flags │ written │ payload │
//! └──────────┴────────┴──────────┴───────┴───────┴─────────┴─────────┘
//! checksum = crc32c(payload ‖ bytes 4..28 ‖ salt of the segment ‖ offset in the file)
//! ```
//!
//! A writer makes a record in two steps. [`begin`] writes it with the payload's checksum in place
//! of the record's. When the writer's turn comes, [`seal`] fills in the rest: the sequence number,
//! the flags, the time, and the checksum, which continues the payload's.

use crate::bytes::{u32_at, u64_at};
use crate::ops::Ops;
use crate::{BATCH_BYTES_MAX, Result};

/// Bytes before the payload.
pub(crate) const HEADER_BYTES: usize = 28;

/// The first sequence number that is out of range: entries in memory use the other 8 bits of the
/// word.
pub(crate) const SEQUENCE_END: u64 = 1 << 56;

/// Every byte of the log before this record was on stable storage when it was written.
const SYNCED_BEFORE: u32 = 1;

/// The record has no operations: it only reserves the sequence number of an ingestion. If the
/// ingestion succeeded, its entries are in runs.
const INGESTION: u32 = 2;

/// Every earlier segment was on stable storage as a whole when this record was written.
const SEGMENTS_SYNCED: u32 = 4;

/// What is wrong with a record that does not end within its segment.
pub(crate) const INCOMPLETE: &str = "the record is incomplete";

/// What is wrong with a record whose bytes were changed.
pub(crate) const BAD_CHECKSUM: &str = "the record's checksum does not match";

/// What was on stable storage when a record was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SyncedBefore {
    /// Every earlier segment.
    pub(crate) segments: bool,
    /// Every byte of the log before the record.
    pub(crate) all: bool,
}

impl SyncedBefore {
    fn flags(self) -> u32 {
        (u32::from(self.all) * SYNCED_BEFORE) | (u32::from(self.segments) * SEGMENTS_SYNCED)
    }

    fn of(flags: u32) -> SyncedBefore {
        let all = flags & SYNCED_BEFORE != 0;
        SyncedBefore {
            segments: all || flags & SEGMENTS_SYNCED != 0,
            all,
        }
    }
}

/// A good record, in the bytes of its segment.
#[derive(Clone, Debug)]
pub(crate) struct Record<'a> {
    /// Where it begins in the file.
    pub(crate) offset: usize,
    /// Where it ends.
    pub(crate) end: usize,
    /// Sequence number of its first operation.
    pub(crate) first_sequence: u64,
    /// How many sequence numbers it takes, at least 1: one for each operation; one for an
    /// ingestion, which has none.
    pub(crate) count: u32,
    /// What was durable when it was written.
    pub(crate) synced_before: SyncedBefore,
    /// Whether it only reserves the sequence number of an ingestion.
    pub(crate) is_ingestion: bool,
    /// When it was written, in seconds since 1970.
    pub(crate) written: u32,
    /// Its operations.
    pub(crate) ops: Ops<'a>,
    /// The greatest keyspace number among them.
    pub(crate) greatest_keyspace: u32,
}

impl Record<'_> {
    /// Sequence number of the last operation.
    pub(crate) fn last_sequence(&self) -> u64 {
        self.first_sequence + u64::from(self.count) - 1
    }
}

/// Appends an unsealed record to `out`. `payload_checksum` is `crc32c(payload)`.
pub(crate) fn begin(out: &mut Vec<u8>, payload: &[u8], payload_checksum: u32, count: u32) {
    debug_assert!(payload.len() <= BATCH_BYTES_MAX && count > 0);
    let mut header = [0; HEADER_BYTES];
    header[0..4].copy_from_slice(&payload_checksum.to_le_bytes());
    header[4..8].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    header[16..20].copy_from_slice(&count.to_le_bytes());
    out.reserve(HEADER_BYTES + payload.len());
    out.extend_from_slice(&header);
    out.extend_from_slice(payload);
}

/// Appends the unsealed record of an ingestion to `out`.
pub(crate) fn begin_ingestion(out: &mut Vec<u8>) {
    let at = out.len();
    begin(out, &[], crc32c::crc32c(&[]), 1);
    out[at + 20..at + 24].copy_from_slice(&INGESTION.to_le_bytes());
}

/// Seals the unsealed records of `group`, which will start at `offset` and are written in the
/// second `written`. Returns the sequence number after the last.
///
/// `synced_before` is set on the first of them only: the records before the others are not synced
/// yet.
pub(crate) fn seal(
    group: &mut [u8],
    mut offset: u64,
    salt: u32,
    mut sequence: u64,
    synced_before: SyncedBefore,
    written: u32,
) -> u64 {
    let mut rest = group;
    let mut flags = synced_before.flags();
    while !rest.is_empty() {
        let len = HEADER_BYTES + u32_at(rest, 4) as usize;
        let (record, after) = rest.split_at_mut(len);
        record[8..16].copy_from_slice(&sequence.to_le_bytes());
        let flags_and_kind = flags | u32_at(record, 20);
        record[20..24].copy_from_slice(&flags_and_kind.to_le_bytes());
        record[24..28].copy_from_slice(&written.to_le_bytes());
        let checksum = checksum(u32_at(record, 0), record, salt, offset);
        record[0..4].copy_from_slice(&checksum.to_le_bytes());
        sequence += u64::from(u32_at(record, 16));
        offset += len as u64;
        flags = 0;
        rest = after;
    }
    sequence
}

/// What precedes the payload of a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    checksum: u32,
    payload_bytes: usize,
    pub(crate) first_sequence: u64,
    count: u32,
    flags: u32,
    written: u32,
}

impl Header {
    /// Reads the header at the beginning of `bytes`, or reports what is wrong with it.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Header, &'static str> {
        if bytes.len() < HEADER_BYTES {
            return Err("the record's header is incomplete");
        }
        let header = Header {
            checksum: u32_at(bytes, 0),
            payload_bytes: u32_at(bytes, 4) as usize,
            first_sequence: u64_at(bytes, 8),
            count: u32_at(bytes, 16),
            flags: u32_at(bytes, 20),
            written: u32_at(bytes, 24),
        };
        let is_sound = if header.is_ingestion() {
            header.payload_bytes == 0 && header.count == 1
        } else {
            header.payload_bytes <= BATCH_BYTES_MAX && header.count > 0
        };
        let unknown = header.flags & !(SYNCED_BEFORE | INGESTION | SEGMENTS_SYNCED);
        if !is_sound || header.first_sequence == 0 || unknown != 0 {
            return Err("the record's header makes no sense");
        }
        if header
            .first_sequence
            .checked_add(u64::from(header.count))
            .is_none_or(|end| end > SEQUENCE_END)
        {
            return Err("the record's sequence number is too large");
        }
        Ok(header)
    }

    /// The length of the record.
    pub(crate) fn record_bytes(&self) -> usize {
        HEADER_BYTES + self.payload_bytes
    }

    /// Whether the checksum is that of this header, which begins `bytes`, and of a payload with
    /// this checksum, at this place.
    pub(crate) fn matches(
        &self,
        bytes: &[u8],
        payload_checksum: u32,
        salt: u32,
        offset: usize,
    ) -> bool {
        checksum(payload_checksum, bytes, salt, offset as u64) == self.checksum
    }

    fn is_ingestion(&self) -> bool {
        self.flags & INGESTION != 0
    }
}

/// Reads the record at the beginning of `bytes`, which is at `offset` of its segment, or reports
/// what is wrong with it.
pub(crate) fn read(bytes: &[u8], offset: usize, salt: u32) -> Result<Record<'_>, &'static str> {
    let header = Header::decode(bytes)?;
    let Some(payload) = bytes.get(HEADER_BYTES..header.record_bytes()) else {
        return Err(INCOMPLETE);
    };
    if !header.matches(bytes, crc32c::crc32c(payload), salt, offset) {
        return Err(BAD_CHECKSUM);
    }
    let is_ingestion = header.is_ingestion();
    let ops = if is_ingestion {
        0
    } else {
        header.count as usize
    };
    let Ok((ops, greatest_keyspace)) = Ops::checked(payload, ops) else {
        return Err("the record's batch is malformed");
    };
    Ok(Record {
        offset,
        end: offset + header.record_bytes(),
        first_sequence: header.first_sequence,
        count: header.count,
        synced_before: SyncedBefore::of(header.flags),
        is_ingestion,
        written: header.written,
        ops,
        greatest_keyspace,
    })
}

fn checksum(payload_checksum: u32, header: &[u8], salt: u32, offset: u64) -> u32 {
    let mut rest = [0; 36];
    rest[..24].copy_from_slice(&header[4..HEADER_BYTES]);
    rest[24..28].copy_from_slice(&salt.to_le_bytes());
    rest[28..].copy_from_slice(&offset.to_le_bytes());
    crc32c::crc32c_append(payload_checksum, &rest)
}

#[cfg(test)]
mod tests {
    use super::super::record_search::find_in;
    use super::*;
    use crate::{Op, WriteBatch};

    const SALT: u32 = 77;

    /// Everything before the record is durable.
    const ALL: SyncedBefore = SyncedBefore {
        segments: true,
        all: true,
    };

    /// Three records of 1, 2 and 1 operations after a header of 32 bytes.
    fn segment() -> Vec<u8> {
        let mut group = Vec::new();
        for keys in [&["a"][..], &["b", "c"], &["d"]] {
            let mut batch = WriteBatch::new();
            keys.iter()
                .for_each(|key| batch.put(key.as_bytes(), b"value").unwrap());
            begin(
                &mut group,
                batch.encoded(),
                crc32c::crc32c(batch.encoded()),
                keys.len() as u32,
            );
        }
        assert_eq!(seal(&mut group, 32, SALT, 10, ALL, 1_000), 14);
        [vec![0; 32], group].concat()
    }

    #[test]
    fn the_checksum_is_the_one_the_format_names() {
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn sealed_records_are_read_in_order() {
        let segment = segment();
        let mut offset = 32;
        for (first, count, synced_before) in [(10, 1, true), (11, 2, false), (13, 1, false)] {
            let record = read(&segment[offset..], offset, SALT).unwrap();
            assert_eq!(
                (
                    record.first_sequence,
                    record.count,
                    record.synced_before.all
                ),
                (first, count, synced_before)
            );
            assert_eq!(record.last_sequence(), first + u64::from(count) - 1);
            assert_eq!(record.written, 1_000);
            offset = record.end;
        }
        assert_eq!(offset, segment.len());
        let first = read(&segment[32..], 32, SALT).unwrap().ops.next();
        assert_eq!(
            first,
            Some(Op::Put {
                key: b"a",
                value: b"value"
            })
        );
    }

    #[test]
    fn the_record_of_an_ingestion_takes_a_number_and_has_no_operation() {
        let mut group = Vec::new();
        begin_ingestion(&mut group);
        begin_ingestion(&mut group);
        assert_eq!(seal(&mut group, 0, SALT, 7, ALL, 1_000), 9);
        for (offset, first, synced_before) in [(0, 7, true), (HEADER_BYTES, 8, false)] {
            let record = read(&group[offset..], offset, SALT).unwrap();
            assert_eq!(
                (
                    record.first_sequence,
                    record.last_sequence(),
                    record.synced_before.all
                ),
                (first, first, synced_before)
            );
            assert!(record.is_ingestion && record.ops.len() == 0);
        }
        for bit in 0..HEADER_BYTES * 8 {
            let mut bad = group.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&bad, 0, SALT).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn any_changed_bit_makes_the_record_bad() {
        let good = segment();
        let end = read(&good[32..], 32, SALT).unwrap().end;
        for at in 32..end {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                assert!(
                    read(&bad[32..], 32, SALT).is_err(),
                    "bit {bit} of byte {at}"
                );
                assert_eq!(find_in(&bad, SALT, 33, 10), Some((end, 11)));
            }
        }
    }

    #[test]
    fn a_record_is_valid_only_at_its_position() {
        let segment = segment();
        assert!(
            read(&segment[32..], 32, SALT + 1).is_err(),
            "another segment's salt"
        );
        let moved = [vec![0; 33], segment[32..].to_vec()].concat();
        assert!(read(&moved[33..], 33, SALT).is_err(), "another offset");
        assert_eq!(find_in(&moved, SALT, 0, 1), None);
    }
}
