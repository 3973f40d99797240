//! The lines of a chain: the bucket with its header, and further lines of entries only.
//!
//! ```text
//!   bucket        │ header, 16 B │ k0 k1 k2 │ v0 v1 v2 │        u64 to u64: 64 bytes
//!   further line  │ k0 k1 k2 k3     │ v0 v1 v2 v3      │
//! ```

use super::super::Word;
use super::super::slab::Zeroed;
use super::header::{Header, LINK_SLOTS, SLOTS};
use forerun_core::arch::Simd;

/// A bucket.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Bucket<K, V> {
    pub(super) header: Header,
    pub(super) entries: Entries<K, V, SLOTS>,
}

/// A further line.
pub(super) type Link<K, V> = Entries<K, V, LINK_SLOTS>;

/// The entries of a line. Which slots are occupied is in the header.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Entries<K, V, const N: usize> {
    pub(super) keys: [K; N],
    pub(super) values: [V; N],
}

// SAFETY: a header and words are numbers, for which zeroed bytes are zero; they are aligned to at
// most 16 bytes.
unsafe impl<K: Word, V: Word> Zeroed for Bucket<K, V> {}

// SAFETY: words are numbers, for which zeroed bytes are zero; they are aligned to at most 8 bytes.
unsafe impl<K: Word, V: Word, const N: usize> Zeroed for Entries<K, V, N> {}

impl<K: Word, V: Word> Bucket<K, V> {
    /// The bucket's eight words, if it has as many of the key's width.
    #[inline(always)]
    fn words(&self) -> Option<&[K; 8]> {
        let is_whole = K::BYTES == 8 && V::BYTES == 8;
        // SAFETY: then the header takes two words and the entries six, without padding because of
        // `repr(C)`, and the bucket is aligned for them. Every bit pattern is a word.
        is_whole.then(|| unsafe { &*std::ptr::from_ref(self).cast::<[K; 8]>() })
    }

    /// Whether the key is in this bucket itself, and its value; otherwise any value.
    #[inline(always)]
    pub(super) fn find<S: Simd>(&self, simd: S, key: K) -> (bool, V) {
        let equal = match self.words() {
            // One comparison of the whole line, of which the header's two words are dropped.
            Some(words) => K::eq_slots(simd, words, key) >> 2,
            None => K::eq_slots(simd, &self.entries.keys, key),
        };
        self.entries.hit(equal & self.header.here())
    }
}

impl<K: Word, V: Word, const N: usize> Entries<K, V, N> {
    /// Whether the key is in an occupied slot, and its value; otherwise any value.
    #[inline(always)]
    pub(super) fn find<S: Simd>(&self, simd: S, key: K, occupied: u32) -> (bool, V) {
        self.hit(K::eq_slots(simd, &self.keys, key) & occupied)
    }

    #[inline(always)]
    fn hit(&self, equal: u32) -> (bool, V) {
        // The remainder keeps the index in bounds if no bit is set.
        let slot = equal.trailing_zeros() as usize % N;
        (equal != 0, self.values[slot])
    }
}
