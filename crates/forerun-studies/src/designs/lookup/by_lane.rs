//! A key per lane: a vector of keys is looked up together, while the lines of a later vector are
//! prefetched.
//!
//! ```text
//!   Vertical         [k0 k1 k2 k3]            gathers        [k4 k5 k6 k7]            gathers  …
//!   VerticalAll      prefetch k12 … k15       gathers        prefetch k16 … k19       gathers  …
//! ```
//!
//! The designs say what a vector of keys reads ([`LaneProbe`]).

use super::Batch;
use crate::designs::hasher::{Constants, scale};
use crate::designs::{Lookup, Word};
use forerun_core::arch::{Isa, Lanes, Simd, WithSimd, dispatch};

/// The maximum number of lanes of a vector.
pub(in super::super) const LANES_MAX: usize = 16;
/// Keys between a prefetch and its gather.
const AHEAD: usize = 48;

/// A design whose lookups run several keys together, one per lane.
///
/// Implementors mark everything `#[inline(always)]`, as [`WithSimd`] asks.
pub(in super::super) trait LaneProbe<K: Word, V: Word>: Sync {
    /// The number of lanes.
    fn lanes<S: Simd>(simd: S) -> usize;

    /// Prefetches what at most as many keys as there are lanes will read.
    fn prefetch_lanes<S: Simd>(&self, simd: S, keys: &[K]);

    /// Looks up at most as many keys as there are lanes. Returns the number found.
    fn find_lanes<S: Simd>(
        &self,
        simd: S,
        keys: &[K],
        values: &mut [V],
        found: &mut [bool],
    ) -> usize;
}

/// The lookup of a batch.
struct ByLane<'a, 'b, P, K, V> {
    probe: &'a P,
    batch: Batch<'b, K, V>,
    /// Whether lines are prefetched. Tables that fit in a CPU cache need not.
    fetches: bool,
}

impl<P: LaneProbe<K, V>, K: Word, V: Word> WithSimd for ByLane<'_, '_, P, K, V> {
    /// The number of keys found.
    type Output = usize;

    #[inline(always)]
    fn with<S: Simd>(self, simd: S) -> usize {
        let ByLane {
            probe,
            batch:
                Batch {
                    keys,
                    values,
                    found,
                },
            fetches,
        } = self;
        let lanes = P::lanes(simd);
        if fetches {
            for keys in keys[..keys.len().min(AHEAD)].chunks(lanes) {
                probe.prefetch_lanes(simd, keys);
            }
        }
        let mut hits = 0;
        let mut from = 0;
        while from < keys.len() {
            let to = keys.len().min(from + lanes);
            if fetches {
                let ahead = keys.len().min(from + AHEAD);
                probe.prefetch_lanes(simd, &keys[ahead..keys.len().min(ahead + lanes)]);
            }
            let (values, found) = (&mut values[from..to], &mut found[from..to]);
            hits += probe.find_lanes(simd, &keys[from..to], values, found);
            from = to;
        }
        hits
    }
}

/// Looks a batch up by lanes. If `lookup` is another strategy, returns the batch unchanged.
pub(in super::super) fn find<'b, P: LaneProbe<K, V>, K: Word, V: Word>(
    isa: Isa,
    probe: &P,
    batch: Batch<'b, K, V>,
    lookup: Lookup,
) -> Result<usize, Batch<'b, K, V>> {
    let fetches = match lookup {
        Lookup::Vertical => false,
        Lookup::VerticalAll => true,
        _ => return Err(batch),
    };
    let work = ByLane {
        probe,
        batch,
        fetches,
    };
    Ok(dispatch(isa, work))
}

/// Loads a vector with at most as many words as it has lanes. The last word fills the remaining
/// lanes.
#[inline(always)]
pub(in super::super) fn load<S: Simd, W: Word>(simd: S, words: &[W]) -> W::Lanes<S> {
    if words.len() >= W::Lanes::<S>::LEN {
        return W::Lanes::load(simd, words);
    }
    let mut padded = [words.last().copied().unwrap_or_default(); LANES_MAX];
    padded[..words.len()].copy_from_slice(words);
    W::Lanes::load(simd, &padded)
}

/// The first buckets of some keys among `len`, a vector of keys at a time.
#[inline(always)]
pub(in super::super) fn first_buckets<S: Simd, K: Word>(
    simd: S,
    constants: &Constants,
    len: u32,
    keys: &[K],
    buckets: &mut [K],
) {
    let lanes = K::Lanes::<S>::LEN;
    let splat_len = K::Lanes::splat(simd, K::from_u64(u64::from(len)));
    let (whole, rest) = keys.split_at(keys.len() - keys.len() % lanes);
    let (whole_buckets, rest_buckets) = buckets.split_at_mut(whole.len());
    let chunks = whole.chunks_exact(lanes);
    for (keys, buckets) in chunks.zip(whole_buckets.chunks_exact_mut(lanes)) {
        let (first, _) = K::hash_lanes(simd, K::Lanes::load(simd, keys), constants);
        first.scale(splat_len).store(buckets);
    }
    for (&key, bucket) in rest.iter().zip(rest_buckets) {
        *bucket = K::from_u64(u64::from(scale(key.hash(constants).first, len)));
    }
}

/// Writes the answers of some keys: bit `i` of `hit` is whether key `i` was found, and `value_of`
/// gives the value at a lane's place. Returns the number found.
#[inline(always)]
pub(in super::super) fn answer<W: Word, V: Word>(
    (hit, places): (u32, &[W; LANES_MAX]),
    values: &mut [V],
    found: &mut [bool],
    value_of: impl Fn(usize) -> V,
) -> usize {
    let last = (1u32 << values.len()) - 1;
    let answers = values.iter_mut().zip(found).zip(places);
    for (i, ((value, found), place)) in answers.enumerate() {
        *value = value_of(place.to_u64() as usize);
        *found = hit >> i & 1 == 1;
    }
    (hit & last).count_ones() as usize
}
