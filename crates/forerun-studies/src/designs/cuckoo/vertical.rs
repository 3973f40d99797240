//! Lookups of several keys together, one per lane.
//!
//! ```text
//!   keys          k0  k1  k2  k3
//!   choice 0      gather a slot per lane:     =   ≠   ∅   ≠         k0 found, k2 absent: lanes closed
//!   choice 1      gather the open lanes:        =       ≠         k1 found
//!   choice 2      …                                     ∅         k3 absent
//! ```
//!
//! This is the vertically vectorised lookup of N-way cuckoo tables (Polychroniou, Raghavan and
//! Ross, "Rethinking SIMD Vectorization for In-Memory Databases", SIGMOD 2015). In buckets of M
//! slots, a choice takes M gathers, one for each slot: an empty slot is the last one in use, so it
//! closes its lane. Closed lanes are masked and read nothing. Values are loaded lane by lane, from
//! the lines that the gathers have fetched.

use super::super::Word;
use super::super::lookup::by_lane::{LANES_MAX, LaneProbe, answer, load};
use super::super::sentinel_entries::empty;
use super::super::slab::Slab;
use super::Cuckoo;
use super::bucket_layout::BucketLayout;
use forerun_core::arch::{Lanes, Mask, Simd};

impl<K: Word, V: Word, const N: usize, const M: usize, B: BucketLayout<K, V, M>> LaneProbe<K, V>
    for Cuckoo<K, V, N, M, B>
{
    #[inline(always)]
    fn lanes<S: Simd>(_: S) -> usize {
        K::Lanes::<S>::LEN
    }

    /// Prefetches all candidates of the keys.
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
        let mut place = lanes.xor(lanes);
        'choices: for _ in 0..N {
            let bucket = first_slot::<S, K, M>(choice.scale(len));
            for slot in 0..M {
                // SAFETY: scaling leaves every lane below the number of buckets, so a bucket times
                // M is below the number of slots, which is at most 2^30 (`new` refuses more).
                let slots = unsafe { self.gather(slot, bucket, open, none) };
                let here = slots.eq(lanes).and(open);
                let at = bucket.add(K::Lanes::splat(simd, K::from_u64(slot as u64)));
                place = at.select(place, here);
                hit = hit.or(here);
                open = open.and_not(here.or(slots.eq(none)));
                if open.bits() == 0 {
                    break 'choices;
                }
            }
            choice = choice.add(step);
        }
        let mut places = [K::ZERO; LANES_MAX];
        place.store(&mut places);
        answer((hit.bits(), &places), values, found, |place| {
            self.buckets.get((place / M) as u32).value(place % M)
        })
    }
}

impl<K: Word, V: Word, const N: usize, const M: usize, B: BucketLayout<K, V, M>>
    Cuckoo<K, V, N, M, B>
{
    /// Bytes of a bucket for each of its slots, padding included.
    const SLOT_BYTES: usize = Slab::<B>::STRIDE_BYTES / M;

    /// The keys in this slot of the buckets whose first slots are `first`, for the open lanes.
    ///
    /// # Safety
    /// The open lanes of `first` are M times the numbers of buckets of the slab.
    #[inline(always)]
    unsafe fn gather<S: Simd>(
        &self,
        slot: usize,
        first: K::Lanes<S>,
        open: <K::Lanes<S> as Lanes<S>>::Mask,
        none: K::Lanes<S>,
    ) -> K::Lanes<S> {
        let base = self.buckets.as_ptr().cast::<K>();
        let base = base.wrapping_byte_add(slot * B::KEY_STEP_BYTES);
        // SAFETY: a bucket takes M times SLOT_BYTES, so a lane's offset is the start of its bucket,
        // which is inside the slab. From there, `base` is moved to the key of a slot of that
        // bucket: the word read is aligned and inside the slab, initialised since the slab was
        // zeroed, and not written while the table is borrowed.
        unsafe {
            match Self::SLOT_BYTES {
                4 => K::Lanes::gather::<4>(base, first, open, none),
                8 => K::Lanes::gather::<8>(base, first, open, none),
                16 => K::Lanes::gather::<16>(base, first, open, none),
                // A slot is a key and a value of 2, 4 or 8 bytes each.
                _ => unreachable!("a slot of 4, 8 or 16 bytes"),
            }
        }
    }
}

/// The numbers of the first slots of these buckets: M times their own.
#[inline(always)]
fn first_slot<S: Simd, K: Word, const M: usize>(bucket: K::Lanes<S>) -> K::Lanes<S> {
    match M {
        1 => bucket,
        2 => bucket.shl::<1>(),
        4 => bucket.shl::<2>(),
        8 => bucket.shl::<3>(),
        _ => unreachable!("buckets have 1, 2, 4 or 8 slots"),
    }
}
