//! `forerun-bench btree`: lookups in one run, a B-tree of pages on disk that is entirely in the
//! page cache.
//!
//! A strategy is a page search (`plain`, `prefetch1`, ...) with one key at a time, or the same
//! search for a batch of keys in flight together (`multiget-plain`, ...). `index` finds records by
//! the run's index: one key at a time at batches of one, and otherwise together. The bench can also
//! measure peers: see [`run_with`].

use crate::engine::{Engine, Reader, Store, StoreRequirements, Writer};
use crate::lookup_args::LookupArgs;
use crate::lookup_output::show;
use crate::lookup_workloads::{Lookups, Workload};
use crate::output::{on_stdout, or};
use crate::roofline::lines_per_second;
use crate::skew::Skew;
use crate::workload::{Dataset, EntryBuffer};
use anyhow::{Context, Result, bail};
use forerun_core::Pages;
use forerun_core::size::parse_size;
use forerun_db::run::{Compression, PageSearch, RunOptions};
use forerun_db::tree::{OneRun, RunLookup};
use forerun_db::{Bytewise, Comparator, ReverseBytewise, Values};
use forerun_measure::progress::Progress;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

/// Lookups in one run in the page cache, by page search or index, one key at a time and batched
#[derive(clap::Args, Clone, Debug, Default, PartialEq)]
#[command(after_help = "\
Examples:
  forerun-bench btree --keys 10M --batch 1,8,64,256 --report btree.html
  forerun-bench btree --key-bytes 9 --strategy plain,prefetch2,key-prefixes
  forerun-bench btree --key-bytes 100 --prefix-bytes 80 --access uniform,zipf:0.99

Every list multiplies the number of cases. Rounds alternate: each measures every case once, with \
the strategies of a cell in turn. A lookup copies the value it finds, as a store's \
multi_get does. The run is written to --dir and read completely into the cache before timing starts.

\"roofline\" is keys per second over the random cache lines per second that the same number of \
threads can read on this machine.")]
pub struct Args {
    /// The data and the requests.
    #[command(flatten)]
    pub lookups: LookupArgs,

    /// Which present keys are requested: uniform, or zipf:0.99 [default: uniform]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub access: Vec<Skew>,

    /// The order of keys: bytewise, or reverse, which uses a comparator as a user's own would
    #[arg(long, default_value = "bytewise")]
    pub order: Order,

    /// Bytes of a page
    #[arg(long, value_name = "BYTES", default_value = "16Ki", value_parser = parse_size)]
    pub page_bytes: usize,

    /// Directory for the run's file [default: the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

/// The order of keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Order {
    /// By their bytes.
    #[default]
    Bytewise,
    /// The reverse of it, through a comparator.
    Reverse,
}

impl Args {
    /// The lists, with defaults filled in.
    fn lookups(&self, progress: &Progress) -> Result<Lookups> {
        let (args, quick) = (&self.lookups, self.lookups.output.quick);
        let threads = args.threads.list()?;
        Ok(Lookups {
            bench: "btree".into(),
            data: args.datasets([10_000_000, 5000])?,
            workloads: vec![Workload::MultiReadRandom],
            batches: args.batches(),
            writers: vec![1],
            write_batches: vec![1],
            hit_rates: args.hit_rates(),
            skews: or(&self.access, &[Skew::Uniform]),
            strategies: args.strategy.clone(),
            peer: None,
            plan: args.output.plan(&args.timing),
            pages: Pages::Huge,
            lines_per_second: lines_per_second(&threads, quick, progress)?,
            threads,
        })
    }

    /// The engine to measure.
    fn engine(&self) -> RunEngine {
        RunEngine {
            order: self.order,
            page_bytes: self.page_bytes,
            dir: self.dir.clone().unwrap_or_else(std::env::temp_dir),
        }
    }
}

/// Measures and prints to the standard output.
///
/// # Errors
/// Invalid lists, a failing run, or an output that cannot be written.
pub fn run(args: &Args) -> Result<()> {
    run_with(args, &[], None)
}

/// [`run`] with peers measured along with the run: same data, same cells, same rounds. `peer` names
/// the engine and strategy that a column of ratios compares with.
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
    lookups.peer = peer.map(|(engine, strategy)| (engine.to_owned(), strategy.to_owned()));
    let engine = args.engine();
    let mut engines: Vec<&dyn Engine> = vec![&engine];
    engines.extend(peers);
    show(
        &lookups,
        "B-tree",
        &engines,
        &args.lookups.output,
        progress,
        out,
    )
}

/// One run as an engine to measure.
#[derive(Clone, Debug, Default)]
pub struct RunEngine {
    /// The order of its keys.
    pub order: Order,
    /// Bytes of a page.
    pub page_bytes: usize,
    /// Directory of its file.
    pub dir: PathBuf,
}

/// The strategy that finds records by the run's index.
const INDEX: &str = "index";

/// The prefix in the names of batched strategies.
const BATCHED: &str = "multiget-";

impl Engine for RunEngine {
    fn name(&self) -> &str {
        "forerun"
    }

    fn strategies(&self) -> Vec<String> {
        let alone = PageSearch::ALL.map(|search| search.to_string());
        let batched = PageSearch::ALL.map(|search| format!("{BATCHED}{search}"));
        let all = alone.into_iter().chain(batched);
        all.chain([INDEX.to_owned()]).collect()
    }

    fn open(&self, _: &StoreRequirements) -> Result<Box<dyn Store>> {
        bail!("a run is written in order, and whole")
    }

    fn open_loaded(&self, data: &Dataset) -> Result<Option<Box<dyn Store>>> {
        Ok(Some(Box::new(self.build(data)?)))
    }
}

impl RunEngine {
    /// A run of all entries, with all of its pages in the cache.
    pub(crate) fn build(&self, data: &Dataset) -> Result<RunStore> {
        let dir = tempfile::tempdir_in(&self.dir)
            .with_context(|| format!("creating a directory in {}", self.dir.display()))?;
        let (comparator, reverse): (Arc<dyn Comparator>, _) = match self.order {
            Order::Bytewise => (Arc::new(Bytewise), false),
            Order::Reverse => (Arc::new(ReverseBytewise), true),
        };
        let options = RunOptions::default()
            .page_bytes(self.page_bytes)
            // All pages are in the cache, so their form on disk does not matter.
            .compression(Compression::None);
        let path = dir.path().join("bench.run");
        let run = OneRun::build(&path, comparator, options, |add| {
            let mut entry = EntryBuffer::default();
            for turn in 0..data.keys() {
                let index = if reverse {
                    data.keys() - 1 - turn
                } else {
                    turn
                };
                data.entry(index, &mut entry);
                add(&entry.key, &entry.value)?;
            }
            Ok(())
        })?;
        Ok(RunStore { run, _dir: dir })
    }
}

/// A run in its directory.
pub(crate) struct RunStore {
    run: OneRun,
    _dir: tempfile::TempDir,
}

impl RunStore {
    /// How often the lookups of these keys suspend, all together; `None` for those by the index,
    /// which wait in stages.
    pub(crate) fn count_suspensions(&self, keys: &[&[u8]], strategy: &str) -> Result<Option<u64>> {
        if strategy == INDEX {
            return Ok(None);
        }
        let search = strategy.strip_prefix(BATCHED).unwrap_or(strategy);
        Ok(Some(self.run.count_suspensions(keys, search.parse()?)?))
    }
}

impl Store for RunStore {
    fn reader(&self, strategy: &str) -> Result<Box<dyn Reader + '_>> {
        let search = strategy.strip_prefix(BATCHED);
        let (how, batched) = match strategy {
            INDEX => (RunLookup::Index, true),
            _ => {
                let name = search.unwrap_or(strategy);
                (RunLookup::Pages(name.parse()?), search.is_some())
            }
        };
        Ok(Box::new(RunReader {
            run: &self.run,
            how,
            batched,
            values: Values::new(),
        }))
    }

    fn writer(&self) -> Result<Box<dyn Writer + '_>> {
        bail!("a run cannot be written to again")
    }

    fn facts(&self) -> Vec<(String, String)> {
        let text = format!("{}; called without an engine around it", self.run.facts());
        vec![("forerun run".to_owned(), text)]
    }
}

struct RunReader<'a> {
    run: &'a OneRun,
    how: RunLookup,
    batched: bool,
    values: Values,
}

impl Reader for RunReader<'_> {
    fn read(&mut self, keys: &[&[u8]]) -> Result<usize> {
        let together = self.batched && (self.how != RunLookup::Index || keys.len() > 1);
        if together {
            self.run.multi_get_values(keys, self.how, &mut self.values)
        } else {
            self.run.get_values(keys, self.how, &mut self.values)
        }
        Ok(self.values.found())
    }

    fn value(&self, at: usize) -> Option<&[u8]> {
        self.values.get(at).ok().flatten()
    }
}
