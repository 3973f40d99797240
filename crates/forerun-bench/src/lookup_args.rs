//! The options of the benches that look up keys in an ordered structure: the shape of the data, and
//! the requests.

use crate::output::{Output, Threads, Timing, or};
use crate::workload::Dataset;
use anyhow::Result;
use forerun_core::size::{parse_count, parse_size};
use forerun_measure::size::parse_share;

/// The data sets and the requests. Every list multiplies the number of cases.
#[derive(clap::Args, Clone, Debug, Default, PartialEq)]
pub struct LookupArgs {
    /// Entries [default: btree 10M, memtable 2M; with --quick 5000 and 2000]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_count)]
    pub keys: Vec<u64>,

    /// Bytes per key; in a run, up to 16 bytes after the page's common prefix compare as one
    /// integer [default: 16]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    pub key_bytes: Vec<usize>,

    /// Bytes that all keys begin with; part of --key-bytes
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = parse_size)]
    pub prefix_bytes: usize,

    /// Bytes per value [default: 100]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    pub value_bytes: Vec<usize>,

    /// Keys per batch [default: 1,8,64,256]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    pub batch: Vec<usize>,

    /// How many threads.
    #[command(flatten)]
    pub threads: Threads,

    /// Share of the requested keys that are present, as 0.5 or 50% [default: 1; with --quick 1,0.5]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_share)]
    pub hit_rate: Vec<f64>,

    /// Strategies; the baseline is always measured too: plain (btree), single (memtable) [default:
    /// all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub strategy: Vec<String>,

    /// How long a case is timed.
    #[command(flatten)]
    pub timing: Timing,

    /// Rounds and formats.
    #[command(flatten)]
    pub output: Output,
}

impl LookupArgs {
    /// All combinations of the lists of sizes. `keys` are the numbers of entries by default, in a
    /// full run and in a quick one.
    ///
    /// # Errors
    /// A size that no data set can have.
    pub fn datasets(&self, [full, quick]: [u64; 2]) -> Result<Vec<Dataset>> {
        let keys = if self.output.quick { quick } else { full };
        let mut data = Vec::new();
        for &keys in &or(&self.keys, &[keys]) {
            for &key_bytes in &or(&self.key_bytes, &[16]) {
                for &value_bytes in &or(&self.value_bytes, &[100]) {
                    let set = Dataset::new(keys, key_bytes, self.prefix_bytes, value_bytes)?;
                    data.push(set);
                }
            }
        }
        Ok(data)
    }

    /// Keys per batch.
    pub fn batches(&self) -> Vec<usize> {
        or(&self.batch, &[1, 8, 64, 256])
    }

    /// Shares of present keys.
    pub fn hit_rates(&self) -> Vec<f64> {
        let quick = self.output.quick;
        or(&self.hit_rate, if quick { &[1.0, 0.5] } else { &[1.0] })
    }
}
