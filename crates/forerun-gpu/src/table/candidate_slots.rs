//! The slots in which a key's entry can be: `kernels/table/layout.cuh` in Rust.

use super::params::TableState;

/// A slot that was never used.
pub(crate) const EMPTY: u8 = 0;
/// A slot that was used and is free.
pub(crate) const RECLAIMED: u8 = 1;
/// Slots per sector. A search begins in one of the sectors.
const SECTOR_SLOTS: u64 = 32;

/// The candidate buckets of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CandidateSlots {
    /// The bucket that is searched first.
    pub(crate) home: u64,
    /// The other bucket; equal to `home` with one candidate.
    pub(crate) spill: u64,
    /// The digest: neither [`EMPTY`] nor [`RECLAIMED`].
    pub(crate) digest: u8,
    /// The slot of the bucket at which a search begins. In its turn n, it is at slot start ^ n.
    pub(crate) start: u64,
}

/// The finaliser of MurmurHash3: every bit of the key affects every bit of the result.
pub(crate) fn mix(mut key: u64) -> u64 {
    key ^= key >> 33;
    key = key.wrapping_mul(0xff51_afd7_ed55_8ccd);
    key ^= key >> 33;
    key = key.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    key ^ (key >> 33)
}

/// `bound` scaled by `hash` / 2^64.
fn scale(hash: u64, bound: u64) -> u64 {
    ((u128::from(hash) * u128::from(bound)) >> 64) as u64
}

impl CandidateSlots {
    /// The place of a key in a table with this layout.
    pub(crate) fn of(table: &TableState, key: u64) -> CandidateSlots {
        let hash = mix(key);
        let low = hash as u8;
        let digest = if low <= RECLAIMED { low + 128 } else { low };
        let start =
            ((hash >> 9) * SECTOR_SLOTS) & (u64::from(table.width) - 1) & !(SECTOR_SLOTS - 1);
        let (home, spill) = if table.candidates == 1 {
            let home = scale(hash, table.buckets);
            (home, home)
        } else {
            let half = table.buckets / 2;
            let a = scale(hash, half);
            let b = half + scale(hash.wrapping_mul(0x9e37_79b9_7f4a_7c15), half);
            if (hash >> 8) & 1 == 1 { (b, a) } else { (a, b) }
        };
        CandidateSlots {
            home,
            spill,
            digest,
            start,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn form(width: u32, candidates: u32, buckets: u64) -> TableState {
        TableState {
            width,
            candidates,
            buckets,
            ..TableState::default()
        }
    }

    proptest! {
        #[test]
        fn candidates_lie_in_the_table_and_differ(key: u64, half in 1u64..1 << 33, wide: bool) {
            let width = if wide { 128 } else { 16 };
            let place = CandidateSlots::of(&form(width, 2, 2 * half), key);
            prop_assert!(place.home.max(place.spill) < 2 * half
                && place.home.max(place.spill) >= half);
            prop_assert!(place.home.min(place.spill) < half);
            prop_assert!(place.digest > RECLAIMED && place.start < u64::from(width));
            prop_assert_eq!(place.start % 32, 0);
            let one = CandidateSlots::of(&form(width, 1, half), key);
            prop_assert!(one.home < half && one.home == one.spill);
        }
    }

    #[test]
    fn buckets_beyond_two_to_the_32_are_reached() {
        let table = form(128, 2, 1 << 34);
        let far = (0..1000).filter(|&key| CandidateSlots::of(&table, key).home > 1 << 33);
        assert!((400..600).contains(&far.count()));
    }
}
