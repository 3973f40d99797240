//! Finds good records at any offset of a segment, in time linear in its length, whatever it holds.
//!
//! ```text
//!   sums      0 │ 4 KiB │ 8 KiB │ …        checksum of everything before each block, once per segment
//!   payload         ├───────────┤          checksum = sum at its end − sum at its start, shifted by its length
//! ```
//!
//! Lengths on the way to the next good record cannot be trusted: users may store anything, also
//! millions of headers whose payloads overlap. The checksum of a payload therefore comes from sums
//! over the segment, and takes the same time however long the payload is.

use std::io;
use std::ops::Range;

use super::log_file;
use super::record::{self, HEADER_BYTES, Record, SyncedBefore};
use super::segment_bytes::SegmentBytes;
use crate::bytes::u64_at;
use crate::io::IoFile;
use crate::io::reads::read_exact_at;

/// Bytes from one sum to the next.
const BLOCK_BYTES: usize = 4 << 10;

/// Bytes that are searched together.
const PIECE_BYTES: usize = 64 << 10;

/// The polynomial of crc32c. The highest bit is the coefficient of x^0.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// A search of one segment. Records are good with the segment's salt only.
pub(crate) struct RecordSearch<'f> {
    file: &'f dyn IoFile,
    segment: SegmentBytes<'f>,
    salt: u32,
    /// Made when the first header looks good.
    sums: Option<Sums<'f>>,
    /// A good record here says that everything before it was durable.
    proof: Option<usize>,
}

impl<'f> RecordSearch<'f> {
    /// Of the bytes that a file has now.
    pub(crate) fn new(file: &'f dyn IoFile, salt: u32) -> io::Result<RecordSearch<'f>> {
        Ok(RecordSearch {
            file,
            segment: SegmentBytes::new(file)?,
            salt,
            sums: None,
            proof: None,
        })
    }

    /// The segment's bytes.
    pub(crate) fn segment(&mut self) -> &mut SegmentBytes<'f> {
        &mut self.segment
    }

    /// The record at an offset, or what is wrong with it.
    pub(crate) fn record(&mut self, offset: usize) -> io::Result<Result<Record<'_>, &'static str>> {
        // After bad bytes, more may follow, and each bad record may state any length.
        if self.sums.is_some() {
            let (header, bytes) = match self.segment.header(offset)? {
                Ok(header) => header,
                Err(reason) => return Ok(Err(reason)),
            };
            let payload = self.checksum(offset + HEADER_BYTES..offset + header.record_bytes())?;
            if !header.matches(&bytes, payload, self.salt, offset) {
                return Ok(Err(record::BAD_CHECKSUM));
            }
        }
        self.segment.record(offset, self.salt)
    }

    /// Where the first good record at or after `from` begins whose sequence number is `sequence` or
    /// higher.
    ///
    /// It tries every offset. The sequence number of a later record of the same file is higher by
    /// less than the file's length in bytes; this check rejects nearly all offsets at once.
    pub(crate) fn find(&mut self, mut from: usize, sequence: u64) -> io::Result<Option<usize>> {
        let len = self.segment.len();
        let plausible = sequence..=sequence.saturating_add(len as u64);
        while from + HEADER_BYTES <= len {
            let end = len.min(from + PIECE_BYTES);
            let piece = self.segment.get(from..end)?;
            let places = 0..=piece.len() - HEADER_BYTES;
            let is_plausible = |&at: &usize| plausible.contains(&u64_at(&piece[at..], 8));
            let candidate = places.clone().filter(is_plausible).find_map(|at| {
                let header = record::Header::decode(&piece[at..]).ok()?;
                let end = from + at + header.record_bytes();
                (end <= len).then(|| (from + at, end, header, piece[at..][..HEADER_BYTES].to_vec()))
            });
            let Some((offset, end, header, bytes)) = candidate else {
                from += places.count();
                continue;
            };
            let payload = self.checksum(offset + HEADER_BYTES..end)?;
            if header.matches(&bytes, payload, self.salt, offset)
                && self.segment.record(offset, self.salt)?.is_ok()
            {
                return Ok(Some(offset));
            }
            from = offset + 1;
        }
        Ok(None)
    }

    /// Whether a good record at or after `from` says that everything before it was durable.
    pub(crate) fn proves_durable(&mut self, from: usize, sequence: u64) -> io::Result<bool> {
        if self.proof.is_none_or(|proof| proof < from) {
            let Some(proof) = self.find_flagged(from, sequence, |flags| flags.all)? else {
                return Ok(false);
            };
            self.proof = Some(proof);
        }
        Ok(true)
    }

    /// Whether any good record says that every earlier segment was durable. The segment begins at
    /// `sequence`.
    pub(crate) fn proves_earlier_durable(&mut self, sequence: u64) -> io::Result<bool> {
        let proof = self.find_flagged(log_file::HEADER_BYTES, sequence, |flags| flags.segments)?;
        Ok(proof.is_some())
    }

    /// Where the first good record at or after `from` with such flags begins.
    fn find_flagged(
        &mut self,
        mut from: usize,
        mut sequence: u64,
        is_wanted: fn(SyncedBefore) -> bool,
    ) -> io::Result<Option<usize>> {
        while let Some(offset) = self.find(from, sequence)? {
            let Ok(record) = self.record(offset)? else {
                break;
            };
            if is_wanted(record.synced_before) {
                return Ok(Some(offset));
            }
            (from, sequence) = (record.end, record.last_sequence() + 1);
        }
        Ok(None)
    }

    /// The checksum of a part of the segment.
    fn checksum(&mut self, range: Range<usize>) -> io::Result<u32> {
        let sums = match &mut self.sums {
            Some(sums) => sums,
            none => none.insert(Sums::new(self.file, &mut self.segment)?),
        };
        sums.of(range)
    }
}

/// Checksums of the beginnings of a segment.
struct Sums<'f> {
    file: &'f dyn IoFile,
    /// Of what is before each block.
    sums: Vec<u32>,
    /// x^8, x^16, x^32, ..., each the square of the one before: they shift a checksum by 1, 2, 4,
    /// ... bytes.
    powers: [u32; usize::BITS as usize],
    #[cfg(test)]
    hashed_bytes: usize,
}

impl<'f> Sums<'f> {
    fn new(file: &'f dyn IoFile, segment: &mut SegmentBytes<'f>) -> io::Result<Sums<'f>> {
        let (mut sum, mut sums) = (0, Vec::new());
        for begin in (0..=segment.len()).step_by(BLOCK_BYTES) {
            sums.push(sum);
            let block = segment.get(begin..segment.len().min(begin + BLOCK_BYTES))?;
            sum = crc32c::crc32c_append(sum, block);
        }
        let mut power = 1 << 23;
        Ok(Sums {
            file,
            sums,
            powers: std::array::from_fn(|_| {
                let of = power;
                power = multiply(power, power);
                of
            }),
            #[cfg(test)]
            hashed_bytes: segment.len(),
        })
    }

    /// The checksum of some bytes.
    fn of(&mut self, range: Range<usize>) -> io::Result<u32> {
        // For short ranges, this is faster.
        if range.len() <= BLOCK_BYTES {
            return self.append(0, range);
        }
        let mut shifted = self.before(range.start)?;
        for (bit, &power) in self.powers.iter().enumerate() {
            if range.len() >> bit & 1 == 1 {
                shifted = multiply(shifted, power);
            }
        }
        Ok(self.before(range.end)? ^ shifted)
    }

    /// The checksum of everything before an offset.
    fn before(&mut self, offset: usize) -> io::Result<u32> {
        let block = offset / BLOCK_BYTES;
        self.append(self.sums[block], block * BLOCK_BYTES..offset)
    }

    /// Continues a checksum over at most a block.
    fn append(&mut self, sum: u32, range: Range<usize>) -> io::Result<u32> {
        #[cfg(test)]
        {
            self.hashed_bytes += range.len();
        }
        let mut bytes = [0; BLOCK_BYTES];
        let bytes = &mut bytes[..range.len()];
        read_exact_at(self.file, bytes, range.start as u64)?;
        Ok(crc32c::crc32c_append(sum, bytes))
    }
}

/// The product of two polynomials modulo the one of crc32c.
fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    for bit in (0..u32::BITS).rev() {
        if a >> bit & 1 == 1 {
            product ^= b;
        }
        // b times x
        b = b >> 1 ^ if b & 1 == 1 { POLYNOMIAL } else { 0 };
    }
    product
}

/// Where [`RecordSearch::find`] finds a record in these bytes, and its sequence number.
#[cfg(test)]
pub(super) fn find_in(bytes: &[u8], salt: u32, from: usize, sequence: u64) -> Option<(usize, u64)> {
    let file = tests::file(bytes);
    let mut search = RecordSearch::new(&*file, salt).unwrap();
    let offset = search.find(from, sequence).unwrap()?;
    let record = search.record(offset).unwrap().unwrap();
    Some((offset, record.first_sequence))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WriteBatch;
    use crate::io::fault::FaultIo;
    use crate::io::{Io, OpenMode};
    use forerun_core::split_mix64;

    const SALT: u32 = 77;

    pub(super) fn file(bytes: &[u8]) -> Box<dyn IoFile> {
        let io = FaultIo::new();
        io.write("/segment", bytes);
        io.open("/segment".as_ref(), OpenMode::Read).unwrap()
    }

    #[test]
    fn sums_give_the_checksum_of_any_range() {
        let mut random = 1;
        for len in [1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 50_000] {
            let bytes: Vec<u8> = (0..len).map(|_| split_mix64(&mut random) as u8).collect();
            let file = file(&bytes);
            let mut sums = Sums::new(&*file, &mut SegmentBytes::new(&*file).unwrap()).unwrap();
            for _ in 0..200 {
                let start = split_mix64(&mut random) as usize % (len + 1);
                let end = start + split_mix64(&mut random) as usize % (len + 1 - start);
                let wanted = crc32c::crc32c(&bytes[start..end]);
                assert_eq!(
                    sums.of(start..end).unwrap(),
                    wanted,
                    "{start}..{end} of {len}"
                );
            }
            assert_eq!(sums.of(0..len).unwrap(), crc32c::crc32c(&bytes));
        }
    }

    fn append(segment: &mut Vec<u8>, sequence: u64, value: &[u8], synced_before: bool) {
        let mut batch = WriteBatch::new();
        batch.put("key", value).unwrap();
        let mut group = Vec::new();
        let checksum = crc32c::crc32c(batch.encoded());
        record::begin(&mut group, batch.encoded(), checksum, 1);
        let offset = segment.len() as u64;
        let synced_before = SyncedBefore {
            segments: synced_before,
            all: synced_before,
        };
        record::seal(&mut group, offset, SALT, sequence, synced_before, 1_000);
        segment.extend(group);
    }

    /// A segment whose first two records are damaged; the second has a value full of headers. The
    /// third is good. Each header's payload would reach to the end of the value.
    fn hostile_segment(headers: usize) -> Vec<u8> {
        let mut value = Vec::new();
        for n in 0..headers {
            let len = (headers - n - 1) * HEADER_BYTES;
            let mut header = [0; HEADER_BYTES];
            header[4..8].copy_from_slice(&(len as u32).to_le_bytes());
            header[8..16].copy_from_slice(&2_u64.to_le_bytes());
            header[16] = 1;
            value.extend(header);
        }
        let mut segment = Vec::new();
        append(&mut segment, 1, b"", false);
        let second = segment.len();
        append(&mut segment, 2, &value, false);
        append(&mut segment, 3, b"", false);
        segment[0] ^= 1;
        segment[second] ^= 1;
        segment
    }

    #[test]
    fn searching_values_full_of_headers_takes_work_in_proportion_to_their_length() {
        let hashed = |headers| {
            let segment = hostile_segment(headers);
            let file = file(&segment);
            let mut search = RecordSearch::new(&*file, SALT).unwrap();
            let found = search.find(0, 1).unwrap().unwrap();
            let record = search.record(found).unwrap().unwrap();
            assert_eq!((record.first_sequence, record.end), (3, segment.len()));
            search.sums.unwrap().hashed_bytes
        };
        let (few, many) = (hashed(1_000), hashed(4_000));
        assert!(few > 2_000 * HEADER_BYTES, "headers are tried: {few}");
        assert!(many <= 5 * few, "{few} bytes hashed, then {many}");
    }

    #[test]
    fn reading_on_after_bad_records_takes_work_in_proportion_to_the_segments_length() {
        let checked = |pairs: u64| {
            let mut record = Vec::new();
            append(&mut record, 1, b"", false);
            let end = pairs as usize * (HEADER_BYTES + record.len());
            // Before each good record is a bad one that would reach to the end.
            let mut segment = Vec::new();
            for sequence in 1..=pairs {
                let mut header = [0; HEADER_BYTES];
                let len = end - segment.len() - HEADER_BYTES;
                header[4..8].copy_from_slice(&(len as u32).to_le_bytes());
                header[8..16].copy_from_slice(&sequence.to_le_bytes());
                header[16] = 1;
                segment.extend(header);
                append(&mut segment, sequence, b"", false);
            }
            assert_eq!(segment.len(), end);
            let file = file(&segment);
            let mut search = RecordSearch::new(&*file, SALT).unwrap();
            let (mut offset, mut sequence) = (0, 1);
            while offset < end {
                if let Ok(record) = search.record(offset).unwrap() {
                    (offset, sequence) = (record.end, record.last_sequence() + 1);
                } else {
                    offset = search.find(offset, sequence).unwrap().unwrap();
                }
            }
            assert_eq!(sequence, pairs + 1);
            search.segment.checked_bytes + search.sums.unwrap().hashed_bytes
        };
        let (few, many) = (checked(500), checked(2_000));
        assert!(many <= 5 * few, "{few} bytes checked, then {many}");
    }

    #[test]
    fn later_records_prove_what_was_durable() {
        let mut segment = Vec::new();
        for n in 0..6 {
            append(&mut segment, 1 + n, b"value", n == 4);
        }
        let len = segment.len() / 6;
        let proves = |segment: &[u8], places: &[usize]| {
            let file = file(segment);
            let mut search = RecordSearch::new(&*file, SALT).unwrap();
            let of = |&n: &usize| search.proves_durable(n * len, 1 + n as u64).unwrap();
            places.iter().map(of).collect::<Vec<bool>>()
        };
        // The fifth is flagged, and says nothing about itself.
        assert_eq!(
            proves(&segment, &[5, 1, 3, 4, 5]),
            [false, true, true, true, false]
        );
        segment[4 * len + 8] ^= 1;
        assert_eq!(
            proves(&segment, &[1]),
            [false],
            "a bad record proves nothing"
        );
        assert_eq!(
            find_in(&segment, SALT, 0, 7),
            None,
            "no record is that late"
        );
    }

    #[test]
    fn a_record_at_the_end_or_across_pieces_is_found() {
        for lead in [
            0,
            1,
            PIECE_BYTES - 1,
            PIECE_BYTES - HEADER_BYTES,
            PIECE_BYTES - 10,
        ] {
            let mut segment = vec![0xff; lead];
            append(&mut segment, 5, b"", false);
            assert_eq!(find_in(&segment, SALT, 0, 5), Some((lead, 5)), "{lead}");
            let mut segment = vec![0xff; lead];
            let mut group = Vec::new();
            record::begin_ingestion(&mut group);
            record::seal(
                &mut group,
                lead as u64,
                SALT,
                5,
                SyncedBefore::default(),
                1_000,
            );
            segment.extend(group);
            assert_eq!(
                find_in(&segment, SALT, 0, 5),
                Some((lead, 5)),
                "an ingestion: {lead}"
            );
        }
    }
}
