//! The lookup of one key of a batch: one bucket, then the other, and the version at the end.
//!
//! A bucket's tags and entries are fetched together. Fetching entries only after a tag matches
//! would save lines for missing keys, but every present key would wait twice.
//!
//! The key's version is read before its first bucket and again when the lookup ends. If it changed,
//! which is rare, the key is read again alone.

use super::super::Word;
use super::super::lookup::{Probe, Step};
use super::{KeyBuckets, MemC3};
use forerun_core::arch::Simd;

/// A lookup between its two buckets.
#[derive(Clone, Copy, Default)]
pub(in super::super) struct Cursor {
    at: KeyBuckets,
    version: u32,
}

impl<K: Word, V: Word> MemC3<K, V> {
    /// Ends a lookup with its result.
    #[inline(always)]
    fn end(&self, key: K, cursor: Cursor, found: Option<V>) -> Step<V, Cursor> {
        let is_current = self.versions.unchanged(cursor.at.stripe, cursor.version);
        let found = if is_current {
            found
        } else {
            self.read(cursor.at, key)
        };
        Step {
            hit: found.is_some(),
            value: found.unwrap_or_default(),
            more: false,
            next: cursor,
        }
    }

    /// Prefetches the tags and the entries of a bucket.
    #[inline(always)]
    fn prefetch_bucket(&self, bucket: u32) {
        self.tags.prefetch(bucket);
        self.entries.prefetch(bucket);
    }
}

impl<K: Word, V: Word> Probe<K, V> for MemC3<K, V> {
    type Start = KeyBuckets;
    type Cursor = Cursor;

    #[inline(always)]
    fn start_buckets<S: Simd>(&self, _: S, keys: &[K], starts: &mut [KeyBuckets]) {
        for (&key, start) in keys.iter().zip(starts) {
            *start = self.locate(key);
        }
    }

    #[inline(always)]
    fn prefetch(&self, start: KeyBuckets) {
        self.prefetch_bucket(start.bucket);
    }

    #[inline(always)]
    fn probe_first<S: Simd>(&self, _: S, key: K, at: KeyBuckets) -> Step<V, Cursor> {
        let version = self.versions.read(at.stripe);
        let cursor = Cursor { at, version };
        match self.look_in(at.bucket, at.tag, key) {
            Some((_, value)) => self.end(key, cursor, Some(value)),
            None => Step {
                hit: false,
                value: V::default(),
                more: true,
                next: cursor,
            },
        }
    }

    #[inline(always)]
    fn prefetch_next(&self, _: K, cursor: Cursor) -> Cursor {
        self.prefetch_bucket(self.other(cursor.at.bucket, cursor.at.tag));
        cursor
    }

    #[inline(always)]
    fn probe_next<S: Simd>(&self, _: S, key: K, cursor: Cursor) -> Step<V, Cursor> {
        let bucket = self.other(cursor.at.bucket, cursor.at.tag);
        let found = self.look_in(bucket, cursor.at.tag, key);
        self.end(key, cursor, found.map(|(_, value)| value))
    }

    #[inline(always)]
    fn prefetch_all(&self, _: K, start: KeyBuckets) {
        self.prefetch_bucket(start.bucket);
        self.prefetch_bucket(self.other(start.bucket, start.tag));
    }

    #[inline(always)]
    fn probe_all<S: Simd>(&self, _: S, key: K, start: KeyBuckets) -> (bool, V) {
        let found = self.read(start, key);
        (found.is_some(), found.unwrap_or_default())
    }

    #[inline(always)]
    fn lookup_single<S: Simd>(&self, simd: S, key: K) -> (bool, V) {
        self.probe_all(simd, key, self.locate(key))
    }
}
