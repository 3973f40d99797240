//! One key after the other, for tables that fit in a CPU cache, and as the baseline for batches.

use super::pending_keys::BLOCK_MAX;
use super::{Batch, Probe};
use crate::designs::Word;
use forerun_core::arch::Simd;

/// `get` in a loop. It reads a key's second bucket only if the first does not contain the key; the
/// CPU must predict that branch.
#[inline(always)]
pub(super) fn single<S: Simd, K: Word, V: Word>(
    simd: S,
    probe: &impl Probe<K, V>,
    batch: &mut Batch<'_, K, V>,
) {
    for i in 0..batch.len() {
        let answer = probe.lookup_single(simd, batch.keys[i]);
        batch.answer(i, answer);
    }
}

/// Reads every bucket of every key without a branch, so the reads of different keys overlap as far
/// as the CPU looks ahead.
#[inline(always)]
pub(super) fn direct<S: Simd, K: Word, V: Word, P: Probe<K, V>>(
    simd: S,
    probe: &P,
    batch: &mut Batch<'_, K, V>,
) {
    let mut starts = [P::Start::default(); BLOCK_MAX];
    let mut from = 0;
    while from < batch.len() {
        let to = batch.len().min(from + BLOCK_MAX);
        let starts = &mut starts[..to - from];
        probe.start_buckets(simd, &batch.keys[from..to], starts);
        batch.probe_all(simd, probe, from, starts);
        from = to;
    }
}
