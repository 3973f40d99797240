//! The lookup of one key: its buckets in order, each compared as a whole.

use super::super::Word;
use super::super::hasher::scale;
use super::super::lookup::by_lane::first_buckets;
use super::super::lookup::{Probe, Step};
use super::Cuckoo;
use super::bucket_layout::BucketLayout;
use forerun_core::arch::Simd;

/// The next bucket of a lookup.
#[derive(Clone, Copy, Default)]
pub(in super::super) struct Cursor {
    bucket: u32,
    /// Which of the key's candidates it is, from 1.
    turn: u32,
}

impl<K: Word, V: Word, const N: usize, const M: usize, B: BucketLayout<K, V, M>>
    Cuckoo<K, V, N, M, B>
{
    /// The bucket of a key's candidate `turn`.
    #[inline(always)]
    fn choice(&self, key: K, turn: u32) -> u32 {
        let hash = key.hash(&self.constants);
        let choice = hash.first.wrapping_add(hash.step.wrapping_mul(turn));
        scale(choice, self.buckets.len())
    }
}

impl<K: Word, V: Word, const N: usize, const M: usize, B: BucketLayout<K, V, M>> Probe<K, V>
    for Cuckoo<K, V, N, M, B>
{
    /// The first bucket's index, in the width in which vectors compute it.
    type Start = K;
    type Cursor = Cursor;

    #[inline(always)]
    fn start_buckets<S: Simd>(&self, simd: S, keys: &[K], starts: &mut [K]) {
        first_buckets(simd, &self.constants, self.buckets.len(), keys, starts);
    }

    #[inline(always)]
    fn prefetch(&self, start: K) {
        self.buckets.prefetch(start.to_u64() as u32);
    }

    #[inline(always)]
    fn probe_first<S: Simd>(&self, simd: S, key: K, start: K) -> Step<V, Cursor> {
        let bucket = self.buckets.get(start.to_u64() as u32);
        let (hit, value) = bucket.find(simd, key);
        Step {
            hit,
            value,
            more: !hit & bucket.was_full() & (N > 1),
            next: Cursor { bucket: 0, turn: 1 },
        }
    }

    #[inline(always)]
    fn prefetch_next(&self, key: K, cursor: Cursor) -> Cursor {
        let bucket = self.choice(key, cursor.turn);
        self.buckets.prefetch(bucket);
        Cursor { bucket, ..cursor }
    }

    #[inline(always)]
    fn probe_next<S: Simd>(&self, simd: S, key: K, cursor: Cursor) -> Step<V, Cursor> {
        let bucket = self.buckets.get(cursor.bucket);
        let (hit, value) = bucket.find(simd, key);
        let turn = cursor.turn + 1;
        Step {
            hit,
            value,
            more: !hit & bucket.was_full() & (turn < N as u32),
            next: Cursor { bucket: 0, turn },
        }
    }

    #[inline(always)]
    fn prefetch_all(&self, key: K, start: K) {
        self.prefetch(start);
        for turn in 1..N as u32 {
            self.buckets.prefetch(self.choice(key, turn));
        }
    }

    #[inline(always)]
    fn probe_all<S: Simd>(&self, simd: S, key: K, start: K) -> (bool, V) {
        let first = self.buckets.get(start.to_u64() as u32);
        let (mut hit, mut value) = first.find(simd, key);
        for turn in 1..N as u32 {
            let bucket = self.buckets.get(self.choice(key, turn));
            let (here, other) = bucket.find(simd, key);
            value = if here { other } else { value };
            hit |= here;
        }
        (hit, value)
    }
}
