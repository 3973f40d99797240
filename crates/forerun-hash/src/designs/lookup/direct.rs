//! One key after the other: for tables that a cache holds, and to measure what a batch is worth.

use super::{Batch, Probe};
use crate::designs::Word;
use forerun_core::arch::Simd;

/// `get` in a loop: a key's second bucket is read only if its first did not do, which the processor must guess.
#[inline(always)]
pub(super) fn single<S: Simd, K: Word, V: Word>(
    simd: S,
    probe: &impl Probe<K, V>,
    batch: &mut Batch<'_, K, V>,
) {
    for i in 0..batch.len() {
        let answer = probe.alone(simd, batch.keys[i]);
        batch.answer(i, answer);
    }
}

/// Keys whose places are worked out together.
const BLOCK: usize = 16;

/// Every bucket of every key, without a branch: the reads of different keys overlap as far as the processor looks ahead.
#[inline(always)]
pub(super) fn direct<S: Simd, K: Word, V: Word, P: Probe<K, V>>(
    simd: S,
    probe: &P,
    batch: &mut Batch<'_, K, V>,
) {
    let mut places = [P::Place::default(); BLOCK];
    let keys = batch.keys.chunks(BLOCK);
    let slots = batch
        .values
        .chunks_mut(BLOCK)
        .zip(batch.found.chunks_mut(BLOCK));
    for (keys, (values, found)) in keys.zip(slots) {
        let places = &mut places[..keys.len()];
        probe.starts(simd, keys, places);
        let slots = values.iter_mut().zip(found);
        for ((&key, &mut place), (value, found)) in keys.iter().zip(places).zip(slots) {
            (*found, *value) = probe.whole(simd, key, place);
        }
    }
}
