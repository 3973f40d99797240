//! Groups in lock-step: prefetch for all keys of the group, then compare all. Between two groups the memory system has
//! nothing to do, which is what `pipelined.rs` mends.

use super::waiting::Waiting;
use super::{Batch, Probe};
use crate::designs::Word;
use forerun_core::arch::Simd;

/// Keys in a group.
const GROUP: usize = 32;

/// One bucket of each key, then the next bucket of those that need one, and so on.
#[inline(always)]
pub(super) fn as_needed<S: Simd, K: Word, V: Word, P: Probe<K, V>>(
    simd: S,
    probe: &P,
    batch: &mut Batch<'_, K, V>,
) {
    let mut places = [P::Place::default(); GROUP];
    let mut waiting: Waiting<P::Cursor, GROUP> = Waiting::new();
    let mut from = 0;
    while from < batch.len() {
        let to = batch.len().min(from + GROUP);
        let places = &mut places[..to - from];
        let keys = &batch.keys[from..to];
        probe.starts(simd, keys, places);
        for &place in &*places {
            probe.prefetch(place);
        }
        waiting.clear();
        let slots = batch.values[from..to]
            .iter_mut()
            .zip(&mut batch.found[from..to]);
        let lookups = keys.iter().zip(places).zip(slots).enumerate();
        for (i, ((&key, &mut place), (value, found))) in lookups {
            let step = probe.first(simd, key, place);
            (*found, *value) = (step.hit, step.value);
            waiting.push_if(step.more, from + i, step.next);
        }
        while !waiting.is_empty() {
            for (index, cursor) in waiting.iter_mut() {
                *cursor = probe.aim(batch.keys[index], *cursor);
            }
            waiting.retain_mut(|index, cursor| {
                let step = probe.further(simd, batch.keys[index], *cursor);
                batch.answer(index, (step.hit, step.value));
                *cursor = step.next;
                step.more
            });
        }
        from = to;
    }
}

/// All buckets of all keys.
#[inline(always)]
pub(super) fn all<S: Simd, K: Word, V: Word, P: Probe<K, V>>(
    simd: S,
    probe: &P,
    batch: &mut Batch<'_, K, V>,
) {
    let mut places = [P::Place::default(); GROUP];
    let keys = batch.keys.chunks(GROUP);
    let slots = batch
        .values
        .chunks_mut(GROUP)
        .zip(batch.found.chunks_mut(GROUP));
    for (keys, (values, found)) in keys.zip(slots) {
        let places = &mut places[..keys.len()];
        probe.starts(simd, keys, places);
        for (&key, &place) in keys.iter().zip(&*places) {
            probe.prefetch_whole(key, place);
        }
        let slots = values.iter_mut().zip(found);
        for ((&key, &mut place), (value, found)) in keys.iter().zip(places).zip(slots) {
            (*found, *value) = probe.whole(simd, key, place);
        }
    }
}
