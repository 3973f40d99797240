//! A window of lookups, each at its own step: one that ends makes room for the next key at once.
//!
//! Whether a lookup ends at a step is an unpredictable branch, a guess a key. What it saves is idle places in the window.

use super::{Batch, Probe};
use crate::designs::Word;
use forerun_core::arch::Simd;

/// Lookups in flight.
const WINDOW: usize = 16;

/// Looks the batch up by a window.
#[inline(always)]
pub(super) fn rolling<S: Simd, K: Word, V: Word, P: Probe<K, V>>(
    simd: S,
    probe: &P,
    mut batch: Batch<'_, K, V>,
) -> usize {
    let len = batch.len();
    let mut hits = 0;
    let mut window = [(0, P::Place::default()); WINDOW];
    let mut live = WINDOW.min(len);
    for (i, slot) in window[..live].iter_mut().enumerate() {
        *slot = (i, probe.start(batch.keys[i]));
        probe.prefetch(slot.1);
    }
    let mut next_key = live;
    while live > 0 {
        let mut at = 0;
        while at < live {
            let (i, place) = window[at];
            let step = probe.step(simd, batch.keys[i], place);
            if step.more {
                probe.prefetch(step.next);
                window[at].1 = step.next;
            } else {
                hits += batch.answer(i, (step.hit, step.value));
                if next_key < len {
                    let place = probe.start(batch.keys[next_key]);
                    probe.prefetch(place);
                    window[at] = (next_key, place);
                    next_key += 1;
                } else {
                    // The last takes the place; it is looked at in its turn, now.
                    live -= 1;
                    window[at] = window[live];
                    continue;
                }
            }
            at += 1;
        }
    }
    hits
}
