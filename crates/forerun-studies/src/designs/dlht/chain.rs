//! The lookup of one key: its bucket, then the further lines of the chain in order.

use super::super::Word;
use super::super::lookup::by_lane::first_buckets;
use super::super::lookup::{Probe, Step};
use super::Dlht;
use forerun_core::arch::Simd;

/// The next line of a lookup.
#[derive(Clone, Copy, Default)]
pub(in super::super) struct Cursor {
    bucket: u32,
    /// The further line, and its place in the chain, from 0.
    link: u32,
    nth: u32,
}

impl<K: Word, V: Word> Dlht<K, V> {
    /// Ends a step at a line of which `nth` further ones have been read.
    #[inline(always)]
    fn step(&self, (hit, value): (bool, V), bucket: u32, nth: u32) -> Step<V, Cursor> {
        let link = self.buckets.get(bucket).header.link(nth as usize);
        Step {
            hit,
            value,
            more: !hit & link.is_some(),
            next: Cursor {
                bucket,
                link: link.unwrap_or_default(),
                nth,
            },
        }
    }
}

impl<K: Word, V: Word> Probe<K, V> for Dlht<K, V> {
    /// The bucket's index, in the width in which vectors compute it.
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
        let bucket = start.to_u64() as u32;
        self.step(self.buckets.get(bucket).find(simd, key), bucket, 0)
    }

    #[inline(always)]
    fn prefetch_next(&self, _: K, cursor: Cursor) -> Cursor {
        self.links.prefetch(cursor.link);
        cursor
    }

    #[inline(always)]
    fn probe_next<S: Simd>(&self, simd: S, key: K, cursor: Cursor) -> Step<V, Cursor> {
        let Cursor { bucket, link, nth } = cursor;
        let occupied = self.buckets.get(bucket).header.in_link(nth as usize);
        let found = self.links.get(link).find(simd, key, occupied);
        self.step(found, bucket, nth + 1)
    }

    #[inline(always)]
    fn prefetch_all(&self, _: K, start: K) {
        self.prefetch(start);
    }

    #[inline(always)]
    fn probe_all<S: Simd>(&self, simd: S, key: K, start: K) -> (bool, V) {
        self.finish_lookup(simd, key, self.probe_first(simd, key, start))
    }
}
