//! The searches of a batch by name, so that tests and measurements can choose one.

use super::key_batch::KeyBatch;
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

impl MemTable {
    /// [`multi_get`](Self::multi_get) with a given strategy.
    pub fn multi_get_with<'a, K: AsRef<[u8]>>(
        &'a self,
        keys: &[K],
        snapshot: u64,
        strategy: Strategy,
        mut sink: impl FnMut(usize, Result<Lookup<'a>>),
    ) {
        let (list, index) = (&self.list, self.hash_index.as_ref());
        let batch = &KeyBatch {
            keys,
            read_point: ReadPoint::at(snapshot),
        };
        let sink = |position, lookup: Result<_, _>| sink(position, lookup.map_err(corrupt_entry));
        with_checks!(self, V => match strategy {
            Strategy::Index | Strategy::Auto => {
                lookup_batch::find_all::<V, K>(list, index, batch, sink);
            }
            Strategy::Single => single::<V, K>(list, batch, sink),
            Strategy::Finger => finger::<V, K>(list, batch, sink),
            Strategy::Partition => partition::<V, K>(list, batch, sink),
            Strategy::Interleaved => {
                interleaved::<V, K>(list, batch, keys.len(), |turn| turn, sink);
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
