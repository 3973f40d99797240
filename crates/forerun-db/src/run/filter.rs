//! Rules out keys that cannot be in a run: a split-block Bloom filter.
//!
//! ```text
//!   hash   │ upper half: which block │ lower half: which bit of each word │
//!   block  │ word 0 │ word 1 │ … │ word 7 │      32 bytes: half a cache line
//!              1 bit    1 bit         1 bit
//! ```
//!
//! All eight bits of a key in the run are set, so one unset bit proves that a key is missing. Each
//! key touches a single cache line, so a batch can prefetch the lines of all its keys before it
//! reads the first.
//!
//! The scheme is that of Putze, Sanders and Singler, "Cache-, Hash- and Space-Efficient Bloom
//! Filters" (2007), with the bit choice of Apache Parquet.

use forerun_core::arch::prefetch_read;
use twox_hash::XxHash3_64;

use crate::comparator::KeyOrder;

/// Words of a block.
const WORDS: usize = 8;

/// More bits than this per key gain nothing: a test reads eight.
const BITS_PER_KEY_MAX: u32 = 64;

/// Bytes of a block on disk.
const BLOCK_BYTES: usize = WORDS * 4;

/// One odd number for each word. Multiplied by the hash, its upper five bits choose the bit.
const ODD: [u32; WORDS] = [
    0x47b6_137b,
    0x4497_4d91,
    0x8824_ad5b,
    0xa2b7_289d,
    0x7054_95c7,
    0x2df1_424b,
    0x9efc_4947,
    0x5c6b_fb31,
];

/// The hash of a user key, for the filters of all runs.
#[inline]
pub(crate) fn hash(key: &[u8]) -> u64 {
    XxHash3_64::oneshot(key)
}

/// Whether keys in this order may have a filter. Keys that compare equal must have the same bytes,
/// so that they have one hash.
pub(crate) fn fits(order: &KeyOrder) -> bool {
    match order {
        KeyOrder::Bytewise => true,
        KeyOrder::Custom(comparator) => comparator.equal_means_identical(),
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(align(32))]
struct Block([u32; WORDS]);

impl Block {
    #[inline(always)]
    fn bits(hash: u64) -> [u32; WORDS] {
        ODD.map(|odd| 1 << ((hash as u32).wrapping_mul(odd) >> 27))
    }
}

/// A filter in memory. Without blocks, every key passes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Filter {
    blocks: Box<[Block]>,
}

impl Filter {
    /// Builds a filter over keys with these hashes.
    pub(crate) fn build(hashes: &[u64], bits_per_key: u32) -> Filter {
        if bits_per_key == 0 || hashes.is_empty() {
            return Filter::default();
        }
        let bits = hashes.len() as u64 * u64::from(bits_per_key.min(BITS_PER_KEY_MAX));
        // Fewer than 2^32 blocks: page numbers do not reach that many keys.
        let blocks = bits
            .div_ceil(BLOCK_BYTES as u64 * 8)
            .min(u64::from(u32::MAX));
        let mut filter = Filter {
            blocks: vec![Block::default(); blocks as usize].into(),
        };
        for &hash in hashes {
            let block = filter.block_of(hash);
            for (word, bit) in filter.blocks[block].0.iter_mut().zip(Block::bits(hash)) {
                *word |= bit;
            }
        }
        filter
    }

    /// Whether a key with this hash may be in the run.
    #[inline]
    pub(crate) fn may_contain(&self, hash: u64) -> bool {
        match self.blocks.get(self.block_of(hash)) {
            Some(block) => {
                let bits = Block::bits(hash);
                let unset = block
                    .0
                    .iter()
                    .zip(bits)
                    .fold(0, |unset, (word, bit)| unset | (!word & bit));
                unset == 0
            }
            None => true,
        }
    }

    /// Prefetches the line that [`may_contain`](Self::may_contain) reads.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u64) {
        prefetch_read(self.blocks.as_ptr().wrapping_add(self.block_of(hash)));
    }

    /// The block of a hash. Out of bounds only for a filter without blocks.
    #[inline(always)]
    fn block_of(&self, hash: u64) -> usize {
        (((hash >> 32) * self.blocks.len() as u64) >> 32) as usize
    }

    /// Bytes in memory and on disk.
    pub(crate) fn bytes(&self) -> usize {
        self.blocks.len() * BLOCK_BYTES
    }

    pub(crate) fn encode_into(&self, bytes: &mut Vec<u8>) {
        bytes.reserve(self.bytes());
        for word in self.blocks.iter().flat_map(|block| block.0) {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
    }

    /// Decodes a filter, or returns the reason why it cannot.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Filter, &'static str> {
        let (blocks, rest) = bytes.as_chunks::<BLOCK_BYTES>();
        if !rest.is_empty() || u32::try_from(blocks.len()).is_err() {
            return Err("the filter's length is not a multiple of its block size");
        }
        let block = |bytes: &[u8; BLOCK_BYTES]| {
            let mut block = Block::default();
            for (word, bytes) in block.0.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *word = u32::from_le_bytes(*bytes);
            }
            block
        };
        Ok(Filter {
            blocks: blocks.iter().map(block).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashes(keys: std::ops::Range<u64>) -> Vec<u64> {
        keys.map(|key| hash(&key.to_be_bytes())).collect()
    }

    #[test]
    fn a_key_that_is_there_passes_and_few_others_do() {
        let present = hashes(0..20_000);
        for (bits, max_per_mille) in [(4, 360), (10, 14), (16, 3)] {
            let filter = Filter::build(&present, bits);
            assert!(present.iter().all(|hash| filter.may_contain(*hash)));
            let passed = hashes(20_000..70_000)
                .into_iter()
                .filter(|hash| filter.may_contain(*hash))
                .count();
            assert!(
                passed < 50 * max_per_mille,
                "{passed} of 50,000 pass at {bits} bits"
            );
        }
    }

    #[test]
    fn bits_beyond_any_use_take_no_memory() {
        let present = hashes(0..1000);
        let filter = Filter::build(&present, u32::MAX);
        assert!(filter.bytes() <= 1000 * 8 + BLOCK_BYTES);
        assert!(present.iter().all(|hash| filter.may_contain(*hash)));
    }

    #[test]
    fn no_blocks_let_all_pass() {
        for filter in [Filter::default(), Filter::build(&hashes(0..10), 0)] {
            filter.prefetch(7);
            assert!(filter.may_contain(7) && filter.bytes() == 0);
        }
    }

    #[test]
    fn a_filter_reads_back_and_a_piece_of_one_does_not() {
        let filter = Filter::build(&hashes(0..1000), 10);
        let mut bytes = Vec::new();
        filter.encode_into(&mut bytes);
        assert_eq!(bytes.len(), filter.bytes());
        assert_eq!(Filter::decode(&bytes), Ok(filter));
        assert!(Filter::decode(&bytes[1..]).is_err());
    }

    #[test]
    fn the_bits_are_those_that_the_format_tells() {
        // Computed by hand: block (hash >> 32) * blocks >> 32, bit (low half * odd) >> 27.
        let hash = 0x8000_0000_0000_0001;
        let mut hashes = vec![hash];
        hashes.resize(100, hash);
        let filter = Filter::build(&hashes, 10);
        assert_eq!(filter.blocks.len(), 4);
        let expected = ODD.map(|odd| 1 << (odd >> 27));
        assert_eq!(filter.blocks[2], Block(expected));
        assert!(
            filter
                .blocks
                .iter()
                .filter(|b| **b != Block::default())
                .count()
                == 1
        );
    }
}
