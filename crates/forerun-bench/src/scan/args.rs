//! The command line of the bench `scan`.

use crate::output::{Output, Threads, Timing, or};
use crate::workload::Dataset;
use anyhow::{Result, ensure};
use forerun_core::size::{parse_count, parse_size};
use std::path::PathBuf;

/// Scans of a store in memory: forward and backward, by length
#[derive(clap::Args, Clone, Debug, Default, PartialEq)]
#[command(after_help = "\
Examples:
  forerun-bench scan --keys 1M --length 1,10,100,10k
  forerun-bench scan --runs several --direction backward --threads 1,2 --json

A scan opens an iterator at a random entry, reads that many entries and drops the iterator. It \
reads one byte of each cache line of a value; nothing is copied. The cache holds all data.

--runs one compacts the store after the load. --runs several overwrites a tenth of the entries \
after the load, then a fiftieth, and then a hundredth, which stays in the memtable.

Every list multiplies the number of cases. Rounds alternate between the engines. In the first \
round every entry is checked.")]
pub struct Args {
    /// Entries to load [default: 1M; with --quick 2000]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub keys: Option<u64>,

    /// Bytes per key [default: 16]
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub key_bytes: Option<usize>,

    /// Bytes that all keys begin with [default: 0]
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub prefix_bytes: Option<usize>,

    /// Bytes per value [default: 1000]
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub value_bytes: Option<usize>,

    /// Entries per scan [default: 1,10,100,10k; with --quick 1,100]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_count)]
    pub length: Vec<u64>,

    /// Directions [default: forward,backward]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub direction: Vec<Direction>,

    /// How many runs hold the data [default: one,several]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub runs: Vec<Runs>,

    /// How many threads.
    #[command(flatten)]
    pub threads: Threads,

    /// Temporary directory for the stores [default: the system's, which may be in memory]
    #[arg(long, value_name = "DIRECTORY")]
    pub dir: Option<PathBuf>,

    /// The time of a turn.
    #[command(flatten)]
    pub timing: Timing,

    /// Rounds and formats.
    #[command(flatten)]
    pub output: Output,
}

/// The direction of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Direction {
    /// In key order
    Forward,
    /// Against it
    Backward,
}

impl Direction {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Direction::Forward => "forward",
            Direction::Backward => "backward",
        }
    }
}

/// The state of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Runs {
    /// All entries are on one level, whose runs do not overlap
    One,
    /// Several runs and the memtable overlap
    Several,
}

impl Runs {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Runs::One => "one",
            Runs::Several => "several",
        }
    }
}

/// The cache, in thousandths of the data's bytes. Pages are not completely full, and several
/// versions of an entry may be cached.
const CACHE_PER_MILLE: u64 = 1500;

/// The lists, with defaults filled in and checked.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Lists {
    pub data: Dataset,
    pub lengths: Vec<usize>,
    pub directions: Vec<Direction>,
    pub runs: Vec<Runs>,
    pub threads: Vec<usize>,
    pub cache_bytes: u64,
}

impl Args {
    pub(super) fn lists(&self) -> Result<Lists> {
        let quick = self.output.quick;
        let keys = self.keys.unwrap_or(if quick { 2000 } else { 1_000_000 });
        let data = Dataset::new(
            keys,
            self.key_bytes.unwrap_or(16),
            self.prefix_bytes.unwrap_or(0),
            self.value_bytes.unwrap_or(1000),
        )?;
        let default: &[u64] = if quick {
            &[1, 100]
        } else {
            &[1, 10, 100, 10_000]
        };
        let mut lengths = Vec::new();
        for length in or(&self.length, default) {
            ensure!(length > 0, "a scan needs at least one entry");
            ensure!(
                length <= keys,
                "a scan of {length} entries needs as many keys, but there are {keys}"
            );
            lengths.push(usize::try_from(length)?);
        }
        let entry_bytes = (data.key_bytes() + data.value_bytes()) as u64;
        Ok(Lists {
            data,
            lengths,
            directions: or(&self.direction, &[Direction::Forward, Direction::Backward]),
            runs: or(&self.runs, &[Runs::One, Runs::Several]),
            threads: self.threads.list()?,
            // Small stores need more: each run has a root, an index and at least one page.
            cache_bytes: keys.saturating_mul(entry_bytes) / 1000 * CACHE_PER_MILLE + (8 << 20),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_get_their_defaults() {
        let lists = Args::default().lists().unwrap();
        assert_eq!(lists.lengths, [1, 10, 100, 10_000]);
        assert_eq!(lists.directions, [Direction::Forward, Direction::Backward]);
        assert_eq!(lists.runs, [Runs::One, Runs::Several]);
        assert_eq!(
            (lists.data.keys(), lists.data.value_bytes()),
            (1_000_000, 1000)
        );
        assert!(lists.cache_bytes > 1_500_000_000);
    }

    #[test]
    fn scans_of_nothing_or_of_more_than_there_is_are_refused() {
        for (length, word) in [(0, "at least one"), (11, "as many keys")] {
            let args = Args {
                keys: Some(10),
                length: vec![length],
                ..Args::default()
            };
            let error = args.lists().unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
