//! How a batch runs: each strategy once, over all designs that look a key up by one bucket after the other.
//!
//! ```text
//!   Single         a a'  b  c c' d …                      one key after the other
//!   Direct         a+a' b+b' c+c' …                       every bucket of a key at once, no prefetch, no branch
//!   Staged         pa pb pc pd │ a b c d │ pa' pc' │ a' c'  lock-step: prefetch all, compare all, then those left over
//!   Pipelined      pa pb pc pd │ a pe │ b pf │ c pg │ …     a prefetch for each compare: as many in flight all the time
//!   Rolling        pa pb │ a: pa' │ b: pc │ a': pd │ …      a window of lookups, each at its own step
//! ```
//!
//! `p` is a prefetch, a prime a key's further bucket. With `StagedAll` and `PipelinedAll` every bucket of a key is
//! prefetched at once, and compared at once without a branch.

mod direct;
mod pipelined;
mod rolling;
mod staged;

use super::{Lookup, Word};
use forerun_core::arch::{Isa, Simd, WithSimd, dispatch};

/// What one step of a lookup gave.
#[derive(Clone, Copy)]
pub(super) struct Step<V, P> {
    /// The key was found.
    pub(super) hit: bool,
    /// Its value, if it was.
    pub(super) value: V,
    /// The key was not found, and may be at `next`.
    pub(super) more: bool,
    /// Where to go on; where `more` is not set, anywhere.
    pub(super) next: P,
}

/// A design, as lookups see it: a lookup is a walk over a key's few places.
///
/// Implementors mark everything `#[inline(always)]`, as [`WithSimd`] asks.
pub(super) trait Probe<K: Word, V: Word>: Sync {
    /// Where a lookup stands: a few words.
    type Place: Copy + Default;

    /// Where the lookup of a key starts.
    fn start(&self, key: K) -> Self::Place;

    /// Asks for what [`Probe::step`] reads at a place.
    fn prefetch(&self, place: Self::Place);

    /// Asks for all that [`Probe::finish`] may read from a place on.
    fn prefetch_all(&self, place: Self::Place);

    /// Reads one place. Branches only on what is hard to get wrong.
    fn step<S: Simd>(&self, simd: S, key: K, place: Self::Place) -> Step<V, Self::Place>;

    /// Reads all places from this one on, and selects: without an unpredictable branch, where the design allows.
    fn finish<S: Simd>(&self, simd: S, key: K, place: Self::Place) -> (bool, V);

    /// Reads places until the key's is found or cannot be any more.
    #[inline(always)]
    fn walk<S: Simd>(&self, simd: S, key: K, mut place: Self::Place) -> (bool, V) {
        loop {
            let step = self.step(simd, key, place);
            if step.hit | !step.more {
                return (step.hit, step.value);
            }
            place = step.next;
        }
    }
}

/// A batch: three slices of one length.
pub(super) struct Batch<'a, K, V> {
    keys: &'a [K],
    values: &'a mut [V],
    found: &'a mut [bool],
}

impl<'a, K: Word, V: Word> Batch<'a, K, V> {
    /// The batch that the slices' shortest length allows.
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

    /// Writes the answer for key `i`; returns how many were found: 0 or 1.
    #[inline(always)]
    fn answer(&mut self, i: usize, (hit, value): (bool, V)) -> usize {
        self.values[i] = value;
        self.found[i] = hit;
        usize::from(hit)
    }
}

/// A batch's lookup with one design, to be run with an instruction set.
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
            batch,
            lookup,
        } = self;
        match lookup {
            Lookup::Single => direct::single(simd, probe, batch),
            Lookup::Direct => direct::direct(simd, probe, batch),
            Lookup::Staged => staged::as_needed(simd, probe, batch),
            Lookup::StagedAll => staged::all(simd, probe, batch),
            Lookup::PipelinedAll => pipelined::all(simd, probe, batch),
            Lookup::Rolling => rolling::rolling(simd, probe, batch),
            _ => pipelined::as_needed(simd, probe, batch),
        }
    }
}

/// Looks a batch up; returns how many keys were found.
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
            probe.walk(simd, key, probe.start(key))
        }
    }
    let (hit, value) = dispatch(isa, Work(Get { probe, key }, std::marker::PhantomData));
    hit.then_some(value)
}
