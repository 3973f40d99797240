//! Lookups of several keys together, one per lane: each lane follows the ring of its own home.
//!
//! ```text
//!   keys            k0   k1   k2   k3
//!   homes           gather their cells:      =*   ≠*   ∅    c        k0 found; k2 and k3 have no head at home: absent
//!   next of a ring  gather the open lanes:        =                  k1 found
//! ```
//!
//! The paper keeps finished lanes busy by compressing the vector and loading further keys. Here a
//! vector of keys ends together, as in the other designs.

use super::super::Word;
use super::super::lookup::by_lane::{LANES_MAX, LaneProbe, answer, load};
use super::super::slab::Slab;
use super::NeighborHash;
use super::cell::{LINK_BITS, LINK_SIGN, REST_SHIFT, Slot};
use forerun_core::arch::{Lanes, Mask, Simd};

/// A vector of cells.
type Cells<K, S> = <<K as Word>::HashWord as Word>::Lanes<S>;
type CellMask<K, S> = <Cells<K, S> as Lanes<S>>::Mask;

impl<K: Word, V: Word> NeighborHash<K, V> {
    /// The hashes of at most as many keys as there are lanes, and their homes.
    #[inline(always)]
    fn homes<S: Simd>(&self, simd: S, keys: &[K]) -> (Cells<K, S>, Cells<K, S>) {
        let mut words = [K::HashWord::ZERO; LANES_MAX];
        for (word, key) in words.iter_mut().zip(keys) {
            *word = K::HashWord::from_u64(key.to_u64());
        }
        let keys: Cells<K, S> = load(simd, &words[..keys.len()]);
        let (hash, _) = K::HashWord::hash_lanes(simd, keys, &self.constants);
        let len = K::HashWord::from_u64(u64::from(self.slots.len()));
        (hash, hash.scale(Lanes::splat(simd, len)))
    }

    /// The next entries of the rings of these cells, which are in these slots.
    #[inline(always)]
    fn next_lanes<S: Simd>(simd: S, cells: Cells<K, S>, at: Cells<K, S>) -> Cells<K, S> {
        let splat = |word| Cells::<K, S>::splat(simd, K::HashWord::from_u64(word));
        let link = cells.xor(cells.shr::<LINK_BITS>().shl::<LINK_BITS>());
        // Sign extension of the link.
        let link = link.xor(splat(LINK_SIGN));
        at.add(link).add(splat(LINK_SIGN.wrapping_neg()))
    }

    /// The cells of some slots, for the open lanes.
    ///
    /// # Safety
    /// The open lanes of `at` are below the number of slots.
    #[inline(always)]
    unsafe fn cells<S: Simd>(
        &self,
        at: Cells<K, S>,
        open: CellMask<K, S>,
        none: Cells<K, S>,
    ) -> Cells<K, S> {
        let base = self.slots.as_ptr().cast::<K::HashWord>();
        // SAFETY: a slot begins with its cell and takes STRIDE_BYTES, so an open lane reads an
        // aligned word inside the slab, which was zeroed and is not written while the table is
        // borrowed. There are at most 2^30 slots (`new` refuses more).
        unsafe {
            match Slab::<Slot<K::HashWord, V>>::STRIDE_BYTES {
                8 => Cells::<K, S>::gather::<8>(base, at, open, none),
                16 => Cells::<K, S>::gather::<16>(base, at, open, none),
                // A slot is a cell of 4 or 8 bytes and a value of at most 8.
                _ => unreachable!("a slot of 8 or 16 bytes"),
            }
        }
    }
}

impl<K: Word, V: Word> LaneProbe<K, V> for NeighborHash<K, V> {
    #[inline(always)]
    fn lanes<S: Simd>(_: S) -> usize {
        Cells::<K, S>::LEN
    }

    #[inline(always)]
    fn prefetch_lanes<S: Simd>(&self, simd: S, keys: &[K]) {
        if keys.is_empty() {
            return;
        }
        let mut homes = [K::HashWord::ZERO; LANES_MAX];
        self.homes(simd, keys).1.store(&mut homes);
        for home in &homes[..keys.len()] {
            self.slots.prefetch(home.to_u64() as u32);
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
        let (hash, home) = self.homes(simd, keys);
        // As in a cell without its link: the rest of the hash, and the head's mark.
        let lodger = hash.shl::<REST_SHIFT>().shr::<LINK_BITS>();
        let one = Cells::<K, S>::splat(simd, K::HashWord::from_u64(1));
        let none = hash.xor(hash);
        let all = hash.eq(hash);
        // SAFETY: scaling leaves every lane below the number of slots.
        let mut cells = unsafe { self.cells(home, all, none) };
        let marked = cells.shr::<LINK_BITS>();
        let is_head = marked.xor(marked.shr::<1>().shl::<1>()).eq(one);
        let mut hit = marked.eq(lodger.xor(one));
        let mut place = home;
        let mut at = Self::next_lanes(simd, cells, home);
        let mut open = is_head.and_not(hit).and_not(at.eq(home));
        while open.bits() != 0 {
            // SAFETY: an open lane has followed a link of an entry, and links lead to entries.
            cells = unsafe { self.cells(at, open, none) };
            let here = cells.shr::<LINK_BITS>().eq(lodger).and(open);
            place = at.select(place, here);
            hit = hit.or(here);
            at = Self::next_lanes(simd, cells, at);
            open = open.and_not(here.or(at.eq(home)));
        }
        let mut places = [K::HashWord::ZERO; LANES_MAX];
        place.store(&mut places);
        answer((hit.bits(), &places), values, found, |place| {
            self.slots.get(place as u32).value
        })
    }
}
