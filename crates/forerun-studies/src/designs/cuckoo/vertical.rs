//! Lookups of several keys together, one per lane, in a table with one slot per bucket.
//!
//! ```text
//!   keys          k0  k1  k2  k3
//!   choice 0      gather a slot per lane:     =   ≠   ∅   ≠         k0 found, k2 absent: lanes closed
//!   choice 1      gather the open lanes:        =       ≠         k1 found
//!   choice 2      …                                     ∅         k3 absent
//! ```
//!
//! This is the vertically vectorised lookup of N-way cuckoo tables (Polychroniou, Raghavan and
//! Ross, "Rethinking SIMD Vectorization for In-Memory Databases", SIGMOD 2015). Closed lanes are
//! masked and read nothing. Values are loaded lane by lane, from the lines that the gathers have
//! fetched.

use super::super::lookup::Batch;
use super::super::sentinel_entries::empty;
use super::super::slab::Slab;
use super::super::{Lookup, Word};
use super::{Bucket, Cuckoo};
use forerun_core::arch::{Lanes, Mask, Simd, WithSimd, dispatch};

/// The maximum number of lanes of a vector.
const LANES_MAX: usize = 16;
/// Keys between a prefetch and its gather.
const AHEAD: usize = 48;

/// The lines that are prefetched for later keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fetch {
    /// Prefetch nothing, because the table fits in a CPU cache.
    Nothing,
    /// Prefetch all buckets of each key.
    All,
}

/// The lookup of a batch. All slices have the same length.
struct Vertical<'a, 'b, K, V, const N: usize, const M: usize> {
    table: &'a Cuckoo<K, V, N, M>,
    keys: &'b [K],
    values: &'b mut [V],
    found: &'b mut [bool],
    fetch: Fetch,
}

impl<K: Word, V: Word, const N: usize, const M: usize> WithSimd for Vertical<'_, '_, K, V, N, M> {
    /// The number of keys found.
    type Output = usize;

    #[inline(always)]
    fn with<S: Simd>(self, simd: S) -> usize {
        let Vertical {
            table,
            keys,
            values,
            found,
            fetch,
        } = self;
        let lanes = K::Lanes::<S>::LEN;
        if fetch == Fetch::All {
            for keys in keys[..keys.len().min(AHEAD)].chunks(lanes) {
                table.prefetch_lanes(simd, keys);
            }
        }
        let mut hits = 0;
        let mut from = 0;
        while from < keys.len() {
            let to = keys.len().min(from + lanes);
            if fetch == Fetch::All {
                let ahead = keys.len().min(from + AHEAD);
                table.prefetch_lanes(simd, &keys[ahead..keys.len().min(ahead + lanes)]);
            }
            let (values, found) = (&mut values[from..to], &mut found[from..to]);
            hits += table.find_lanes(simd, &keys[from..to], values, found);
            from = to;
        }
        hits
    }
}

/// Looks a batch up by lanes. If `lookup` is another strategy, returns the batch unchanged.
pub(super) fn find<'b, K: Word, V: Word, const N: usize, const M: usize>(
    table: &Cuckoo<K, V, N, M>,
    batch: Batch<'b, K, V>,
    lookup: Lookup,
) -> Result<usize, Batch<'b, K, V>> {
    let fetch = match lookup {
        Lookup::Vertical if M == 1 => Fetch::Nothing,
        Lookup::VerticalAll if M == 1 => Fetch::All,
        _ => return Err(batch),
    };
    let Batch {
        keys,
        values,
        found,
    } = batch;
    let work = Vertical {
        table,
        keys,
        values,
        found,
        fetch,
    };
    Ok(dispatch(table.isa, work))
}

/// Loads a vector with at most as many keys as it has lanes. The last key fills the remaining
/// lanes.
#[inline(always)]
fn load<S: Simd, K: Word>(simd: S, keys: &[K]) -> K::Lanes<S> {
    if keys.len() >= K::Lanes::<S>::LEN {
        return K::Lanes::load(simd, keys);
    }
    let mut padded = [keys.last().copied().unwrap_or_default(); LANES_MAX];
    padded[..keys.len()].copy_from_slice(keys);
    K::Lanes::load(simd, &padded)
}

impl<K: Word, V: Word, const N: usize, const M: usize> Cuckoo<K, V, N, M> {
    /// Prefetches all candidates of a vector of keys.
    #[inline(always)]
    fn prefetch_lanes<S: Simd>(&self, simd: S, keys: &[K]) {
        if keys.is_empty() {
            return;
        }
        let len = K::Lanes::splat(simd, K::from_u64(u64::from(self.buckets.len())));
        let (mut choice, step) = K::hash_lanes(simd, load(simd, keys), &self.constants);
        let mut indices = [K::ZERO; LANES_MAX];
        for _ in 0..N {
            choice.scale(len).store(&mut indices);
            for index in &indices[..keys.len()] {
                self.buckets.prefetch(index.to_u64() as u32);
            }
            choice = choice.add(step);
        }
    }

    /// Looks up a vector of keys. Returns the number found.
    #[inline(always)]
    fn find_lanes<S: Simd>(
        &self,
        simd: S,
        keys: &[K],
        values: &mut [V],
        found: &mut [bool],
    ) -> usize {
        let len = K::Lanes::splat(simd, K::from_u64(u64::from(self.buckets.len())));
        let none = K::Lanes::splat(simd, empty());
        let lanes = load(simd, keys);
        let (mut choice, step) = K::hash_lanes(simd, lanes, &self.constants);
        let mut open = lanes.eq(lanes);
        let mut hit = open.and_not(open);
        let mut place = choice.scale(len);
        for _ in 0..N {
            let index = choice.scale(len);
            // SAFETY: scaling leaves every lane of the index below the number of buckets, which is
            // at most 2^30 (`new` refuses more slots), and strictly below since they are scaled
            // from below. A bucket of one slot starts with its key: the word read is aligned and
            // inside the slab, initialised since the slab was zeroed, and not written while the
            // table is borrowed.
            let slots = unsafe { self.gather(index, open, none) };
            let here = slots.eq(lanes).and(open);
            place = index.select(place, here);
            hit = hit.or(here);
            open = open.and_not(here.or(slots.eq(none)));
            if open.bits() == 0 {
                break;
            }
            choice = choice.add(step);
        }
        let mut places = [K::ZERO; LANES_MAX];
        place.store(&mut places);
        let hit = hit.bits();
        let answers = values.iter_mut().zip(found).zip(&places);
        for (i, ((value, found), place)) in answers.enumerate() {
            *value = self.buckets.get(place.to_u64() as u32).values[0];
            *found = hit >> i & 1 == 1;
        }
        let last = (1u32 << keys.len()) - 1;
        (hit & last).count_ones() as usize
    }

    /// The keys of the slots at `index`, for the open lanes.
    ///
    /// # Safety
    /// The open lanes of the index are below the number of buckets.
    #[inline(always)]
    unsafe fn gather<S: Simd>(
        &self,
        index: K::Lanes<S>,
        open: <K::Lanes<S> as Lanes<S>>::Mask,
        none: K::Lanes<S>,
    ) -> K::Lanes<S> {
        let base = self.buckets.as_ptr().cast::<K>();
        // SAFETY: the caller's indices are buckets of the slab, and each begins with a key, as
        // `find_lanes` argues; the stride is that of the slab.
        unsafe {
            match Slab::<Bucket<K, V, M>>::STRIDE_BYTES {
                8 => K::Lanes::gather::<8>(base, index, open, none),
                16 => K::Lanes::gather::<16>(base, index, open, none),
                // Tables with more slots per bucket are not searched by lanes.
                _ => none,
            }
        }
    }
}
