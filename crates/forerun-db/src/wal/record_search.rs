//! Finds good records at any offset of a segment, in time linear in its length, whatever it holds.
//!
//! ```text
//!   sums      0 │ 256 │ 512 │ 768 │ …        checksum of everything before each block, once per segment
//!   payload        ├─────────────┤           checksum = sum at its end − sum at its start, shifted by its length
//! ```
//!
//! Lengths on the way to the next good record cannot be trusted: users may store anything, also
//! millions of headers whose payloads overlap. The checksum of a payload therefore comes from sums
//! over the segment, and takes the same time however long the payload is.

use std::cell::OnceCell;
use std::ops::Range;

use super::record::{self, HEADER_BYTES, Record};
use crate::bytes::u64_at;

/// Bytes from one sum to the next.
const BLOCK: usize = 256;

/// The polynomial of crc32c. The highest bit is the coefficient of x^0.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// A search of one segment. Records are good with the segment's salt only.
pub(crate) struct RecordSearch<'a> {
    segment: &'a [u8],
    salt: u32,
    /// Made when the first header looks good.
    sums: OnceCell<Sums<'a>>,
    /// A good record here says that everything before it was durable.
    proof: Option<usize>,
}

impl<'a> RecordSearch<'a> {
    pub(crate) fn new(segment: &'a [u8], salt: u32) -> RecordSearch<'a> {
        RecordSearch {
            segment,
            salt,
            sums: OnceCell::new(),
            proof: None,
        }
    }

    /// The first good record at or after `from` whose sequence number is `sequence` or higher.
    ///
    /// It tries every offset. The sequence number of a later record of the same file is higher by
    /// less than the file's length in bytes; this check rejects nearly all offsets at once.
    pub(crate) fn find(&self, from: usize, sequence: u64) -> Option<Record<'a>> {
        let segment = self.segment;
        let plausible = sequence..=sequence.saturating_add(segment.len() as u64);
        (from..segment.len().saturating_sub(HEADER_BYTES)).find_map(|offset| {
            if !plausible.contains(&u64_at(&segment[offset..], 8)) {
                return None;
            }
            let sums = || self.sums.get_or_init(|| Sums::new(segment));
            record::read_with(segment, offset, self.salt, |payload| sums().of(payload)).ok()
        })
    }

    /// Whether a good record at or after `from` says that everything before it was durable.
    pub(crate) fn proves_durable(&mut self, mut from: usize, mut sequence: u64) -> bool {
        while self.proof.is_none_or(|proof| proof < from) {
            let Some(record) = self.find(from, sequence) else {
                return false;
            };
            if record.synced_before {
                self.proof = Some(record.offset);
                return true;
            }
            from = record.end;
            sequence = record.last_sequence() + 1;
        }
        true
    }
}

/// Checksums of the beginnings of a segment.
struct Sums<'a> {
    bytes: &'a [u8],
    /// Of what is before each block.
    sums: Vec<u32>,
    /// x^8, x^16, x^32, ..., each the square of the one before: they shift a checksum by 1, 2, 4,
    /// ... bytes.
    powers: [u32; usize::BITS as usize],
    #[cfg(test)]
    hashed_bytes: std::cell::Cell<usize>,
}

impl<'a> Sums<'a> {
    fn new(bytes: &'a [u8]) -> Sums<'a> {
        let mut sum = 0;
        let sums = bytes.chunks(BLOCK).map(|block| {
            let before = sum;
            sum = crc32c::crc32c_append(sum, block);
            before
        });
        let mut power = 1 << 23;
        Sums {
            bytes,
            sums: sums.collect(),
            powers: std::array::from_fn(|_| {
                let of = power;
                power = multiply(power, power);
                of
            }),
            #[cfg(test)]
            hashed_bytes: std::cell::Cell::new(bytes.len()),
        }
    }

    /// The checksum of some bytes.
    fn of(&self, range: Range<usize>) -> u32 {
        // For short ranges, this is faster.
        if range.len() <= BLOCK {
            return self.append(0, range);
        }
        let shifted = (0..)
            .zip(self.powers)
            .fold(self.before(range.start), |sum, (bit, power)| {
                match range.len() >> bit & 1 {
                    0 => sum,
                    _ => multiply(sum, power),
                }
            });
        self.before(range.end) ^ shifted
    }

    /// The checksum of everything before an offset.
    fn before(&self, offset: usize) -> u32 {
        let block = (offset / BLOCK).min(self.sums.len() - 1);
        self.append(self.sums[block], block * BLOCK..offset)
    }

    fn append(&self, sum: u32, range: Range<usize>) -> u32 {
        #[cfg(test)]
        self.hashed_bytes.set(self.hashed_bytes.get() + range.len());
        crc32c::crc32c_append(sum, &self.bytes[range])
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WriteBatch;
    use forerun_core::split_mix64;

    const SALT: u32 = 77;

    #[test]
    fn sums_give_the_checksum_of_any_range() {
        let mut random = 1;
        for len in [1, 255, 256, 257, 5_000] {
            let bytes: Vec<u8> = (0..len).map(|_| split_mix64(&mut random) as u8).collect();
            let sums = Sums::new(&bytes);
            for _ in 0..200 {
                let start = split_mix64(&mut random) as usize % (len + 1);
                let end = start + split_mix64(&mut random) as usize % (len + 1 - start);
                let wanted = crc32c::crc32c(&bytes[start..end]);
                assert_eq!(sums.of(start..end), wanted, "{start}..{end} of {len}");
            }
        }
    }

    /// A segment whose first record is damaged, whose second has a value full of headers, and whose
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
        for value in [&value[..0], &value, &[]] {
            let mut batch = WriteBatch::new();
            batch.put("key", value).unwrap();
            let checksum = crc32c::crc32c(batch.encoded());
            record::begin(&mut segment, batch.encoded(), checksum, 1);
        }
        record::seal(&mut segment, 0, SALT, 1, false, 1_000);
        segment[0] ^= 1;
        segment[HEADER_BYTES * 2] ^= 1;
        segment
    }

    #[test]
    fn searching_values_full_of_headers_takes_work_in_proportion_to_their_length() {
        let hashed = |headers| {
            let segment = hostile_segment(headers);
            let search = RecordSearch::new(&segment, SALT);
            let found = search.find(0, 1).unwrap();
            assert_eq!((found.first_sequence, found.end), (3, segment.len()));
            search.sums.get().unwrap().hashed_bytes.get()
        };
        let (few, many) = (hashed(500), hashed(2_000));
        assert!(few > 500 * HEADER_BYTES, "headers are tried: {few}");
        assert!(many <= 5 * few, "{few} bytes hashed, then {many}");
    }

    #[test]
    fn a_proof_of_durability_is_looked_for_once() {
        let mut segment = Vec::new();
        for n in 0..6 {
            let mut batch = WriteBatch::new();
            batch.put("key", "value").unwrap();
            let mut group = Vec::new();
            record::begin(
                &mut group,
                batch.encoded(),
                crc32c::crc32c(batch.encoded()),
                1,
            );
            record::seal(&mut group, segment.len() as u64, SALT, 1 + n, n == 4, 1_000);
            segment.extend(group);
        }
        let len = segment.len() / 6;
        let mut search = RecordSearch::new(&segment, SALT);
        assert!(!search.proves_durable(5 * len, 6), "the fifth is flagged");
        assert!(search.proves_durable(len, 2));
        assert_eq!(search.proof, Some(4 * len));
        assert!(search.proves_durable(3 * len, 4) && search.proves_durable(4 * len, 5));
        assert!(
            !search.proves_durable(5 * len, 6),
            "it says nothing about itself"
        );
    }
}
