//! Bags for pooled lookups beside writers.
//!
//! ```text
//!   keys      | pinned, any, pinned | pinned, any, pinned | ...        a bag has three keys
//!   weights   |      0,   1,      0 |      0,   1,      0 |
//! ```
//!
//! Pinned keys stay, and their weight is 0, so a pooled row shows every word of the other key's
//! row: a torn row has a sum that no row has. Words that are NaNs show only that they are.

use forerun::gpu::table::{Bags, PoolingOptions, RowFormat};
use forerun_core::pooling::BagSum;

use super::stamped_row::{ROW_BYTES, ROW_WORDS, bytes_of};

/// Keys of a bag.
pub(super) const BAG_KEYS: usize = 3;
/// The position in a bag of the key whose row counts.
pub(super) const COUNTED: usize = 1;
/// Numbers in a pooled row, each of four bytes.
const DIM: usize = ROW_BYTES as usize / 4;
/// Bytes of a pooled row.
pub(super) const POOLED_BYTES: usize = DIM * 4;

/// Rows taken as single-precision numbers.
pub(super) fn options() -> PoolingOptions {
    PoolingOptions::new(RowFormat::F32)
}

/// Offsets and weights for this many keys in whole bags.
pub(super) fn offsets_and_weights(keys: usize) -> (Vec<u64>, Vec<f32>) {
    let offsets = (0..=keys / BAG_KEYS).map(|bag| (bag * BAG_KEYS) as u64);
    let weight = |at: usize| f32::from(u8::from(at % BAG_KEYS == COUNTED));
    (offsets.collect(), (0..keys).map(weight).collect())
}

/// The pooled row of a bag of three keys with these rows.
pub(super) fn pooled(rows: [Option<[u64; ROW_WORDS]>; BAG_KEYS]) -> Vec<u8> {
    let rows = rows.map(|row| row.map(|words| bytes_of(words).collect::<Vec<u8>>()));
    let (offsets, weights) = offsets_and_weights(BAG_KEYS);
    let keys = [0; BAG_KEYS];
    let bags = Bags::new(&keys, &offsets).with_weights(&weights);
    let mut out = vec![0; POOLED_BYTES];
    // The size of a row is a multiple of four.
    if let Ok(mut sum) = BagSum::new(&options(), ROW_BYTES) {
        sum.add(&bags, 0..BAG_KEYS, |at| rows[at].as_deref());
        sum.end(&bags, 0, &mut out);
    }
    out
}
