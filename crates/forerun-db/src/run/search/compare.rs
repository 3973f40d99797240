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
        let row = page.slice(record.suffix..record.suffix + record.suffix_len);
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
        let row = page.slice(record.suffix..record.suffix + record.suffix_len);
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

fn padded(bytes: &[u8]) -> u128 {
    let mut chunk = [0; 16];
    chunk[..bytes.len()].copy_from_slice(bytes);
    u128::from_be_bytes(chunk)
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
