//! `forerun-bench memtable`: lookups and inserts on [`forerun_db::memtable::MemTable`], without log
//! or files.
//!
//! The bench can also measure peers: see [`run_with`].

use crate::engine::{Engine, Need, Reader, Store, Writer};
use crate::lookup_output::show;
use crate::lookup_workloads::{Lookups, Workload};
use crate::output::{Output, Threads, Timing, on_stdout, or};
use crate::roofline::{PagesArg, lines_per_second};
use crate::skew::Skew;
use crate::workload::Dataset;
use anyhow::{Result, anyhow};
use forerun_core::Pages;
use forerun_core::size::{parse_count, parse_size};
use forerun_db::memtable::{MemTable, MemTableConfig, Strategy};
use forerun_db::{Op, Values};
use forerun_measure::progress::Progress;
use forerun_measure::size::{count, parse_share, short};
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};

/// Batched lookups and inserts on the memtable, by strategy
#[derive(clap::Args, Clone, Debug, Default, PartialEq)]
#[command(after_help = "\
Example: forerun-bench memtable --keys 2M --batch 1,8,64,256 --hit-rate 1,0.5 --report memtable.html

Every list multiplies the number of cases. Rounds alternate: each measures every case once, with \
the strategies of a cell one after the other. A lookup copies the value it finds out of the table, \
as a store's multi_get does.

\"roofline\" is keys per second over the random cache lines per second that the same number of \
threads can read on this machine: 100% would be a lookup that costs one cache line and nothing \
else.")]
pub struct Args {
    /// Entries [default: 2M; with --quick 2000]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_count)]
    pub keys: Vec<u64>,

    /// Bytes per key [default: 16]
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

    /// Strategies; single is always measured too, as the baseline [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub strategy: Vec<String>,

    /// Workloads [default: multireadrandom; with --quick all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub workload: Vec<Workload>,

    /// The kind of memory pages for the table [default: huge]
    #[arg(long)]
    pub pages: Option<PagesArg>,

    /// How long a case is timed.
    #[command(flatten)]
    pub timing: Timing,

    /// Rounds and formats.
    #[command(flatten)]
    pub output: Output,
}

impl Args {
    /// The kind of pages to use.
    pub fn pages(&self) -> Pages {
        self.pages.unwrap_or(PagesArg::Huge).into()
    }

    /// The lists, with defaults filled in.
    fn lookups(&self, progress: &Progress) -> Result<Lookups> {
        let quick = self.output.quick;
        let keys = or(&self.keys, &[if quick { 2000 } else { 2_000_000 }]);
        let mut data = Vec::new();
        for &keys in &keys {
            for &key_bytes in &or(&self.key_bytes, &[16]) {
                for &value_bytes in &or(&self.value_bytes, &[100]) {
                    data.push(Dataset::new(
                        keys,
                        key_bytes,
                        self.prefix_bytes,
                        value_bytes,
                    )?);
                }
            }
        }
        let all = [
            Workload::MultiReadRandom,
            Workload::MultiReadWhileWriting,
            Workload::FillRandom,
        ];
        let threads = self.threads.list()?;
        Ok(Lookups {
            bench: "memtable".into(),
            data,
            workloads: or(&self.workload, if quick { &all } else { &all[..1] }),
            batches: or(&self.batch, &[1, 8, 64, 256]),
            hit_rates: or(&self.hit_rate, if quick { &[1.0, 0.5] } else { &[1.0] }),
            skews: vec![Skew::Uniform],
            strategies: self.strategy.clone(),
            peer: None,
            plan: self.output.plan(&self.timing),
            pages: self.pages(),
            lines_per_second: lines_per_second(&threads, quick, progress)?,
            threads,
        })
    }
}

/// Measures and prints to the standard output.
///
/// # Errors
/// Invalid lists, a failing table, or an output that cannot be written.
pub fn run(args: &Args) -> Result<()> {
    run_with(args, &[], None)
}

/// [`run`] with peers measured along with the memtable: same data, same cells, same rounds. `peer`
/// names the engine and strategy that a column of ratios compares with, such as `("rocksdb",
/// "multiget")`.
///
/// # Errors
/// As [`run`], and errors of a peer.
pub fn run_with(args: &Args, peers: &[&dyn Engine], peer: Option<(&str, &str)>) -> Result<()> {
    on_stdout(|out| run_to(args, peers, peer, &Progress::on_terminal(), out))
}

/// [`run_with`], printing to `out`.
///
/// # Errors
/// As [`run_with`].
pub fn run_to(
    args: &Args,
    peers: &[&dyn Engine],
    peer: Option<(&str, &str)>,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<()> {
    let mut lookups = args.lookups(progress)?;
    lookups.peer = peer.map(|(engine, strategy)| (engine.to_owned(), strategy.to_owned()));
    let memtable = MemTableEngine {
        pages: args.pages(),
    };
    let mut engines: Vec<&dyn Engine> = vec![&memtable];
    engines.extend(peers);

    show(&lookups, "Memtable", &engines, &args.output, progress, out)
}

/// The memtable as an engine to measure.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemTableEngine {
    /// The kind of pages for its tables.
    pub pages: Pages,
}

impl Engine for MemTableEngine {
    fn name(&self) -> &str {
        "forerun"
    }

    fn strategies(&self) -> Vec<String> {
        let mut names: Vec<String> = Strategy::ALL.iter().map(Strategy::to_string).collect();
        // The baseline comes first, whatever the order of the list.
        names.sort_by_key(|name| name != Strategy::Single.name());
        names
    }

    fn open(&self, need: &Need) -> Result<Box<dyn Store>> {
        // This is address space, not memory: the table uses memory as it grows. An entry's header,
        // tower and padding stay well below the 128 bytes allowed here.
        let limit_bytes = need.total_bytes(128).checked_add(1 << 20);
        let limit_bytes = limit_bytes
            .ok_or_else(|| anyhow!("{} entries do not fit this machine's addresses", need.keys))?;
        let table = MemTable::new(
            MemTableConfig::default()
                .limit_bytes(limit_bytes)
                .pages(self.pages),
        )?;
        Ok(Box::new(TableStore {
            table,
            next_sequence: AtomicU64::new(1),
        }))
    }
}

struct TableStore {
    table: MemTable,
    next_sequence: AtomicU64,
}

impl Store for TableStore {
    fn reader(&self, strategy: &str) -> Result<Box<dyn Reader + '_>> {
        Ok(Box::new(TableReader {
            store: self,
            strategy: strategy.parse()?,
            values: Values::new(),
        }))
    }

    fn writer(&self) -> Result<Box<dyn Writer + '_>> {
        Ok(Box::new(self))
    }

    fn facts(&self) -> Vec<(String, String)> {
        let stats = self.table.stats();
        let text = format!(
            "{} entries, {}B used ({} bytes an entry), {} levels, {}",
            count(stats.entries as u64),
            short(stats.used_bytes as f64),
            stats.used_bytes / stats.entries.max(1),
            stats.height,
            stats.backing
        );
        vec![("forerun memtable".to_owned(), text)]
    }
}

struct TableReader<'a> {
    store: &'a TableStore,
    strategy: Strategy,
    values: Values,
}

impl Reader for TableReader<'_> {
    fn read(&mut self, keys: &[&[u8]]) -> Result<usize> {
        // Relaxed: any number from that of the last loaded entry on is correct. A number drawn by a
        // writer that has not published yet only means that this batch still sees the previous
        // version.
        let snapshot = self.store.next_sequence.load(Ordering::Relaxed);
        let (table, values) = (&self.store.table, &mut self.values);
        table.multi_get_values(keys, snapshot, self.strategy, values);
        Ok(values.found())
    }

    fn value(&self, at: usize) -> Option<&[u8]> {
        self.values.get(at).ok().flatten()
    }
}

impl Writer for &TableStore {
    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let prepared = self
            .table
            .prepare(std::iter::once(Op::Put { key, value }))?;
        // Relaxed: the numbers only have to differ; the table itself orders what it publishes.
        prepared.publish(self.next_sequence.fetch_add(1, Ordering::Relaxed));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_baseline_is_the_first_strategy() {
        let strategies = MemTableEngine::default().strategies();
        assert_eq!(strategies[0], "single");
        assert_eq!(strategies.len(), Strategy::ALL.len());
    }
}
