//! A window of lookups, each at its own step. When a lookup ends, the next key takes its position
//! immediately.
//!
//! Whether a lookup ends at a step is a branch that the CPU mispredicts about once per key. In
//! return, no position of the window is idle.

use super::{Batch, Probe, Step};
use crate::designs::Word;
use forerun_core::arch::Simd;

/// Lookups in flight.
const WINDOW: usize = 16;

/// The next step of a lookup in the window.
#[derive(Clone, Copy)]
enum LookupStage<P, C> {
    /// Before its first bucket.
    First(P),
    /// Before a further bucket.
    Further(C),
}

/// Looks the batch up with a window.
#[inline(always)]
pub(super) fn rolling<S: Simd, K: Word, V: Word, P: Probe<K, V>>(
    simd: S,
    probe: &P,
    batch: &mut Batch<'_, K, V>,
) {
    let len = batch.len();
    let start = |key: K| {
        let mut start = [P::Start::default()];
        probe.start_buckets(simd, &[key], &mut start);
        probe.prefetch(start[0]);
        LookupStage::First(start[0])
    };
    let mut window = [(0, LookupStage::First(P::Start::default())); WINDOW];
    let mut live = WINDOW.min(len);
    for (i, slot) in window[..live].iter_mut().enumerate() {
        *slot = (i, start(batch.keys[i]));
    }
    let mut next_key = live;
    let mut at = 0;
    while live > 0 {
        let (i, stage) = window[at];
        let key = batch.keys[i];
        let step: Step<V, P::Cursor> = match stage {
            LookupStage::First(start) => probe.probe_first(simd, key, start),
            LookupStage::Further(cursor) => probe.probe_next(simd, key, cursor),
        };
        if step.more {
            window[at].1 = LookupStage::Further(probe.prefetch_next(key, step.next));
        } else {
            batch.answer(i, (step.hit, step.value));
            if next_key < len {
                window[at] = (next_key, start(batch.keys[next_key]));
                next_key += 1;
            } else {
                // The window's last lookup moves to the free position.
                live -= 1;
                window[at] = window[live];
            }
        }
        at = if at + 1 < live { at + 1 } else { 0 };
    }
}
