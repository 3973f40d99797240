//! Compares a block of keys with their first buckets, and lists those that need another bucket.
//!
//! ```text
//!   compare     k0 k1 k2 k3 …        more: a bit per key        0 0 1 0 0 1 …
//!   collect     for each bit that is set                      [k2, k5, …]
//! ```
//!
//! Whether a key needs another bucket is unpredictable, so comparisons produce bits instead of
//! branches. Only the number of such keys in a block is predicted, once per block.

use super::Probe;
use crate::designs::Word;
use forerun_core::arch::Simd;

/// Maximum number of keys in a block.
pub(super) const BLOCK_MAX: usize = 32;

/// Reads the first bucket of each key of a block. All slices have the length of `keys`, except
/// `cursors`, which has at least that length. Bit `i` of the result is set if key `i` needs another
/// bucket, which `cursors[i]` names.
#[inline(always)]
pub(super) fn compare<S: Simd, K: Word, V: Word, P: Probe<K, V>>(
    simd: S,
    probe: &P,
    keys: &[K],
    starts: &[P::Start],
    (values, found): (&mut [V], &mut [bool]),
    cursors: &mut [P::Cursor],
) -> u32 {
    debug_assert!(keys.len() <= BLOCK_MAX);
    let answers = values.iter_mut().zip(found).zip(cursors);
    let mut more = 0;
    for (i, ((&key, &start), ((value, found), cursor))) in
        keys.iter().zip(starts).zip(answers).enumerate()
    {
        let step = probe.probe_first(simd, key, start);
        *value = step.value;
        *found = step.hit;
        *cursor = step.next;
        more |= u32::from(step.more) << i;
    }
    more
}

/// Up to `N` keys: their indices in the batch, and the cursors of their lookups. `N` is a power of
/// two.
pub(super) struct PendingKeys<C, const N: usize> {
    len: usize,
    index: [u32; N],
    cursor: [C; N],
}

impl<C: Copy + Default, const N: usize> PendingKeys<C, N> {
    #[inline(always)]
    pub(super) fn new() -> Self {
        PendingKeys {
            len: 0,
            index: [0; N],
            cursor: [C::default(); N],
        }
    }

    #[inline(always)]
    pub(super) fn clear(&mut self) {
        self.len = 0;
    }

    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether `more` keys fit.
    #[inline(always)]
    pub(super) fn has_capacity_for(&self, more: usize) -> bool {
        self.len + more <= N
    }

    /// Appends a key. The caller has checked that it fits.
    #[inline(always)]
    pub(super) fn push(&mut self, index: usize, cursor: C) {
        debug_assert!(self.len < N);
        // The remainder is a mask, which saves the bounds check.
        self.index[self.len % N] = index as u32;
        self.cursor[self.len % N] = cursor;
        self.len += 1;
    }

    /// Appends the keys of the block at `from` whose bits are set in `more`, and prefetches their
    /// next buckets.
    #[inline(always)]
    pub(super) fn collect<K: Word, V: Word, P: Probe<K, V, Cursor = C>>(
        &mut self,
        probe: &P,
        keys: &[K],
        from: usize,
        mut more: u32,
        cursors: &[C; BLOCK_MAX],
    ) {
        while more != 0 {
            let i = more.trailing_zeros() as usize;
            more &= more - 1;
            self.push(from + i, probe.prefetch_next(keys[from + i], cursors[i]));
        }
    }

    /// The keys, in the order in which they were appended.
    #[inline(always)]
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, C)> {
        let indices = self.index.iter().map(|&index| index as usize);
        indices.zip(self.cursor).take(self.len)
    }
}
