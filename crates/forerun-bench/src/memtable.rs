//! `forerun-bench memtable`: lookups and inserts on [`forerun_db::memtable::MemTable`], without log
//! or files.
//!
//! The bench can also measure the same memtable in a store (`--in-store`), and peers: see
//! [`run_with`].

use crate::engine::{Engine, Reader, Store, StoreRequirements, Writer};
use crate::lookup_args::LookupArgs;
use crate::lookup_output::show;
use crate::lookup_workloads::{Lookups, Workload};
use crate::output::{on_stdout, or};
use crate::roofline::{PagesArg, lines_per_second};
use crate::skew::Skew;
use crate::store_engine::MemTableInStore;
use crate::workload::EntryBuffer;
use anyhow::{Result, anyhow};
use forerun_core::Pages;
use forerun_core::size::parse_size;
use forerun_db::memtable::{MemTable, MemTableConfig, Strategy};
use forerun_db::{MemoryChecks, Op, Values};
use forerun_measure::progress::Progress;
use forerun_measure::size::{count, short};
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};

/// Batched lookups and inserts on the memtable, by strategy
#[derive(clap::Args, Clone, Debug, Default, PartialEq)]
#[command(after_help = "\
Example: forerun-bench memtable --keys 2M --batch 1,8,64,256 --hit-rate 1,0.5 --report memtable.html

Every list multiplies the number of cases. Rounds alternate: each measures every case once, with \
the strategies of a cell in turn. A lookup copies the value it finds out of the table, \
as a store's multi_get does.

\"roofline\" is keys per second over the random cache lines per second that the same number of \
threads can read on this machine: 100% would be a lookup that costs one cache line and nothing \
else.")]
pub struct Args {
    /// The data and the requests.
    #[command(flatten)]
    pub lookups: LookupArgs,

    /// Workloads [default: multireadrandom; with --quick all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub workload: Vec<Workload>,

    /// Entries per write of fillrandom [default: 1]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    pub write_batch: Vec<usize>,

    /// Threads that overwrite entries in multireadwhilewriting [default: 1]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    pub writers: Vec<usize>,

    /// Also measure a memtable without a hash index, and compare with it
    #[arg(long)]
    pub without_index: bool,

    /// Also measure a memtable that verifies every entry it visits; it has no hash index
    #[arg(long)]
    pub paranoid: bool,

    /// Also measure a store whose memtable holds all entries, by its own strategies: single and
    /// multiget
    #[arg(long)]
    pub in_store: bool,

    /// The kind of memory pages for the table [default: huge]
    #[arg(long)]
    pub pages: Option<PagesArg>,
}

impl Args {
    /// The kind of pages to use.
    pub fn pages(&self) -> Pages {
        self.pages.unwrap_or(PagesArg::Huge).into()
    }

    /// The lists, with defaults filled in.
    fn lookups(&self, progress: &Progress) -> Result<Lookups> {
        let (args, quick) = (&self.lookups, self.lookups.output.quick);
        let all = [
            Workload::MultiReadRandom,
            Workload::MultiReadWhileWriting,
            Workload::FillRandom,
        ];
        let threads = args.threads.list()?;
        Ok(Lookups {
            bench: "memtable".into(),
            data: args.datasets([2_000_000, 2000])?,
            workloads: or(&self.workload, if quick { &all } else { &all[..1] }),
            batches: args.batches(),
            writers: or(&self.writers, &[1]),
            write_batches: or(&self.write_batch, &[1]),
            hit_rates: args.hit_rates(),
            skews: vec![Skew::Uniform],
            strategies: args.strategy.clone(),
            peer: None,
            plan: args.output.plan(&args.timing),
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
/// The errors of [`run`], and errors of a peer.
pub fn run_with(args: &Args, peers: &[&dyn Engine], peer: Option<(&str, &str)>) -> Result<()> {
    on_stdout(|out| run_to(args, peers, peer, &Progress::on_terminal(), out))
}

/// [`run_with`], printing to `out`.
///
/// # Errors
/// The same as for [`run_with`].
pub fn run_to(
    args: &Args,
    peers: &[&dyn Engine],
    peer: Option<(&str, &str)>,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<()> {
    let mut lookups = args.lookups(progress)?;
    let pages = args.pages();
    let [memtable, without_index, paranoid] = [Form::Indexed, Form::WithoutIndex, Form::Paranoid]
        .map(|form| MemTableEngine { form, pages });
    let in_store = MemTableInStore { pages };
    let mut engines: Vec<&dyn Engine> = vec![&memtable];
    if args.without_index {
        engines.push(&without_index);
        lookups.peer = Some((without_index.name().to_owned(), Strategy::Auto.to_string()));
    }
    if args.paranoid {
        engines.push(&paranoid);
    }
    if args.in_store {
        engines.push(&in_store);
    }
    if let Some((engine, strategy)) = peer {
        lookups.peer = Some((engine.to_owned(), strategy.to_owned()));
    }
    engines.extend(peers);

    show(
        &lookups,
        "Memtable",
        &engines,
        &args.lookups.output,
        progress,
        out,
    )
}

/// The kinds of memtables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// With a hash index, as in a store by default.
    #[default]
    Indexed,
    /// The list alone.
    WithoutIndex,
    /// The list alone, each of whose entries is verified when it is visited.
    Paranoid,
}

/// The memtable as an engine to measure.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemTableEngine {
    /// The kind of its tables.
    pub form: Form,
    /// The kind of pages for its tables.
    pub pages: Pages,
}

impl Engine for MemTableEngine {
    fn name(&self) -> &str {
        match self.form {
            Form::Indexed => "forerun",
            Form::WithoutIndex => "without-index",
            Form::Paranoid => "paranoid",
        }
    }

    fn strategies(&self) -> Vec<String> {
        let mut names: Vec<String> = Strategy::ALL.iter().map(Strategy::to_string).collect();
        // The baseline comes first, whatever the order of the list.
        names.sort_by_key(|name| name != Strategy::Single.name());
        names
    }

    fn open(&self, requirements: &StoreRequirements) -> Result<Box<dyn Store>> {
        // This is address space, not memory: the table uses memory as it grows. An entry's header,
        // tower and padding stay well below the 128 bytes allowed here.
        let limit_bytes = requirements.total_bytes(128).checked_add(1 << 20);
        let limit_bytes = limit_bytes.ok_or_else(|| {
            anyhow!(
                "{} entries do not fit this machine's addresses",
                requirements.keys
            )
        })?;
        let table = MemTable::new(
            MemTableConfig::default()
                .limit_bytes(limit_bytes)
                .hash_index(self.form == Form::Indexed)
                .checks(match self.form {
                    Form::Paranoid => MemoryChecks::Paranoid,
                    Form::Indexed | Form::WithoutIndex => MemoryChecks::Off,
                })
                .pages(self.pages),
        )?;
        Ok(Box::new(TableStore {
            form: self.form,
            table,
            next_sequence: AtomicU64::new(1),
        }))
    }
}

struct TableStore {
    form: Form,
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
            "{} entries, {}B used ({} bytes per entry), {} levels, {}; \
             called without an engine around it",
            count(stats.entries as u64),
            short(stats.used_bytes as f64),
            stats.used_bytes / stats.entries.max(1),
            stats.height,
            stats.backing
        );
        let name = match self.form {
            Form::Indexed => "forerun memtable",
            Form::WithoutIndex => "without index",
            Form::Paranoid => "paranoid",
        };
        vec![(name.to_owned(), text)]
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
        table.multi_get_values_with(keys, snapshot, self.strategy, values);
        Ok(values.found())
    }

    fn value(&self, at: usize) -> Option<&[u8]> {
        self.values.get(at).ok().flatten()
    }
}

impl TableStore {
    fn publish<'op>(&self, ops: impl Iterator<Item = Op<'op>> + Clone) -> Result<()> {
        let prepared = self.table.prepare(ops)?;
        let entries = prepared.len() as u64;
        // Relaxed: the numbers only have to differ. The table itself orders its publications.
        prepared.publish(self.next_sequence.fetch_add(entries, Ordering::Relaxed));
        Ok(())
    }
}

impl Writer for &TableStore {
    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.publish(std::iter::once(Op::Put { key, value }))
    }

    fn write_many(&mut self, entries: &[EntryBuffer]) -> Result<()> {
        self.publish(entries.iter().map(|entry| Op::Put {
            key: &entry.key,
            value: &entry.value,
        }))
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
