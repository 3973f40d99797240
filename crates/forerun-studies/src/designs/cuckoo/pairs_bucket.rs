//! The interleaved layout: each key of a bucket beside its value.
//!
//! ```text
//!   M = 4, u64 to u64:   │ k0 v0 │ k1 v1 │ k2 v2 │ k3 v3 │     one line
//!   compared             │ =  .  │ =  .  │ =  .  │ =  .  │     every word; the bits of values are dropped
//! ```
//!
//! A vector compares half as many keys as in the split layout, because every other word is a value.
//! In exchange, a key and its value are always in one line. If keys and values differ in width, the
//! keys are compared one after the other.

use super::super::Word;
use super::super::slab::Zeroed;
use super::bucket_layout::BucketLayout;
use forerun_core::CACHE_LINE_BYTES;
use forerun_core::arch::Simd;

/// A key and its value.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Pair<K, V> {
    key: K,
    value: V,
}

/// The slots of a bucket.
#[derive(Debug)]
#[repr(C)]
pub struct Pairs<K, V, const M: usize>([Pair<K, V>; M]);

// SAFETY: words are numbers, for which zeroed bytes are zero; they are aligned to at most 8 bytes.
unsafe impl<K: Word, V: Word, const M: usize> Zeroed for Pairs<K, V, M> {}

/// The even bits: those of keys.
const KEY_BITS: u32 = 0x5555_5555;

impl<K: Word, V: Word, const M: usize> Pairs<K, V, M> {
    /// The bucket's first words, if keys and values have one width and there are `W` words.
    #[inline(always)]
    fn words<const W: usize>(&self) -> Option<&[K; W]> {
        let is_whole = K::BYTES == V::BYTES && W == 2 * M;
        // SAFETY: M pairs of words of one width, without padding because of `repr(C)`, are W words
        // of that width, and so they are aligned. Every bit pattern is a word, values' too.
        is_whole.then(|| unsafe { &*std::ptr::from_ref(self).cast::<[K; W]>() })
    }

    /// The slots whose keys are equal: bit 2i for slot i.
    #[inline(always)]
    fn eq<S: Simd>(&self, simd: S, key: K) -> u32 {
        if let Some(words) = self.words::<2>() {
            return K::eq_slots(simd, words, key) & KEY_BITS;
        }
        if let Some(words) = self.words::<4>() {
            return K::eq_slots(simd, words, key) & KEY_BITS;
        }
        if let Some(words) = self.words::<8>() {
            return K::eq_slots(simd, words, key) & KEY_BITS;
        }
        if let Some(words) = self.words::<16>() {
            // No instruction set compares sixteen words of 64 bits at once.
            let (eights, _) = words.as_chunks::<8>();
            let halves = eights.iter().enumerate();
            let equal = halves.fold(0, |equal, (at, half)| {
                equal | K::eq_slots(simd, half, key) << (8 * at)
            });
            return equal & KEY_BITS;
        }
        let pairs = self.0.iter().enumerate();
        pairs.fold(0, |equal, (slot, pair)| {
            equal | u32::from(pair.key == key) << (2 * slot)
        })
    }
}

impl<K: Word, V: Word, const M: usize> BucketLayout<K, V, M> for Pairs<K, V, M> {
    const KEY_STEP_BYTES: usize = size_of::<Pair<K, V>>();

    #[inline(always)]
    fn key(&self, slot: usize) -> K {
        self.0[slot].key
    }

    #[inline(always)]
    fn value(&self, slot: usize) -> V {
        self.0[slot].value
    }

    fn put(&mut self, slot: usize, key: K, value: V) {
        self.0[slot] = Pair { key, value };
    }

    fn value_line(slot: usize) -> usize {
        let value = std::mem::offset_of!(Pair<K, V>, value);
        (slot * size_of::<Pair<K, V>>() + value) / CACHE_LINE_BYTES
    }

    #[inline(always)]
    fn find_slot<S: Simd>(&self, simd: S, key: K) -> (bool, usize) {
        let equal = self.eq(simd, key);
        // The remainder keeps the index in bounds if no bit is set.
        (equal != 0, equal.trailing_zeros() as usize / 2 % M)
    }
}
