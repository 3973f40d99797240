//! The searches of a batch by name, so that tests and measurements can choose one.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::key_batch::{BatchKey, KeyBatch};
use super::lookup_batch;
use super::memory_checks::{Paranoid, Trusting};
use super::ordered_search::{finger, interleaved, single};
use super::partition::partition;
use super::{Lookup, MemTable, MemoryChecks, copy_into, corrupt_entry, with_checks};
use crate::versions::ReadPoint;
use crate::{Result, Values};

/// How [`MemTable::multi_get_with`] looks up a batch. All strategies give the same answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Strategy {
    /// Through the hash index, in stages that run over the batch: hash, tags, entry. Where a table
    /// has no hash index, like `Auto`.
    Index,
    /// One ordered search after the other: the baseline of measurements.
    Single,
    /// Sorts the batch, and starts each search from the path of the one before it (RocksDB pull
    /// request 14428).
    Finger,
    /// Sorts the batch and splits it level by level, breadth first: each node is visited once per
    /// batch and prefetched one round ahead (the reviewer's idea in the same pull request).
    Partition,
    /// Interleaves the searches as coroutines, in the given order.
    Interleaved,
    /// Interleaves the searches as coroutines, in key order, so that neighbours share the lines
    /// that they fetch.
    InterleavedSorted,
    /// As [`MemTable::multi_get`] does it.
    #[default]
    Auto,
}

impl Strategy {
    /// Every strategy.
    pub const ALL: [Strategy; 7] = [
        Strategy::Index,
        Strategy::Single,
        Strategy::Finger,
        Strategy::Partition,
        Strategy::Interleaved,
        Strategy::InterleavedSorted,
        Strategy::Auto,
    ];

    /// The strategy's name, as [`FromStr`](std::str::FromStr) reads it.
    pub fn name(self) -> &'static str {
        match self {
            Strategy::Index => "index",
            Strategy::Single => "single",
            Strategy::Finger => "finger",
            Strategy::Partition => "partition",
            Strategy::Interleaved => "interleaved",
            Strategy::InterleavedSorted => "interleaved-sorted",
            Strategy::Auto => "auto",
        }
    }
}

forerun_core::names! {
    Strategy, "strategy";
    /// A name that does not belong to any strategy.
    UnknownStrategy
}

/// The strategy of all batches that name none, as its position in [`Strategy::ALL`].
static CHOSEN: AtomicUsize = AtomicUsize::new(position(Strategy::Auto));

const fn position(strategy: Strategy) -> usize {
    let mut at = 0;
    while Strategy::ALL[at] as usize != strategy as usize {
        at += 1;
    }
    at
}

/// Chooses how all memtables of this process look up batches from now on, those of stores included,
/// so that tests of stores reach every search. At first it is [`Strategy::Auto`].
pub fn choose_strategy(strategy: Strategy) {
    // Relaxed: all strategies give the same answers, so no batch depends on when it sees this.
    CHOSEN.store(position(strategy), Ordering::Relaxed);
}

/// The strategy of batches that name none.
#[inline]
pub(super) fn chosen_strategy() -> Strategy {
    // Relaxed: as for the store.
    Strategy::ALL[CHOSEN.load(Ordering::Relaxed)]
}

impl MemTable {
    /// [`multi_get`](Self::multi_get) with a given strategy.
    pub fn multi_get_with<'a, K: AsRef<[u8]>>(
        &'a self,
        keys: &[K],
        snapshot: u64,
        strategy: Strategy,
        sink: impl FnMut(usize, Result<Lookup<'a>>),
    ) {
        let read_point = ReadPoint::at(snapshot);
        self.search_by(strategy, &KeyBatch { keys, read_point }, sink);
    }

    /// Looks up a batch by a strategy.
    pub(super) fn search_by<'a, K: BatchKey>(
        &'a self,
        strategy: Strategy,
        batch: &KeyBatch<'_, K>,
        mut sink: impl FnMut(usize, Result<Lookup<'a>>),
    ) {
        let (list, index, len) = (&self.list, self.hash_index.as_ref(), batch.keys.len());
        let sink = |position, lookup: Result<_, _>| sink(position, lookup.map_err(corrupt_entry));
        with_checks!(self, V => match strategy {
            Strategy::Index | Strategy::Auto => {
                lookup_batch::find_all::<V, K>(list, index, batch, sink);
            }
            Strategy::Single => single::<V, K>(list, batch, sink),
            Strategy::Finger => finger::<V, K>(list, batch, sink),
            Strategy::Partition => partition::<V, K>(list, batch, sink),
            Strategy::Interleaved => {
                interleaved::<V, K>(list, batch, len, |turn| turn, sink);
            }
            Strategy::InterleavedSorted => {
                let sorted = batch.sorted(list);
                let place = |turn: usize| sorted[turn].position;
                interleaved::<V, K>(list, batch, sorted.len(), place, sink);
            }
        });
    }

    /// [`multi_get_values`](Self::multi_get_values) with a given strategy.
    pub fn multi_get_values_with<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        snapshot: u64,
        strategy: Strategy,
        values: &mut Values,
    ) {
        values.reset(keys.len());
        self.multi_get_with(keys, snapshot, strategy, copy_into(values));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_an_unknown_one_lists_the_known() {
        for strategy in Strategy::ALL {
            assert_eq!(strategy.name().parse(), Ok(strategy));
        }
        let error = "fast".parse::<Strategy>().unwrap_err().to_string();
        assert!(
            error.contains("\"fast\"") && error.contains("interleaved-sorted"),
            "{error}"
        );
    }
}
