//! Bags of keys for the pooled lookups, and their sums.
//!
//! ```text
//!   keys of a call   | bag 0: bag_keys of them | bag 1 | ... | the last bag: the rest |
//! ```
//!
//! Rows are taken as single-precision numbers, and sums are returned as such, so a pooled row is as
//! long as a row.

use super::keys::{Call, rows_of};
use anyhow::{Result, ensure};
use forerun_core::pooling::BagSum;
use forerun_gpu::table::{Bags, PoolingOptions, RowFormat};

/// The options of the pooled lookups.
pub(super) fn options() -> PoolingOptions {
    PoolingOptions::new(RowFormat::F32)
}

/// Where the bags of this many keys begin, and at the end the number of keys.
pub(super) fn offsets(keys: usize, bag_keys: usize) -> Vec<u64> {
    let starts = (0..keys).step_by(bag_keys.max(1));
    starts.chain([keys]).map(|at| at as u64).collect()
}

/// Compares the pooled rows of a call, and the number of keys found in each bag, with those of the
/// inserted rows. Returns how many keys were found.
pub(super) fn check(
    call: &Call,
    offsets: &[u64],
    row_bytes: u64,
    rows: &[u8],
    found: &[u32],
) -> Result<u64> {
    let bags = Bags::new(&call.keys, offsets);
    let mut sum = BagSum::new(&options(), row_bytes)?;
    let pooled_bytes = sum.output_bytes();
    let inserted = rows_of(&call.keys, row_bytes);
    let inserted_row = |at: usize| {
        let row = &inserted[at * row_bytes as usize..][..row_bytes as usize];
        call.there[at].then_some(row)
    };
    let mut expected = vec![0; bags.len() * pooled_bytes];
    let mut counts = vec![0; bags.len()];
    let keys = 0..call.keys.len();
    sum.add_block(&bags, keys, 0, inserted_row, &mut expected, &mut counts);
    for (bag, (found, wanted)) in found.iter().zip(&counts).enumerate() {
        ensure!(
            found == wanted,
            "bag {bag}: {found} of its keys were found instead of {wanted}"
        );
    }
    let same = |bag: &usize| {
        let place = bag * pooled_bytes..(bag + 1) * pooled_bytes;
        rows.get(place.clone()) == Some(&expected[place])
    };
    let wrong = (0..bags.len()).find(|bag| !same(bag));
    ensure!(wrong.is_none(), "bag {wrong:?} has another sum");
    Ok(counts.iter().map(|count| u64::from(*count)).sum())
}

#[cfg(test)]
mod tests {
    use super::super::keys::row_of;
    use super::*;

    #[test]
    fn bags_cover_all_keys_and_a_wrong_sum_or_count_is_found() {
        assert_eq!(offsets(7, 3), [0, 3, 6, 7]);
        assert_eq!(offsets(6, 3), [0, 3, 6]);
        assert_eq!(offsets(2, 1 << 20), [0, 2]);
        let call = Call {
            keys: vec![3, 4, 5],
            there: vec![true, false, true],
        };
        let offsets = offsets(3, 2);
        let number = |key| -> Vec<u8> { row_of(key, 4).collect() };
        let mut rows = [number(3), number(5)].concat();
        assert_eq!(check(&call, &offsets, 4, &rows, &[1, 1]).unwrap(), 2);
        let error = check(&call, &offsets, 4, &rows, &[1, 0]).unwrap_err();
        assert!(
            error.to_string().contains("bag 1: 0 of its keys"),
            "{error}"
        );
        rows[1] ^= 1;
        let error = check(&call, &offsets, 4, &rows, &[1, 1]).unwrap_err();
        assert!(error.to_string().contains("another sum"), "{error}");
    }
}
