//! The strategies for a batch. Each is written once, for all designs that search a key's buckets in
//! sequence.
//!
//! ```text
//!   Single         a a'  b  c c' d …                      one key at a time
//!   Direct         a+a' b+b' c+c' …                       every bucket of a key at once, no prefetch, no branch
//!   Staged         pa pb pc pd │ a b c d │ pa' pc' │ a' c'  lock-step: prefetch all, compare all, then those left over
//!   Pipelined      pa pb pc pd │ a pe │ b pf │ c pg │ …     a prefetch for each compare: as many in flight all the time
//!   Rolling        pa pb │ a: pa' │ b: pc │ a': pd │ …      a window of lookups, each at its own step
//! ```
//!
//! `p` is a prefetch; a prime marks a later bucket of a key. `StagedAll` and `PipelinedAll`
//! prefetch all buckets of a key together, and compare them together without a branch.
//! `by_lane.rs` looks up a key per lane.

pub(super) mod by_lane;
mod direct;
mod pending_keys;
mod pipelined;
mod rolling;
mod staged;

use super::{Lookup, Word};
use forerun_core::arch::{Isa, Simd, WithSimd, dispatch};

/// The result of one step of a lookup.
#[derive(Clone, Copy)]
pub(super) struct Step<V, C> {
    /// The key was found.
    pub(super) hit: bool,
    /// Its value, if it was found.
    pub(super) value: V,
    /// The key was not found, and may be in the bucket that `next` names.
    pub(super) more: bool,
    /// Where the lookup continues; only valid if `more` is set.
    pub(super) next: C,
}

/// A design, as lookups see it: a lookup visits a key's few buckets in turn.
///
/// Every lookup visits the first bucket, so that bucket's number is computed for several keys
/// together. The few lookups that continue compute further buckets from the key.
///
/// Implementors mark everything `#[inline(always)]`, as [`WithSimd`] asks.
pub(super) trait Probe<K: Word, V: Word>: Sync {
    /// Where a lookup starts.
    type Start: Copy + Default;
    /// The state that a lookup keeps from one step to the next.
    type Cursor: Copy + Default;

    /// Where the lookups of some keys start. The slices are of one length.
    fn start_buckets<S: Simd>(&self, simd: S, keys: &[K], starts: &mut [Self::Start]);

    /// Prefetches what [`Probe::probe_first`] reads.
    fn prefetch(&self, start: Self::Start);

    /// Reads the first bucket, without a branch where the design allows.
    fn probe_first<S: Simd>(&self, simd: S, key: K, start: Self::Start) -> Step<V, Self::Cursor>;

    /// Prefetches what [`Probe::probe_next`] reads, and records its position.
    fn prefetch_next(&self, key: K, cursor: Self::Cursor) -> Self::Cursor;

    /// Reads a further bucket, which [`Probe::prefetch_next`] has prefetched.
    fn probe_next<S: Simd>(&self, simd: S, key: K, cursor: Self::Cursor) -> Step<V, Self::Cursor>;

    /// Prefetches what [`Probe::probe_all`] reads, as far as that is known before anything is read.
    fn prefetch_all(&self, key: K, start: Self::Start);

    /// The whole lookup, without an unpredictable branch where the design allows.
    fn probe_all<S: Simd>(&self, simd: S, key: K, start: Self::Start) -> (bool, V);

    /// Continues until the key is found or known to be absent.
    #[inline(always)]
    fn finish_lookup<S: Simd>(
        &self,
        simd: S,
        key: K,
        mut step: Step<V, Self::Cursor>,
    ) -> (bool, V) {
        while step.more {
            let cursor = self.prefetch_next(key, step.next);
            step = self.probe_next(simd, key, cursor);
        }
        (step.hit, step.value)
    }

    /// The whole lookup. Reads each bucket only when it is needed.
    #[inline(always)]
    fn lookup_single<S: Simd>(&self, simd: S, key: K) -> (bool, V) {
        let mut start = [Self::Start::default()];
        self.start_buckets(simd, &[key], &mut start);
        self.finish_lookup(simd, key, self.probe_first(simd, key, start[0]))
    }
}

/// A batch: three slices of one length.
pub(super) struct Batch<'a, K, V> {
    pub(super) keys: &'a [K],
    pub(super) values: &'a mut [V],
    pub(super) found: &'a mut [bool],
}

impl<'a, K: Word, V: Word> Batch<'a, K, V> {
    /// A batch as long as the shortest of the slices.
    #[inline(always)]
    pub(super) fn new(keys: &'a [K], values: &'a mut [V], found: &'a mut [bool]) -> Self {
        let len = keys.len().min(values.len()).min(found.len());
        Batch {
            keys: &keys[..len],
            values: &mut values[..len],
            found: &mut found[..len],
        }
    }

    #[inline(always)]
    fn len(&self) -> usize {
        self.keys.len()
    }

    /// Writes the answer for key `i`.
    #[inline(always)]
    fn answer(&mut self, i: usize, (hit, value): (bool, V)) {
        self.values[i] = value;
        self.found[i] = hit;
    }

    /// Runs whole lookups for the keys from `from` on, one for each of `starts`.
    #[inline(always)]
    fn probe_all<S: Simd, P: Probe<K, V>>(
        &mut self,
        simd: S,
        probe: &P,
        from: usize,
        starts: &[P::Start],
    ) {
        let to = from + starts.len();
        let answers = self.values[from..to]
            .iter_mut()
            .zip(&mut self.found[from..to]);
        let lookups = self.keys[from..to].iter().zip(starts).zip(answers);
        for ((&key, &start), (value, found)) in lookups {
            (*found, *value) = probe.probe_all(simd, key, start);
        }
    }
}

/// A batch's lookup with one design, ready to run with an instruction set.
struct Find<'a, 'b, P, K, V> {
    probe: &'a P,
    batch: Batch<'b, K, V>,
    lookup: Lookup,
}

impl<P: Probe<K, V>, K: Word, V: Word> WithSimd for Find<'_, '_, P, K, V> {
    type Output = usize;

    #[inline(always)]
    fn with<S: Simd>(self, simd: S) -> usize {
        let Find {
            probe,
            mut batch,
            lookup,
        } = self;
        let batch = &mut batch;
        match lookup {
            Lookup::Single => direct::single(simd, probe, batch),
            Lookup::Direct | Lookup::Vertical => direct::direct(simd, probe, batch),
            Lookup::Staged => staged::as_needed(simd, probe, batch),
            Lookup::StagedAll => staged::all(simd, probe, batch),
            Lookup::PipelinedAll | Lookup::VerticalAll => pipelined::all(simd, probe, batch),
            Lookup::Rolling => rolling::rolling(simd, probe, batch),
            Lookup::Pipelined | Lookup::Auto => pipelined::as_needed(simd, probe, batch),
        }
        // Counted at the end, many at a time.
        batch.found.iter().map(|&found| usize::from(found)).sum()
    }
}

/// Looks a batch up. Returns the number of keys found.
pub(super) fn find<P: Probe<K, V>, K: Word, V: Word>(
    isa: Isa,
    probe: &P,
    batch: Batch<'_, K, V>,
    lookup: Lookup,
) -> usize {
    dispatch(
        isa,
        Find {
            probe,
            batch,
            lookup,
        },
    )
}

/// One key's lookup.
struct Get<'a, P, K> {
    probe: &'a P,
    key: K,
}

/// Looks one key up.
pub(super) fn get<P: Probe<K, V>, K: Word, V: Word>(isa: Isa, probe: &P, key: K) -> Option<V> {
    struct Work<'a, P, K, V>(Get<'a, P, K>, std::marker::PhantomData<V>);
    impl<P: Probe<K, V>, K: Word, V: Word> WithSimd for Work<'_, P, K, V> {
        type Output = (bool, V);
        #[inline(always)]
        fn with<S: Simd>(self, simd: S) -> (bool, V) {
            let Get { probe, key } = self.0;
            probe.lookup_single(simd, key)
        }
    }
    let (hit, value) = dispatch(isa, Work(Get { probe, key }, std::marker::PhantomData));
    hit.then_some(value)
}
