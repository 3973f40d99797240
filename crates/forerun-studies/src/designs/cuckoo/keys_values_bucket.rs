//! The split layout: all keys of a bucket, then all its values.
//!
//! ```text
//!   M = 4, u64 to u64:   │ k0 k1 k2 k3 │ v0 v1 v2 v3 │     one line: one compare finds the key, its value is in the cache
//!   M = 8, u64 to u64:   │ k0 … k7 │                       two lines
//!                        │ v0 … v7 │
//!   M = 1:               │ k0 │ v0 │                       an entry of a table without buckets
//! ```

use super::super::Word;
use super::super::slab::Zeroed;
use super::bucket_layout::BucketLayout;
use forerun_core::CACHE_LINE_BYTES;
use forerun_core::arch::Simd;

/// The slots of a bucket.
#[derive(Debug)]
#[repr(C)]
pub struct KeysValues<K, V, const M: usize> {
    keys: [K; M],
    values: [V; M],
}

// SAFETY: words are numbers, for which zeroed bytes are zero; they are aligned to at most 8 bytes.
unsafe impl<K: Word, V: Word, const M: usize> Zeroed for KeysValues<K, V, M> {}

impl<K: Word, V: Word, const M: usize> BucketLayout<K, V, M> for KeysValues<K, V, M> {
    const KEY_STEP_BYTES: usize = K::BYTES;

    #[inline(always)]
    fn key(&self, slot: usize) -> K {
        self.keys[slot]
    }

    #[inline(always)]
    fn value(&self, slot: usize) -> V {
        self.values[slot]
    }

    fn put(&mut self, slot: usize, key: K, value: V) {
        self.keys[slot] = key;
        self.values[slot] = value;
    }

    fn value_line(slot: usize) -> usize {
        (std::mem::offset_of!(Self, values) + slot * V::BYTES) / CACHE_LINE_BYTES
    }

    #[inline(always)]
    fn find_slot<S: Simd>(&self, simd: S, key: K) -> (bool, usize) {
        let equal = K::eq_slots(simd, &self.keys, key);
        // The remainder keeps the index in bounds if no bit is set.
        (equal != 0, equal.trailing_zeros() as usize % M)
    }
}
