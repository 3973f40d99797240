//! Three ways to compare a row's key with the target key, one type each.
//!
//! Short bytewise keys compare as integers. Longer ones skip the bytes that both bounds share. Keys
//! in another order go through their comparator.

use std::cmp::Ordering;

use super::super::page::{Page, Record};
use crate::comparator::Comparator;

/// A target key, prepared for one page.
pub(super) trait Compare {
    /// Compares a row's key with the target.
    fn compare(&mut self, page: Page<'_>, record: &Record) -> Ordering;
}

/// Bytewise order, for a target with at most 16 bytes after the common prefix: they fit into one
/// integer.
///
/// Shorter keys are padded with zeros, so two different keys may give the same integer. Then the
/// shorter key is smaller.
pub(super) struct Short {
    packed: u128,
    len: usize,
}

impl Short {
    pub(super) const BYTES_MAX: usize = 16;

    #[inline(always)]
    pub(super) fn new(suffix: &[u8]) -> Self {
        debug_assert!(suffix.len() <= Short::BYTES_MAX);
        Short {
            packed: packed(suffix),
            len: suffix.len(),
        }
    }
}

impl Compare for Short {
    #[inline(always)]
    fn compare(&mut self, page: Page<'_>, record: &Record) -> Ordering {
        // This also reads bytes after the suffix; the mask removes them.
        let read = match page.bytes.get(record.suffix_at..) {
            Some(rest) => packed(rest),
            None => 0,
        };
        let row = read & mask(record.suffix_len);
        row.cmp(&self.packed)
            .then_with(|| record.suffix_len.cmp(&self.len))
    }
}

/// Bytewise order: skips the bytes that the target shares with both bounds of the bisection.
pub(super) struct Skipping<'k> {
    suffix: &'k [u8],
    /// How many bytes the target shares with the lower and the upper bound.
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
        // A row between the bounds shares with the target at least what both bounds do.
        let skip = self.low.min(self.high);
        let rest = row.get(skip..).unwrap_or(&[]);
        let shared = skip + shared_len(rest, &self.suffix[skip..]);
        match (row.get(shared), self.suffix.get(shared)) {
            // The sequence number decides which bound this row becomes, so neither moves.
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

/// Any order, by its comparator.
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

/// The first 16 bytes as a big-endian integer. Fewer bytes are padded with zeros.
#[inline(always)]
pub(in super::super) fn packed(bytes: &[u8]) -> u128 {
    match bytes.first_chunk() {
        Some(chunk) => u128::from_be_bytes(*chunk),
        None => padded(bytes),
    }
}

/// Fewer than 16 bytes. Reads two words that overlap, instead of copying byte by byte.
#[inline(always)]
fn padded(bytes: &[u8]) -> u128 {
    let len = bytes.len() as u32;
    if let (Some(first), Some(last)) = (bytes.first_chunk::<8>(), bytes.last_chunk::<8>()) {
        let first = u128::from(u64::from_be_bytes(*first)) << 64;
        // Shifts out of the second word what the first one already holds.
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
    // An empty slice shifts by all 128 bits: zero.
    three.checked_shl(128 - 8 * len).unwrap_or(0)
}

/// The bits of a [`packed`] integer that hold its first `len` bytes.
#[inline(always)]
pub(in super::super) fn mask(len: usize) -> u128 {
    match u32::try_from(len * 8) {
        Ok(bits) => !u128::MAX.checked_shr(bits).unwrap_or(0),
        Err(_) => u128::MAX,
    }
}

/// The length of the longest common prefix of two keys.
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
