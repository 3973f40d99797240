//! Finds the ends of tokens and lines.
//!
//! ```text
//!   bytes   get user:17 user:4711\r\n mg user:9 v\r\n …
//!   next()     ^3      ^11         ^22  ^25     ^32
//! ```
//!
//! A request for a hundred keys has a hundred short tokens. A separate search for each token's end
//! would start a hundred searches. This scanner compares 64 bytes at once and takes the ends from a
//! word of bits.

use forerun_core::arch::{DELIMITER_BLOCK_BYTES, delimiters};

/// Yields the positions of spaces and newlines in order.
#[derive(Clone, Copy)]
pub(crate) struct Scan<'a> {
    bytes: &'a [u8],
    /// Start of the block that `bits` describes.
    block: usize,
    /// Delimiters of the block that were not yet yielded.
    bits: u64,
}

impl<'a> Scan<'a> {
    /// Starts the scan at `from`.
    #[inline]
    pub(crate) fn new(bytes: &'a [u8], from: usize) -> Self {
        let mut scan = Self {
            bytes,
            block: from,
            bits: 0,
        };
        scan.load();
        scan
    }

    /// The position of the next space or newline.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<usize> {
        while self.bits == 0 {
            if self.bytes.len() - self.block <= DELIMITER_BLOCK_BYTES {
                return None;
            }
            self.block += DELIMITER_BLOCK_BYTES;
            self.load();
        }
        let position = self.block + self.bits.trailing_zeros() as usize;
        self.bits &= self.bits - 1;
        Some(position)
    }

    #[inline]
    fn load(&mut self) {
        let rest = &self.bytes[self.block..];
        self.bits = match rest.first_chunk() {
            Some(block) => delimiters(block),
            None => {
                let mut block = [0; DELIMITER_BLOCK_BYTES];
                block[..rest.len()].copy_from_slice(rest);
                delimiters(&block)
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_scan_yields_what_a_plain_loop_finds(
            bytes in proptest::collection::vec(
                prop_oneof![Just(b' '), Just(b'\n'), Just(b'\r'), any::<u8>()], 0..300),
            from in 0_usize..300,
        ) {
            let from = from.min(bytes.len());
            let expected: Vec<usize> =
                (from..bytes.len()).filter(|&at| bytes[at] == b' ' || bytes[at] == b'\n').collect();
            let mut scan = Scan::new(&bytes, from);
            let found: Vec<usize> = std::iter::from_fn(|| scan.next()).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
