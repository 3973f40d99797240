//! What every layout of a bucket of M slots does.
//!
//! ```text
//!   keys_values_bucket.rs   │ k0 k1 k2 k3 │ v0 v1 v2 v3 │      split: one vector holds the keys
//!   pairs_bucket.rs         │ k0 v0 │ k1 v1 │ k2 v2 │ k3 v3 │  interleaved: a key's value is beside it
//! ```
//!
//! Slots are filled from the front, and removals keep them packed: while the last slot is empty,
//! the last entry moves into the hole. So *the last slot shows whether the bucket was ever full*.
//! Once it was, some keys may be in another bucket. From then on, a removal leaves a permanent
//! tombstone, so that no lookup ends at a bucket that an insertion skipped.

use super::super::Word;
use super::super::sentinel_entries::{empty, tombstone};
use super::super::slab::Zeroed;
use forerun_core::arch::Simd;

/// A bucket of M slots. Zeroed memory is empty slots.
#[allow(
    private_bounds,
    reason = "what memory a bucket may be made of is no one else's concern"
)]
pub trait BucketLayout<K: Word, V: Word, const M: usize>: Zeroed {
    /// Bytes from a slot's key to the next slot's.
    const KEY_STEP_BYTES: usize;

    /// The key in a slot.
    fn key(&self, slot: usize) -> K;

    /// The value in a slot.
    fn value(&self, slot: usize) -> V;

    /// Fills a slot.
    fn put(&mut self, slot: usize, key: K, value: V);

    /// The bucket's cache line that holds a slot's value, from 0.
    fn value_line(slot: usize) -> usize;

    /// Whether a slot has the key, and which. If none has it, the slot is any.
    fn find_slot<S: Simd>(&self, simd: S, key: K) -> (bool, usize);

    /// Whether the key is in this bucket, and its value. If it is not, the value is any of the
    /// bucket's.
    #[inline(always)]
    fn find<S: Simd>(&self, simd: S, key: K) -> (bool, V) {
        let (hit, slot) = self.find_slot(simd, key);
        (hit, self.value(slot))
    }

    /// Whether every slot holds an entry or a tombstone. Only then may its keys be in other
    /// buckets.
    #[inline(always)]
    fn was_full(&self) -> bool {
        self.key(M - 1) != empty()
    }

    /// The slot that holds a key.
    fn position(&self, key: K) -> Option<usize> {
        (0..M).find(|&slot| self.key(slot) == key)
    }

    /// A slot that can take an entry.
    fn vacancy(&self) -> Option<usize> {
        let is_free = |&slot: &usize| [empty(), tombstone()].contains(&self.key(slot));
        (0..M).find(is_free)
    }

    /// Takes the entry out of a slot, and returns its value.
    fn take(&mut self, slot: usize) -> V {
        let value = self.value(slot);
        if self.was_full() {
            self.put(slot, tombstone(), value);
        } else {
            let last = self.position(empty()).unwrap_or(M) - 1;
            self.put(slot, self.key(last), self.value(last));
            self.put(last, empty(), value);
        }
        value
    }
}
