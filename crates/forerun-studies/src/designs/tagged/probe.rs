//! The lookup of one key: the tags of a group, then the entries whose tags match, then the next
//! group.

use super::super::Word;
use super::super::hasher::{Hash, scale};
use super::super::lookup::{Probe, Step};
use super::tags::GROUP;
use super::{GROUPS_MAX, Slot, Tag, Tagged};
use forerun_core::arch::Simd;

/// Where a lookup goes next.
#[derive(Clone, Copy, Default)]
pub(in super::super) struct Cursor {
    group: u32,
    /// Groups that may still follow this one.
    left: u32,
    /// A bit for each slot whose entry is read next. If no bit is set, the tags are read next.
    candidates: u32,
    /// Whether the key may be in a later group.
    beyond: bool,
}

impl<K: Word, V: Word, T: Tag> Tagged<K, V, T> {
    /// Reads the tags of a group.
    #[inline(always)]
    fn tags_step<S: Simd>(&self, simd: S, step: u32, group: u32, left: u32) -> Step<V, Cursor> {
        let tags = self.tags.get(group);
        let candidates = T::eq_group(simd, &tags.0, T::of(step));
        let beyond = tags.was_full() & (left > 0);
        Step {
            hit: false,
            value: V::default(),
            more: (candidates != 0) | beyond,
            next: Cursor {
                group,
                left,
                candidates,
                beyond,
            },
        }
    }
}

impl<K: Word, V: Word, T: Tag> Probe<K, V> for Tagged<K, V, T> {
    type Start = Hash;
    type Cursor = Cursor;

    #[inline(always)]
    fn start_buckets<S: Simd>(&self, _: S, keys: &[K], starts: &mut [Hash]) {
        for (&key, start) in keys.iter().zip(starts) {
            *start = key.hash(&self.constants);
        }
    }

    #[inline(always)]
    fn prefetch(&self, start: Hash) {
        self.tags.prefetch(scale(start.first, self.tags.len()));
    }

    #[inline(always)]
    fn probe_first<S: Simd>(&self, simd: S, _: K, start: Hash) -> Step<V, Cursor> {
        let groups = self.tags.len();
        let left = GROUPS_MAX.min(groups) - 1;
        self.tags_step(simd, start.step, scale(start.first, groups), left)
    }

    #[inline(always)]
    fn prefetch_next(&self, _: K, cursor: Cursor) -> Cursor {
        if cursor.candidates != 0 {
            let slot = cursor.candidates.trailing_zeros() as usize % GROUP;
            let group = cursor.group;
            self.entries.prefetch(Slot { group, slot }.entry());
            return cursor;
        }
        let group = self.after(cursor.group);
        self.tags.prefetch(group);
        Cursor {
            group,
            left: cursor.left - 1,
            ..cursor
        }
    }

    #[inline(always)]
    fn probe_next<S: Simd>(&self, simd: S, key: K, cursor: Cursor) -> Step<V, Cursor> {
        if cursor.candidates == 0 {
            let step = key.hash(&self.constants).step;
            return self.tags_step(simd, step, cursor.group, cursor.left);
        }
        let slot = cursor.candidates.trailing_zeros() as usize % GROUP;
        let group = cursor.group;
        let entry = self.entries.get(Slot { group, slot }.entry());
        let hit = entry.key == key;
        let candidates = cursor.candidates & (cursor.candidates - 1);
        Step {
            hit,
            value: entry.value,
            more: !hit & ((candidates != 0) | cursor.beyond),
            next: Cursor {
                candidates,
                ..cursor
            },
        }
    }

    #[inline(always)]
    fn prefetch_all(&self, _: K, start: Hash) {
        self.prefetch(start);
    }

    #[inline(always)]
    fn probe_all<S: Simd>(&self, simd: S, key: K, start: Hash) -> (bool, V) {
        self.finish_lookup(simd, key, self.probe_first(simd, key, start))
    }
}
