//! Prefetches a block while an earlier one is compared, from the batch's first key to its last, so
//! that the memory system never waits for the program.
//!
//! ```text
//!   block     0    1    2    3    …
//!   turn 0    pp   pp                  p  prefetch the first bucket of each key
//!   turn 1    c         pp             c  compare it, and prefetch a further one for those that need it
//!   turn 2    w    c         pp        w  compare that
//!   turn 3         w    c         …
//! ```

use super::pending_keys::{BLOCK_MAX, PendingKeys, compare};
use super::{Batch, Probe};
use crate::designs::Word;
use forerun_core::arch::Simd;

/// Keys in a block.
const BLOCK: usize = 16;
/// Blocks between a key's prefetch and its comparison.
const BLOCKS_AHEAD: usize = 4;
const AHEAD: usize = BLOCKS_AHEAD * BLOCK;
/// Capacity of the waiting list: the keys of one block, and as many that wait for a third or later
/// bucket.
const WAITING: usize = 2 * BLOCK;

/// Reads one bucket of each key, and later ones as needed.
#[inline(always)]
pub(super) fn as_needed<S: Simd, K: Word, V: Word, P: Probe<K, V>>(
    simd: S,
    probe: &P,
    batch: &mut Batch<'_, K, V>,
) {
    let mut ring = [[P::Start::default(); BLOCK]; BLOCKS_AHEAD];
    let mut cursors = [P::Cursor::default(); BLOCK_MAX];
    let mut lists = [(); 2].map(|()| PendingKeys::<P::Cursor, WAITING>::new());
    let [now, next] = &mut lists;
    let (mut now, mut next) = (now, next);

    for (keys, starts) in batch.keys.chunks(BLOCK).zip(&mut ring) {
        fetch(simd, probe, keys, starts);
    }
    let mut from = 0;
    while from < batch.len() {
        let to = batch.len().min(from + BLOCK);
        let starts = &mut ring[from / BLOCK % BLOCKS_AHEAD];
        let here = *starts;
        fetch(simd, probe, batch.ahead(from), starts);
        let answers = (&mut batch.values[from..to], &mut batch.found[from..to]);
        let keys = &batch.keys[from..to];
        let more = compare(simd, probe, keys, &here, answers, &mut cursors);
        next.collect(probe, batch.keys, from, more, &cursors);
        turn(simd, probe, batch, now, next);
        (now, next) = (next, now);
        from = to;
    }
    while !now.is_empty() {
        turn(simd, probe, batch, now, next);
        (now, next) = (next, now);
    }
}

impl<K: Word, V: Word> Batch<'_, K, V> {
    /// The block that is `AHEAD` blocks after the one at `from`, if there is one.
    #[inline(always)]
    fn ahead(&self, from: usize) -> &[K] {
        let at = self.len().min(from + AHEAD);
        &self.keys[at..self.len().min(at + BLOCK)]
    }
}

/// Computes the first buckets of a block's keys, and prefetches them.
#[inline(always)]
fn fetch<S: Simd, K: Word, V: Word, P: Probe<K, V>>(
    simd: S,
    probe: &P,
    keys: &[K],
    starts: &mut [P::Start; BLOCK],
) {
    let starts = &mut starts[..keys.len()];
    probe.start_buckets(simd, keys, starts);
    for &start in &*starts {
        probe.prefetch(start);
    }
}

/// Continues the lookups that wait in `now`, and empties it. A lookup that needs another bucket
/// waits again, in `next`.
#[inline(always)]
fn turn<S: Simd, K: Word, V: Word, P: Probe<K, V>, const N: usize>(
    simd: S,
    probe: &P,
    batch: &mut Batch<'_, K, V>,
    now: &mut PendingKeys<P::Cursor, N>,
    next: &mut PendingKeys<P::Cursor, N>,
) {
    for (index, cursor) in now.iter() {
        let key = batch.keys[index];
        let step = probe.probe_next(simd, key, cursor);
        if !step.more {
            batch.answer(index, (step.hit, step.value));
        } else if next.has_capacity_for(1) {
            next.push(index, probe.prefetch_next(key, step.next));
        } else {
            // Rare: many keys of one batch need many buckets. This lookup runs to its end alone.
            batch.answer(index, probe.finish_lookup(simd, key, step));
        }
    }
    now.clear();
}

/// Prefetches all buckets of a key together, and compares them together.
#[inline(always)]
pub(super) fn all<S: Simd, K: Word, V: Word, P: Probe<K, V>>(
    simd: S,
    probe: &P,
    batch: &mut Batch<'_, K, V>,
) {
    let mut ring = [[P::Start::default(); BLOCK]; BLOCKS_AHEAD];
    for (keys, starts) in batch.keys.chunks(BLOCK).zip(&mut ring) {
        fetch_whole(simd, probe, keys, starts);
    }
    let mut from = 0;
    while from < batch.len() {
        let to = batch.len().min(from + BLOCK);
        let starts = &mut ring[from / BLOCK % BLOCKS_AHEAD];
        let here = *starts;
        fetch_whole(simd, probe, batch.ahead(from), starts);
        batch.probe_all(simd, probe, from, &here[..to - from]);
        from = to;
    }
}

/// Like [`fetch`], for all buckets that the keys may need.
#[inline(always)]
fn fetch_whole<S: Simd, K: Word, V: Word, P: Probe<K, V>>(
    simd: S,
    probe: &P,
    keys: &[K],
    starts: &mut [P::Start; BLOCK],
) {
    let starts = &mut starts[..keys.len()];
    probe.start_buckets(simd, keys, starts);
    for (&key, &start) in keys.iter().zip(&*starts) {
        probe.prefetch_all(key, start);
    }
}
