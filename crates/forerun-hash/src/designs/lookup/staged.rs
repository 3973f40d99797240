//! Groups in lock-step: prefetch for all keys of the group, then compare all. Between two groups the memory system has
//! nothing to do, which is what `pipelined.rs` mends.

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
    mut batch: Batch<'_, K, V>,
) -> usize {
    let mut hits = 0;
    let mut from = 0;
    while from < batch.len() {
        let mut places = [P::Place::default(); GROUP];
        let mut left = [0u8; GROUP];
        let mut left_len = GROUP.min(batch.len() - from);
        for i in 0..left_len {
            places[i] = probe.start(batch.keys[from + i]);
            left[i] = i as u8;
            probe.prefetch(places[i]);
        }
        let group = left_len;
        while left_len > 0 {
            let mut still = 0;
            for turn in 0..left_len {
                let i = usize::from(left[turn]) % GROUP;
                let step = probe.step(simd, batch.keys[from + i], places[i]);
                hits += batch.answer(from + i, (step.hit, step.value));
                places[i] = step.next;
                // Always written, and kept only if needed: no branch. still <= turn, so nothing unread is lost.
                left[still] = i as u8;
                still += usize::from(step.more);
            }
            left_len = still;
            for &i in &left[..left_len] {
                probe.prefetch(places[usize::from(i) % GROUP]);
            }
        }
        from += group;
    }
    hits
}

/// All buckets of all keys.
#[inline(always)]
pub(super) fn all<S: Simd, K: Word, V: Word, P: Probe<K, V>>(
    simd: S,
    probe: &P,
    mut batch: Batch<'_, K, V>,
) -> usize {
    let mut hits = 0;
    let mut from = 0;
    while from < batch.len() {
        let group = GROUP.min(batch.len() - from);
        let mut places = [P::Place::default(); GROUP];
        for (i, place) in places[..group].iter_mut().enumerate() {
            *place = probe.start(batch.keys[from + i]);
            probe.prefetch_all(*place);
        }
        for (i, &place) in places[..group].iter().enumerate() {
            let answer = probe.finish(simd, batch.keys[from + i], place);
            hits += batch.answer(from + i, answer);
        }
        from += group;
    }
    hits
}
