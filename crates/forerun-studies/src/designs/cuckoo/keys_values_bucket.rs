//! A bucket of M slots: all its keys, then all its values.
//!
//! ```text
//!   M = 4, u64 to u64:   │ k0 k1 k2 k3 │ v0 v1 v2 v3 │     one line: one compare finds the key, its value is in the cache
//!   M = 8, u64 to u64:   │ k0 … k7 │                       two lines
//!                        │ v0 … v7 │
//!   M = 1:               │ k0 │ v0 │                       an entry of a table without buckets
//! ```
//!
//! Slots are filled from the front, and removals keep them packed: while the last slot is empty,
//! the last entry moves into the hole. So *the last slot shows whether the bucket was ever full*.
//! Once it was, some keys may be in another bucket. From then on, a removal leaves a permanent
//! tombstone, so that no lookup ends at a bucket that an insertion skipped.

use super::super::Word;
use super::super::sentinel_entries::{empty, tombstone};
use super::super::slab::Zeroed;
use forerun_core::CACHE_LINE_BYTES;

/// The slots of a bucket.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Bucket<K, V, const M: usize> {
    pub(super) keys: [K; M],
    pub(super) values: [V; M],
}

// SAFETY: words are numbers, for which zeroed bytes are zero; they are aligned to at most 8 bytes.
unsafe impl<K: Word, V: Word, const M: usize> Zeroed for Bucket<K, V, M> {}

impl<K: Word, V: Word, const M: usize> Bucket<K, V, M> {
    /// Whether every slot holds an entry or a tombstone. Only then may its keys be in other
    /// buckets.
    #[inline(always)]
    pub(super) fn was_full(&self) -> bool {
        self.keys[M - 1] != empty()
    }

    /// The line of the bucket that holds a slot's value.
    pub(super) const fn value_line(slot: usize) -> usize {
        (std::mem::offset_of!(Self, values) + slot * V::BYTES) / CACHE_LINE_BYTES
    }

    /// The slot that holds a key.
    pub(super) fn position(&self, key: K) -> Option<usize> {
        self.keys.iter().position(|&slot| slot == key)
    }

    /// A slot that can take an entry.
    pub(super) fn vacancy(&self) -> Option<usize> {
        let free = |&slot: &K| slot == empty() || slot == tombstone();
        self.keys.iter().position(free)
    }

    /// Fills a slot.
    pub(super) fn put(&mut self, slot: usize, key: K, value: V) {
        self.keys[slot] = key;
        self.values[slot] = value;
    }

    /// Takes the entry out of a slot, and returns its value.
    pub(super) fn take(&mut self, slot: usize) -> V {
        let value = self.values[slot];
        if self.was_full() {
            self.keys[slot] = tombstone();
        } else {
            let entries = self.keys.iter().position(|&key| key == empty());
            let last = entries.unwrap_or(M) - 1;
            self.put(slot, self.keys[last], self.values[last]);
            self.keys[last] = empty();
        }
        value
    }
}
