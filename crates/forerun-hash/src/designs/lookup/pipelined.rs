//! A prefetch for each compare: lookups that far ahead of the one compared are in flight, from the batch's first key to its
//! last, so that the memory system never waits for the program.
//!
//! ```text
//!   key      …  j      j+1      …      j + AHEAD
//!               compare                prefetch        then both move on by one
//!   waiting     keys of the block before that need a further bucket, prefetched when that was known
//! ```
//!
//! Which keys need a further bucket cannot be foretold, so none of it is a branch: such a key is appended to a list by
//! moving the list's end by 0 or 1. Once a block of keys the list of the block before is worked off, a loop whose length
//! is the one thing guessed.

use super::{Batch, Probe};
use crate::designs::Word;
use forerun_core::arch::Simd;

/// Lookups between a key's prefetch and its compare.
const AHEAD: usize = 32;
/// Keys between two visits to the waiting list.
const BLOCK: usize = 16;
/// Room for waiting keys: those of a block, and as many again that wait for the second time or more.
const WAITING: usize = 2 * BLOCK;

/// The keys that need a further bucket.
struct Waiting<P> {
    len: usize,
    index: [usize; WAITING],
    place: [P; WAITING],
}

impl<P: Copy + Default> Waiting<P> {
    #[inline(always)]
    fn new() -> Waiting<P> {
        Waiting {
            len: 0,
            index: [0; WAITING],
            place: [P::default(); WAITING],
        }
    }

    /// Appends if `more`, without a branch.
    #[inline(always)]
    fn push(&mut self, index: usize, place: P, more: bool) {
        self.index[self.len % WAITING] = index;
        self.place[self.len % WAITING] = place;
        self.len += usize::from(more);
    }
}

/// One bucket of each key, further ones as they are needed.
#[inline(always)]
pub(super) fn as_needed<S: Simd, K: Word, V: Word, P: Probe<K, V>>(
    simd: S,
    probe: &P,
    mut batch: Batch<'_, K, V>,
) -> usize {
    let len = batch.len();
    let mut hits = 0;
    let mut places = [P::Place::default(); AHEAD];
    for (&key, place) in batch.keys.iter().zip(&mut places) {
        *place = probe.start(key);
        probe.prefetch(*place);
    }
    let mut waiting = Waiting::new();
    let mut from = 0;
    while from < len {
        let to = len.min(from + BLOCK);
        let mut next = Waiting::new();
        for j in from..to {
            let place = places[j % AHEAD];
            if j + AHEAD < len {
                let ahead = probe.start(batch.keys[j + AHEAD]);
                probe.prefetch(ahead);
                places[j % AHEAD] = ahead;
            }
            let step = probe.step(simd, batch.keys[j], place);
            hits += batch.answer(j, (step.hit, step.value));
            next.push(j, step.next, step.more);
        }
        for &place in &next.place[..next.len] {
            probe.prefetch(place);
        }
        hits += turn(simd, probe, &mut batch, &waiting, &mut next);
        waiting = next;
        from = to;
    }
    while waiting.len > 0 {
        let mut next = Waiting::new();
        hits += turn(simd, probe, &mut batch, &waiting, &mut next);
        waiting = next;
    }
    hits
}

/// Goes on with those that waited; who needs yet another bucket waits again, in `next`.
#[inline(always)]
fn turn<S: Simd, K: Word, V: Word, P: Probe<K, V>>(
    simd: S,
    probe: &P,
    batch: &mut Batch<'_, K, V>,
    waiting: &Waiting<P::Place>,
    next: &mut Waiting<P::Place>,
) -> usize {
    let mut hits = 0;
    for at in 0..waiting.len {
        let index = waiting.index[at];
        let key = batch.keys[index];
        let step = probe.step(simd, key, waiting.place[at]);
        if !step.more {
            hits += batch.answer(index, (step.hit, step.value));
        } else if next.len < WAITING {
            probe.prefetch(step.next);
            next.push(index, step.next, true);
        } else {
            let answer = probe.walk(simd, key, step.next);
            hits += batch.answer(index, answer);
        }
    }
    hits
}

/// All buckets of each key, prefetched together and compared together.
#[inline(always)]
pub(super) fn all<S: Simd, K: Word, V: Word, P: Probe<K, V>>(
    simd: S,
    probe: &P,
    mut batch: Batch<'_, K, V>,
) -> usize {
    let len = batch.len();
    let mut hits = 0;
    let mut places = [P::Place::default(); AHEAD];
    for (&key, place) in batch.keys.iter().zip(&mut places) {
        *place = probe.start(key);
        probe.prefetch_all(*place);
    }
    for j in 0..len {
        let place = places[j % AHEAD];
        if j + AHEAD < len {
            let ahead = probe.start(batch.keys[j + AHEAD]);
            probe.prefetch_all(ahead);
            places[j % AHEAD] = ahead;
        }
        let answer = probe.finish(simd, batch.keys[j], place);
        hits += batch.answer(j, answer);
    }
    hits
}
