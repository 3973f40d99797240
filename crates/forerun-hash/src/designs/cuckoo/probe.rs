//! The lookup of one key: its buckets in their order, each compared as a whole.

use super::super::Word;
use super::super::lookup::{Probe, Step};
use super::{Bucket, Cuckoo};
use forerun_core::arch::Simd;

/// The bucket a lookup stands at.
#[derive(Clone, Copy, Default)]
pub(in super::super) struct Place {
    choice: u32,
    step: u32,
    /// Buckets that come after this one.
    left: u32,
}

impl<K: Word, V: Word, const M: usize> Bucket<K, V, M> {
    /// Whether the key is here, and the value beside it: some value of the bucket, if it is not.
    #[inline(always)]
    fn find<S: Simd>(&self, simd: S, key: K) -> (bool, V) {
        let equal = K::eq_slots(simd, &self.keys, key);
        // The bit beyond the slots stands for none of them, and is folded onto slot 0.
        let slot = (equal | 1 << M).trailing_zeros() as usize % M;
        (equal != 0, self.values[slot])
    }
}

impl<K: Word, V: Word, const N: usize, const M: usize> Probe<K, V> for Cuckoo<K, V, N, M> {
    type Place = Place;

    #[inline(always)]
    fn start(&self, key: K) -> Place {
        let hash = key.hash(&self.constants);
        Place {
            choice: hash.first,
            step: hash.step,
            left: N as u32 - 1,
        }
    }

    #[inline(always)]
    fn prefetch(&self, place: Place) {
        self.buckets.prefetch(place.choice);
    }

    #[inline(always)]
    fn prefetch_all(&self, place: Place) {
        let mut choice = place.choice;
        for _ in 0..N {
            self.buckets.prefetch(choice);
            choice = choice.wrapping_add(place.step);
        }
    }

    #[inline(always)]
    fn step<S: Simd>(&self, simd: S, key: K, place: Place) -> Step<V, Place> {
        let bucket = self.buckets.by_hash(place.choice);
        let (hit, value) = bucket.find(simd, key);
        Step {
            hit,
            value,
            more: !hit & bucket.was_full() & (place.left > 0),
            next: Place {
                choice: place.choice.wrapping_add(place.step),
                step: place.step,
                left: place.left.wrapping_sub(1),
            },
        }
    }

    #[inline(always)]
    fn finish<S: Simd>(&self, simd: S, key: K, place: Place) -> (bool, V) {
        let mut choice = place.choice;
        let (mut hit, mut value) = self.buckets.by_hash(choice).find(simd, key);
        for _ in 1..N {
            choice = choice.wrapping_add(place.step);
            let (here, other) = self.buckets.by_hash(choice).find(simd, key);
            value = if here { other } else { value };
            hit |= here;
        }
        (hit, value)
    }
}
