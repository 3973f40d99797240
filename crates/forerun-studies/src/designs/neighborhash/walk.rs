//! The lookup of one key: its home, then the ring of its home, entry by entry.

use super::super::Word;
use super::super::lookup::{Probe, Step};
use super::NeighborHash;
use super::cell::{Cell, Rest};
use forerun_core::arch::Simd;

/// Where a lookup starts.
#[derive(Clone, Copy, Default)]
pub(in super::super) struct Home {
    at: u32,
    rest: Rest,
}

/// The next entry of a lookup.
#[derive(Clone, Copy, Default)]
pub(in super::super) struct Cursor {
    at: u32,
    home: Home,
}

impl<K: Word, V: Word> NeighborHash<K, V> {
    /// Compares the entry in a slot. `may_follow` is whether the ring may go on after it.
    #[inline(always)]
    fn compare(
        &self,
        at: u32,
        home: Home,
        is_hit: impl Fn(Cell) -> bool,
        may_follow: impl Fn(Cell) -> bool,
    ) -> Step<V, Cursor> {
        let slot = self.slots.get(at);
        let cell = slot.cell();
        let (hit, next) = (is_hit(cell), cell.next(at));
        Step {
            hit,
            value: slot.value,
            more: !hit & may_follow(cell) & (next != home.at),
            next: Cursor { at: next, home },
        }
    }
}

impl<K: Word, V: Word> Probe<K, V> for NeighborHash<K, V> {
    type Start = Home;
    type Cursor = Cursor;

    #[inline(always)]
    fn start_buckets<S: Simd>(&self, _: S, keys: &[K], starts: &mut [Home]) {
        for (&key, start) in keys.iter().zip(starts) {
            let (at, rest) = self.locate(key);
            *start = Home { at, rest };
        }
    }

    #[inline(always)]
    fn prefetch(&self, start: Home) {
        self.slots.prefetch(start.at);
    }

    #[inline(always)]
    fn probe_first<S: Simd>(&self, _: S, _: K, home: Home) -> Step<V, Cursor> {
        let is_hit = |cell: Cell| cell.is_head() & (cell.rest() == home.rest);
        self.compare(home.at, home, is_hit, Cell::is_head)
    }

    #[inline(always)]
    fn prefetch_next(&self, _: K, cursor: Cursor) -> Cursor {
        self.slots.prefetch(cursor.at);
        cursor
    }

    #[inline(always)]
    fn probe_next<S: Simd>(&self, _: S, _: K, cursor: Cursor) -> Step<V, Cursor> {
        let home = cursor.home;
        let is_hit = |cell: Cell| cell.rest() == home.rest;
        self.compare(cursor.at, home, is_hit, |_| true)
    }

    #[inline(always)]
    fn prefetch_all(&self, _: K, start: Home) {
        self.prefetch(start);
    }

    #[inline(always)]
    fn probe_all<S: Simd>(&self, simd: S, key: K, start: Home) -> (bool, V) {
        self.finish_lookup(simd, key, self.probe_first(simd, key, start))
    }
}
