//! How the key of a row is compared with the one sought: three ways, one a type.

use std::cmp::Ordering;

use super::super::page::{Page, Record};
use crate::comparator::Comparator;

/// The sought key, made ready for a page.
pub(super) trait Compare {
    /// How the key of a row stands to it.
    fn compare(&mut self, page: Page<'_>, record: &Record) -> Ordering;
}

/// Bytewise order, and few bytes behind the prefix: they are one integer.
///
/// Shorter keys are padded with zeros, so two different ones may give one integer; then the one that was padded more is
/// the smaller. Of the row's key only as many bytes count.
pub(super) struct Short {
    packed: u128,
    len: usize,
}

impl Short {
    pub(super) const MOST_BYTES: usize = 16;

    #[inline(always)]
    pub(super) fn new(suffix: &[u8]) -> Self {
        debug_assert!(suffix.len() <= Short::MOST_BYTES);
        Short {
            packed: packed(suffix),
            len: suffix.len(),
        }
    }
}

impl Compare for Short {
    #[inline(always)]
    fn compare(&mut self, page: Page<'_>, record: &Record) -> Ordering {
        // Whatever is behind the suffix is read along, and masked away.
        let read = match page.bytes.get(record.suffix..) {
            Some(rest) => packed(rest),
            None => 0,
        };
        let row = read & mask(record.suffix_len);
        row.cmp(&self.packed)
            .then_with(|| record.suffix_len.cmp(&self.len))
    }
}

/// Bytewise order: the bytes that the sought key has in common with both bounds need no second look.
pub(super) struct Skipping<'k> {
    suffix: &'k [u8],
    /// How many bytes it shares with the nearest row known to be before, and with the nearest one behind.
    low: usize,
    high: usize,
}

impl<'k> Skipping<'k> {
    #[inline(always)]
    pub(super) fn new(suffix: &'k [u8]) -> Self {
        Skipping {
            suffix,
            low: 0,
            high: 0,
        }
    }
}

impl Compare for Skipping<'_> {
    #[inline(always)]
    fn compare(&mut self, page: Page<'_>, record: &Record) -> Ordering {
        let row = page.record_suffix(record);
        // A row between the bounds shares with the key what both of them do.
        let skip = self.low.min(self.high);
        let rest = row.get(skip..).unwrap_or(&[]);
        let shared = skip + shared_len(rest, &self.suffix[skip..]);
        match (row.get(shared), self.suffix.get(shared)) {
            // Which bound it becomes depends on the sequence number: neither is moved.
            (None, None) => Ordering::Equal,
            (row, sought) if row < sought => {
                self.low = shared;
                Ordering::Less
            }
            _ => {
                self.high = shared;
                Ordering::Greater
            }
        }
    }
}

/// Any other order.
pub(super) struct ByComparator<'k> {
    comparator: &'k dyn Comparator,
    key: &'k [u8],
}

impl<'k> ByComparator<'k> {
    #[inline(always)]
    pub(super) fn new(comparator: &'k dyn Comparator, key: &'k [u8]) -> Self {
        ByComparator { comparator, key }
    }
}

impl Compare for ByComparator<'_> {
    #[inline(always)]
    fn compare(&mut self, page: Page<'_>, record: &Record) -> Ordering {
        let row = page.record_suffix(record);
        self.comparator.compare(row, self.key)
    }
}

/// The first sixteen bytes as a big-endian integer; fewer are padded with zeros.
#[inline(always)]
pub(super) fn packed(bytes: &[u8]) -> u128 {
    match bytes.first_chunk() {
        Some(chunk) => u128::from_be_bytes(*chunk),
        None => padded(bytes),
    }
}

/// Fewer than sixteen bytes: two words that overlap, rather than a copy byte by byte.
#[inline(always)]
fn padded(bytes: &[u8]) -> u128 {
    let len = bytes.len() as u32;
    if let (Some(first), Some(last)) = (bytes.first_chunk::<8>(), bytes.last_chunk::<8>()) {
        let first = u128::from(u64::from_be_bytes(*first)) << 64;
        // What both words hold is shifted out of the second.
        let rest = u64::from_be_bytes(*last).checked_shl(8 * (16 - len));
        return first | u128::from(rest.unwrap_or(0));
    }
    if let (Some(first), Some(last)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        let first = u64::from(u32::from_be_bytes(*first)) << 32;
        let rest = u32::from_be_bytes(*last).checked_shl(8 * (8 - len));
        return u128::from(first | u64::from(rest.unwrap_or(0))) << 64;
    }
    let three = bytes
        .iter()
        .fold(0, |word, byte| word << 8 | u128::from(*byte));
    // No bytes: zero, shifted nowhere.
    three.checked_shl(128 - 8 * len).unwrap_or(0)
}

/// The bits of the first `len` bytes in [`packed`] ones.
#[inline(always)]
pub(super) fn mask(len: usize) -> u128 {
    match u32::try_from(len * 8) {
        Ok(bits) => !u128::MAX.checked_shr(bits).unwrap_or(0),
        Err(_) => u128::MAX,
    }
}

/// How many bytes two keys have in common from their beginning.
#[inline(always)]
pub(in super::super) fn shared_len(a: &[u8], b: &[u8]) -> usize {
    let words = a.as_chunks::<8>().0.iter().zip(b.as_chunks::<8>().0);
    let mut shared = 0;
    for (a, b) in words {
        let differ = u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b);
        if differ != 0 {
            return shared + differ.trailing_zeros() as usize / 8;
        }
        shared += 8;
    }
    let rest = a[shared..].iter().zip(&b[shared..]);
    shared + rest.take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_packed_as_a_padded_copy_is() {
        for len in 0..20 {
            let bytes: Vec<u8> = (0..len).map(|at| 0xf1_u8.wrapping_mul(at + 3)).collect();
            let mut copy = [0; 16];
            let kept = bytes.len().min(16);
            copy[..kept].copy_from_slice(&bytes[..kept]);
            assert_eq!(packed(&bytes), u128::from_be_bytes(copy), "{len} bytes");
        }
    }

    #[test]
    fn a_mask_has_the_bits_of_so_many_bytes() {
        for len in 0..40 {
            let kept = len.min(16);
            let ones = [vec![255_u8; kept], vec![0; 16 - kept]].concat();
            assert_eq!(mask(len), packed(&ones), "{len} bytes");
        }
    }

    #[test]
    fn what_two_keys_share_is_counted_to_the_byte() {
        let key = b"a key of some thirty bytes, or so";
        for at in 0..key.len() {
            let mut other = key.to_vec();
            other[at] ^= 1;
            assert_eq!(shared_len(key, &other), at);
            assert_eq!(shared_len(&key[..at], key), at);
        }
    }
}
