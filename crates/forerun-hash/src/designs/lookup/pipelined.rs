//! A prefetch for each compare: lookups that far ahead of the one compared are in flight, from the batch's first key to its
//! last, so that the memory system never waits for the program.
//!
//! ```text
//!   block     0    1    2    3    …                         a block is BLOCK keys
//!   turn 0    pp   pp                                       p  prefetch its first buckets
//!   turn 1    c         pp                                  c  compare them, one prefetch for one compare
//!   turn 2    w    c         pp                             w  its keys that need a further bucket, prefetched in the turn
//!   turn 3         w    c         …                            before, are compared with that
//! ```
//!
//! Which keys need a further bucket cannot be foretold, so none of it is a branch (`waiting.rs`). Once a block they are gone
//! through, a loop whose length is the one thing guessed.

use super::waiting::Waiting;
use super::{Batch, Probe};
use crate::designs::Word;
use forerun_core::arch::Simd;

/// Keys in a block.
const BLOCK: usize = 16;
/// Lookups between a key's prefetch and its compare.
const AHEAD: usize = 2 * BLOCK;
/// Room for waiting keys: those of a block, and as many that wait for the second time or more.
const WAITING: usize = 2 * BLOCK;

/// The places of a few blocks.
struct Places<P> {
    ring: [[P; BLOCK]; AHEAD / BLOCK],
}

/// One bucket of each key, further ones as they are needed.
#[inline(always)]
pub(super) fn as_needed<S: Simd, K: Word, V: Word, P: Probe<K, V>>(
    simd: S,
    probe: &P,
    batch: &mut Batch<'_, K, V>,
) {
    let len = batch.len();
    let mut places = Places {
        ring: [[P::Place::default(); BLOCK]; AHEAD / BLOCK],
    };
    let mut lists = [const { () }; 2].map(|()| Waiting::<P::Cursor, WAITING>::new());
    let [old, new] = &mut lists;
    let (mut old, mut new) = (old, new);

    for (keys, places) in batch.keys.chunks(BLOCK).zip(&mut places.ring) {
        let places = &mut places[..keys.len()];
        probe.starts(simd, keys, places);
        for &place in &*places {
            probe.prefetch(place);
        }
    }
    let mut from = 0;
    while from < len {
        let to = len.min(from + BLOCK);
        let here = &mut places.ring[from / BLOCK % (AHEAD / BLOCK)];
        // The places of the block that is now AHEAD; none, near the end.
        let ahead = &batch.keys[len.min(from + AHEAD)..len.min(from + AHEAD + BLOCK)];
        let mut next = [P::Place::default(); BLOCK];
        probe.starts(simd, ahead, &mut next[..ahead.len()]);

        let keys = batch.keys[from..to].iter();
        let slots = batch.values[from..to]
            .iter_mut()
            .zip(&mut batch.found[from..to]);
        let lookups = keys.zip(here.iter().zip(&next)).zip(slots).enumerate();
        for (i, ((&key, (&place, &next)), (value, found))) in lookups {
            if i < ahead.len() {
                probe.prefetch(next);
            }
            let step = probe.first(simd, key, place);
            (*found, *value) = (step.hit, step.value);
            new.push_if(step.more, from + i, step.next);
        }
        *here = next;
        for (index, cursor) in new.iter_mut() {
            *cursor = probe.aim(batch.keys[index], *cursor);
        }
        turn(simd, probe, batch, old, new);
        (old, new) = (new, old);
        from = to;
    }
    while !old.is_empty() {
        turn(simd, probe, batch, old, new);
        (old, new) = (new, old);
    }
}

/// Goes on with those that waited in `old`; who needs yet another bucket waits again, in `new`. Leaves `old` empty.
#[inline(always)]
fn turn<S: Simd, K: Word, V: Word, P: Probe<K, V>, const N: usize>(
    simd: S,
    probe: &P,
    batch: &mut Batch<'_, K, V>,
    old: &mut Waiting<P::Cursor, N>,
    new: &mut Waiting<P::Cursor, N>,
) {
    for (index, &mut cursor) in old.iter_mut() {
        let key = batch.keys[index];
        let step = probe.further(simd, key, cursor);
        if !step.more {
            batch.answer(index, (step.hit, step.value));
        } else if new.has_room_for(BLOCK + 1) {
            new.push_if(true, index, probe.aim(key, step.next));
        } else {
            // Rare: many keys of one batch with many buckets. This one goes to its end alone.
            batch.answer(index, probe.walk(simd, key, step));
        }
    }
    old.clear();
}

/// All buckets of each key, prefetched together and compared together.
#[inline(always)]
pub(super) fn all<S: Simd, K: Word, V: Word, P: Probe<K, V>>(
    simd: S,
    probe: &P,
    batch: &mut Batch<'_, K, V>,
) {
    let len = batch.len();
    let mut places = Places {
        ring: [[P::Place::default(); BLOCK]; AHEAD / BLOCK],
    };
    for (keys, places) in batch.keys.chunks(BLOCK).zip(&mut places.ring) {
        let places = &mut places[..keys.len()];
        probe.starts(simd, keys, places);
        for (&key, &place) in keys.iter().zip(&*places) {
            probe.prefetch_whole(key, place);
        }
    }
    let mut from = 0;
    while from < len {
        let to = len.min(from + BLOCK);
        let here = &mut places.ring[from / BLOCK % (AHEAD / BLOCK)];
        let ahead = &batch.keys[len.min(from + AHEAD)..len.min(from + AHEAD + BLOCK)];
        let mut next = [P::Place::default(); BLOCK];
        probe.starts(simd, ahead, &mut next[..ahead.len()]);

        let keys = batch.keys[from..to].iter();
        let slots = batch.values[from..to]
            .iter_mut()
            .zip(&mut batch.found[from..to]);
        let lookups = keys.zip(here.iter().zip(&next)).zip(slots).enumerate();
        for (i, ((&key, (&place, &next)), (value, found))) in lookups {
            if let Some(&ahead) = ahead.get(i) {
                probe.prefetch_whole(ahead, next);
            }
            (*found, *value) = probe.whole(simd, key, place);
        }
        *here = next;
        from = to;
    }
}
