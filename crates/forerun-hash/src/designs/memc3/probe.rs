//! The lookup of one key of a batch: tags, entries where a tag is the key's, then the other bucket; and the version last.
//!
//! The key's version is read before its first tags and again when the lookup ends. Where it changed, which is rare, the key
//! is read again alone.

use super::super::Word;
use super::super::lookup::{Probe, Step};
use super::{MemC3, Where};
use forerun_core::arch::Simd;

/// What a lookup reads next.
#[derive(Clone, Copy, Default)]
enum Next {
    /// The tags of the second bucket.
    #[default]
    Tags,
    /// The entries of a bucket.
    Entries,
}

/// Where a lookup goes next.
#[derive(Clone, Copy, Default)]
pub(in super::super) struct Cursor {
    at: Where,
    version: u32,
    /// The bucket to read.
    bucket: u32,
    next: Next,
    /// Whether it is the second one.
    is_second: bool,
}

impl<K: Word, V: Word> MemC3<K, V> {
    /// The end of a lookup, with what it found.
    #[inline(always)]
    fn end(&self, key: K, cursor: Cursor, found: Option<V>) -> Step<V, Cursor> {
        let stands = self.versions.unchanged(cursor.at.stripe, cursor.version);
        let found = if stands {
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

    /// Goes on.
    #[inline(always)]
    fn go_on(next: Cursor) -> Step<V, Cursor> {
        Step {
            hit: false,
            value: V::default(),
            more: true,
            next,
        }
    }

    /// Reads the tags of the cursor's bucket.
    #[inline(always)]
    fn read_tags(&self, key: K, cursor: Cursor) -> Step<V, Cursor> {
        let tags = self.tags.get(cursor.bucket).load();
        let mut is_candidate = false;
        for tag in tags {
            is_candidate |= tag == cursor.at.tag;
        }
        if is_candidate {
            return Self::go_on(Cursor {
                next: Next::Entries,
                ..cursor
            });
        }
        self.after_bucket(key, cursor)
    }

    /// The key is not in the cursor's bucket.
    #[inline(always)]
    fn after_bucket(&self, key: K, cursor: Cursor) -> Step<V, Cursor> {
        if cursor.is_second {
            return self.end(key, cursor, None);
        }
        Self::go_on(Cursor {
            bucket: self.other(cursor.bucket, cursor.at.tag),
            next: Next::Tags,
            is_second: true,
            ..cursor
        })
    }
}

impl<K: Word, V: Word> Probe<K, V> for MemC3<K, V> {
    type Place = Where;
    type Cursor = Cursor;

    #[inline(always)]
    fn starts<S: Simd>(&self, _: S, keys: &[K], places: &mut [Where]) {
        for (&key, place) in keys.iter().zip(places) {
            *place = self.locate(key);
        }
    }

    #[inline(always)]
    fn prefetch(&self, place: Where) {
        self.tags.prefetch(place.bucket);
    }

    #[inline(always)]
    fn first<S: Simd>(&self, _: S, key: K, at: Where) -> Step<V, Cursor> {
        let cursor = Cursor {
            at,
            version: self.versions.read(at.stripe),
            bucket: at.bucket,
            next: Next::Tags,
            is_second: false,
        };
        self.read_tags(key, cursor)
    }

    #[inline(always)]
    fn aim(&self, _: K, cursor: Cursor) -> Cursor {
        match cursor.next {
            Next::Tags => self.tags.prefetch(cursor.bucket),
            Next::Entries => self.entries.prefetch(cursor.bucket),
        }
        cursor
    }

    #[inline(always)]
    fn further<S: Simd>(&self, _: S, key: K, cursor: Cursor) -> Step<V, Cursor> {
        match cursor.next {
            Next::Tags => self.read_tags(key, cursor),
            Next::Entries => {
                // The tags again: they are in the cache, and a cursor stays small.
                match self.look_in(cursor.bucket, cursor.at.tag, key) {
                    Some((_, value)) => self.end(key, cursor, Some(value)),
                    None => self.after_bucket(key, cursor),
                }
            }
        }
    }

    #[inline(always)]
    fn prefetch_whole(&self, _: K, place: Where) {
        for bucket in [place.bucket, self.other(place.bucket, place.tag)] {
            self.tags.prefetch(bucket);
            self.entries.prefetch(bucket);
        }
    }

    #[inline(always)]
    fn whole<S: Simd>(&self, _: S, key: K, place: Where) -> (bool, V) {
        let found = self.read(place, key);
        (found.is_some(), found.unwrap_or_default())
    }

    #[inline(always)]
    fn alone<S: Simd>(&self, simd: S, key: K) -> (bool, V) {
        self.whole(simd, key, self.locate(key))
    }
}
