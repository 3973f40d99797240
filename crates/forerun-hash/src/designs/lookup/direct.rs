//! One key after the other: for tables that a cache holds, and to measure what a batch is worth.

use super::{Batch, Probe};
use crate::designs::Word;
use forerun_core::arch::Simd;

/// `get` in a loop: a key's second bucket is read only if its first did not do, which the processor must guess.
#[inline(always)]
pub(super) fn single<S: Simd, K: Word, V: Word>(
    simd: S,
    probe: &impl Probe<K, V>,
    mut batch: Batch<'_, K, V>,
) -> usize {
    let mut hits = 0;
    for i in 0..batch.len() {
        let key = batch.keys[i];
        let answer = probe.walk(simd, key, probe.start(key));
        hits += batch.answer(i, answer);
    }
    hits
}

/// Every bucket of every key, without a branch: the reads of different keys overlap as far as the processor looks ahead.
#[inline(always)]
pub(super) fn direct<S: Simd, K: Word, V: Word>(
    simd: S,
    probe: &impl Probe<K, V>,
    mut batch: Batch<'_, K, V>,
) -> usize {
    let mut hits = 0;
    for i in 0..batch.len() {
        let key = batch.keys[i];
        let answer = probe.finish(simd, key, probe.start(key));
        hits += batch.answer(i, answer);
    }
    hits
}
