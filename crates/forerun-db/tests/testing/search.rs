//! The searches by which the memtable's tests look up a batch.

#![allow(dead_code, reason = "each test uses only a part")]

use std::fmt;

#[cfg(feature = "study")]
use forerun_db::memtable::Strategy;
use forerun_db::memtable::{Lookup, MemTable};
use forerun_db::{Result, Values};

/// A way to look up a batch.
#[derive(Clone, Copy, Debug)]
pub enum Search {
    /// As a store does it.
    Usual,
    /// By a search that only measurements choose.
    #[cfg(feature = "study")]
    By(Strategy),
}

impl Search {
    /// Every search of this build.
    pub fn all() -> Vec<Search> {
        [Search::Usual]
            .into_iter()
            .chain(Search::chosen())
            .collect()
    }

    fn chosen() -> Vec<Search> {
        #[cfg(feature = "study")]
        {
            Strategy::ALL.map(Search::By).to_vec()
        }
        #[cfg(not(feature = "study"))]
        {
            Vec::new()
        }
    }

    /// Whether it sorts the keys of a short batch.
    pub fn sorts(self) -> bool {
        match self {
            Search::Usual => false,
            #[cfg(feature = "study")]
            Search::By(strategy) => matches!(
                strategy,
                Strategy::Finger | Strategy::Partition | Strategy::InterleavedSorted
            ),
        }
    }

    pub fn multi_get<'a, K: AsRef<[u8]>>(
        self,
        table: &'a MemTable,
        keys: &[K],
        snapshot: u64,
        sink: impl FnMut(usize, Result<Lookup<'a>>),
    ) {
        match self {
            Search::Usual => table.multi_get(keys, snapshot, sink),
            #[cfg(feature = "study")]
            Search::By(strategy) => table.multi_get_with(keys, snapshot, strategy, sink),
        }
    }

    pub fn multi_get_values<K: AsRef<[u8]>>(
        self,
        table: &MemTable,
        keys: &[K],
        snapshot: u64,
        values: &mut Values,
    ) {
        match self {
            Search::Usual => table.multi_get_values(keys, snapshot, values),
            #[cfg(feature = "study")]
            Search::By(strategy) => table.multi_get_values_with(keys, snapshot, strategy, values),
        }
    }
}

impl fmt::Display for Search {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Search::Usual => f.write_str("usual"),
            #[cfg(feature = "study")]
            Search::By(strategy) => strategy.fmt(f),
        }
    }
}
