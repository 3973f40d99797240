//! How a crash run opens its stores.
//!
//! ```text
//!   seed, number of the opening ─> checks, index of memtables, strategy      unless requested
//! ```
//!
//! The files depend on none of these, so each opening has its own, and a seed repeats them.

use std::fmt;
use std::path::Path;

use forerun::{Create, Db, DbError, MemoryChecks, Options, TreeOptions};
use forerun_db::memtable::{Strategy, choose_strategy};
use rand::Rng;

use super::super::script;

/// Short segments, so that kills also hit the switch from one to the next.
const SEGMENT_BYTES: u64 = 256 << 10;

/// Whether lookups verify every entry that they pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Checks {
    /// They trust memory
    Off,
    /// They verify checksums and order
    Paranoid,
}

/// What was requested for all openings; the seed draws the rest.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub struct Requested {
    /// With --crash: whether lookups verify every entry that they pass [default: drawn for each
    /// opening of the store]
    #[arg(long, value_enum, requires = "crash")]
    pub checks: Option<Checks>,

    /// With --crash: how memtables look up batches: index, single, finger, partition, interleaved,
    /// interleaved-sorted, or auto [default: drawn for each opening of the store]
    #[arg(long, requires = "crash")]
    pub strategy: Option<Strategy>,

    /// With --crash: whether memtables have a hash index [default: drawn for each opening of the
    /// store]
    #[arg(long, value_name = "BOOL", requires = "crash")]
    pub memtable_index: Option<bool>,
}

/// One opening of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    checks: Checks,
    memtable_index: bool,
    strategy: Strategy,
}

/// The number by which openings are drawn, beside those of the threads' writes.
const DRAWN: u64 = u64::MAX - 2;

impl Opening {
    /// The opening with a number, of the run with a seed.
    pub fn draw(seed: u64, number: u64, requested: &Requested) -> Opening {
        let mut rng = script::rng(seed, DRAWN, number);
        // All are drawn, so that a request changes only what it names.
        let checks = [Checks::Off, Checks::Paranoid][rng.random_range(0..2)];
        let memtable_index = rng.random();
        let strategy = Strategy::ALL[rng.random_range(0..Strategy::ALL.len())];
        Opening {
            checks: requested.checks.unwrap_or(checks),
            memtable_index: requested.memtable_index.unwrap_or(memtable_index),
            strategy: requested.strategy.unwrap_or(strategy),
        }
    }

    /// Opens a store. Memtables, runs and levels are small, so that kills also hit flushes and
    /// compactions at every depth. All memtables of this process use the strategy from now on.
    ///
    /// # Errors
    /// Those of [`Db::open`].
    pub fn open(&self, path: &Path, create: Create) -> Result<Db, DbError> {
        choose_strategy(self.strategy);
        let options = Options::default()
            .create(create)
            .wal_segment_bytes(SEGMENT_BYTES)
            .memtable_bytes(192 << 10)
            .memtable_index(self.memtable_index)
            .checks(match self.checks {
                Checks::Off => MemoryChecks::Off,
                Checks::Paranoid => MemoryChecks::Paranoid,
            })
            .cache_bytes(1 << 20)
            .tree(
                TreeOptions::default()
                    .level1_bytes(1 << 20)
                    .level_factor(4)
                    .run_bytes(128 << 10),
            );
        Db::open(path, options)
    }

    /// The options of the command that open a store like this.
    pub fn arguments(&self) -> [String; 3] {
        let checks = match self.checks {
            Checks::Off => "off",
            Checks::Paranoid => "paranoid",
        };
        [
            format!("--checks={checks}"),
            format!("--memtable-index={}", self.memtable_index),
            format!("--strategy={}", self.strategy),
        ]
    }
}

impl fmt::Display for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.arguments().join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_seed_draws_every_opening_and_repeats_it() {
        let free = Requested::default();
        let all = |seed| (0..200).map(move |number| Opening::draw(seed, number, &free));
        assert!(all(7).eq(all(7)));
        assert!(!all(7).eq(all(8)));
        let drawn: BTreeSet<String> = all(7).map(|opening| opening.to_string()).collect();
        assert_eq!(drawn.len(), 2 * 2 * Strategy::ALL.len());
    }

    #[test]
    fn a_request_changes_only_what_it_names() {
        let paranoid = Requested {
            checks: Some(Checks::Paranoid),
            ..Requested::default()
        };
        for number in 0..50 {
            let free = Opening::draw(3, number, &Requested::default());
            let expected = Opening {
                checks: Checks::Paranoid,
                ..free
            };
            assert_eq!(Opening::draw(3, number, &paranoid), expected);
        }
    }
}
