//! Groups in lock-step: prefetches for all keys of a group, then compares all. Between two groups
//! the memory system is idle; `pipelined.rs` avoids that.

use super::pending_keys::{BLOCK_MAX, PendingKeys, compare};
use super::{Batch, Probe};
use crate::designs::Word;
use forerun_core::arch::Simd;

/// Keys in a group.
const GROUP: usize = BLOCK_MAX;

/// Reads one bucket of each key, then the next bucket of the keys that need it, and so on.
#[inline(always)]
pub(super) fn as_needed<S: Simd, K: Word, V: Word, P: Probe<K, V>>(
    simd: S,
    probe: &P,
    batch: &mut Batch<'_, K, V>,
) {
    let mut starts = [P::Start::default(); GROUP];
    let mut cursors = [P::Cursor::default(); GROUP];
    let mut lists = [(); 2].map(|()| PendingKeys::<P::Cursor, GROUP>::new());
    let [now, next] = &mut lists;
    let (mut now, mut next) = (now, next);
    let mut from = 0;
    while from < batch.len() {
        let to = batch.len().min(from + GROUP);
        let starts = &mut starts[..to - from];
        let keys = &batch.keys[from..to];
        probe.start_buckets(simd, keys, starts);
        for &start in &*starts {
            probe.prefetch(start);
        }
        let answers = (&mut batch.values[from..to], &mut batch.found[from..to]);
        let more = compare(simd, probe, keys, starts, answers, &mut cursors);
        now.collect(probe, batch.keys, from, more, &cursors);
        while !now.is_empty() {
            for (index, cursor) in now.iter() {
                let key = batch.keys[index];
                let step = probe.probe_next(simd, key, cursor);
                batch.answer(index, (step.hit, step.value));
                if step.more {
                    next.push(index, probe.prefetch_next(key, step.next));
                }
            }
            now.clear();
            (now, next) = (next, now);
        }
        from = to;
    }
}

/// Reads all buckets of all keys.
#[inline(always)]
pub(super) fn all<S: Simd, K: Word, V: Word, P: Probe<K, V>>(
    simd: S,
    probe: &P,
    batch: &mut Batch<'_, K, V>,
) {
    let mut starts = [P::Start::default(); GROUP];
    let mut from = 0;
    while from < batch.len() {
        let to = batch.len().min(from + GROUP);
        let starts = &mut starts[..to - from];
        let keys = &batch.keys[from..to];
        probe.start_buckets(simd, keys, starts);
        for (&key, &start) in keys.iter().zip(&*starts) {
            probe.prefetch_all(key, start);
        }
        batch.probe_all(simd, probe, from, starts);
        from = to;
    }
}
