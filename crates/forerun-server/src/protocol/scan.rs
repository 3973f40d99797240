//! Where tokens and lines end.
//!
//! ```text
//!   bytes   get user:17 user:4711\r\n mg user:9 v\r\n …
//!   next()     ^3      ^11         ^22  ^25     ^32
//! ```
//!
//! A request of a hundred keys is a hundred short tokens. Looking for each token's end on its own
//! starts a search a hundred times; here 64 bytes are compared at once and the ends come out of a
//! word of bits.

use forerun_core::arch::{DELIMITER_BLOCK_BYTES, delimiters};

/// Yields the places of spaces and newlines, in order.
#[derive(Clone, Copy)]
pub(crate) struct Scan<'a> {
    bytes: &'a [u8],
    /// Where the block begins that `bits` are of.
    block: usize,
    /// Those delimiters of the block that are still to be yielded.
    bits: u64,
}

impl<'a> Scan<'a> {
    /// Begins at `from`.
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

    /// The place of the next space or newline.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<usize> {
        while self.bits == 0 {
            if self.bytes.len() - self.block <= DELIMITER_BLOCK_BYTES {
                return None;
            }
            self.block += DELIMITER_BLOCK_BYTES;
            self.load();
        }
        let place = self.block + self.bits.trailing_zeros() as usize;
        self.bits &= self.bits - 1;
        Some(place)
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
            bytes in proptest::collection::vec(prop_oneof![Just(b' '), Just(b'\n'), Just(b'\r'), any::<u8>()], 0..300),
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
