//! A Raft node's storage: `forerun-raft`, and RocksDB with the layout of openraft's example.
//!
//! ```text
//!  node.rs     what is measured: append to the log, apply to the state machine, look up in it
//!  ours.rs     forerun-raft
//!  rocks.rs    RocksDB, written in two ways
//! ```
//!
//! The storage is called as openraft calls it, without openraft around it: appended entries are on
//! stable storage when the call ends. What is applied need not be, because openraft applies it
//! again after a power loss; `rocksdb-example` syncs it nevertheless, as the example does.

mod node;
mod ours;
mod rocks;

use std::cell::RefCell;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use forerun_bench::output::{Output, Timing, write_facts};
use forerun_measure::harness::{self, Case, Outcome, Sample, Turn};
use forerun_measure::machine;
use forerun_measure::progress::Progress;
use forerun_measure::result_row::Row;
use forerun_measure::text_table::TextTable;

use node::{Entries, KEY_BYTES, Node, VALUE_BYTES};
use ours::Forerun;
use rocks::{RocksNode, Writes};

/// Entries of a call to `append`: one client waits, or many do.
const APPENDED: [usize; 3] = [1, 16, 64];
/// Entries of a call to `apply`.
const APPLIED: usize = 64;
/// Keys of a lookup.
const LOOKED_UP: usize = 64;

#[derive(clap::Args)]
pub struct Args {
    /// Entries in the state machine when keys are looked up
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(64..))]
    entries: u64,

    /// The directory for the stores, on the disk to measure [default: the system's for temporary
    /// files]
    #[arg(long)]
    dir: Option<PathBuf>,

    #[command(flatten)]
    timing: Timing,

    #[command(flatten)]
    output: Output,
}

/// What a case does with a node.
#[derive(Clone, Copy)]
enum Work {
    Append(usize),
    Apply,
    MultiGet,
}

impl Work {
    fn name(self) -> &'static str {
        match self {
            Work::Append(_) => "append",
            Work::Apply => "apply",
            Work::MultiGet => "multi_get",
        }
    }

    fn batch(self) -> usize {
        match self {
            Work::Append(entries) => entries,
            Work::Apply => APPLIED,
            Work::MultiGet => LOOKED_UP,
        }
    }
}

/// Measures and prints to the standard output.
pub fn run(args: &Args) -> Result<()> {
    let entries = if args.output.quick {
        1000
    } else {
        args.entries
    };
    let parent = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let dir = tempfile::tempdir_in(&parent)
        .with_context(|| format!("cannot make a directory in {}", parent.display()))?;
    let progress = Progress::on_terminal();
    // Those that are looked up in are at rest: none has more to merge than another.
    let written = load(&dir.path().join("written"), entries, &progress)?;
    let compacted = load(&dir.path().join("compacted"), entries, &progress)?;
    for (node, _) in &compacted {
        node.borrow_mut().compact()?;
    }

    let works = APPENDED.map(Work::Append).into_iter();
    let works: Vec<Work> = works.chain([Work::Apply, Work::MultiGet]).collect();
    let cases = works.iter().enumerate().flat_map(|(group, &work)| {
        let nodes = if matches!(work, Work::MultiGet) {
            &compacted
        } else {
            &written
        };
        nodes.iter().map(move |(node, made)| {
            let name = format!("{} {}", work.name(), node.borrow().name());
            Case::new(group, name, move |turn| {
                turn_of(work, &mut **node.borrow_mut(), &mut made.borrow_mut(), turn)
            })
        })
    });
    let plan = args.output.plan(&args.timing);
    let outcomes = harness::measure(cases.collect(), &plan, &progress)?;
    let rows = works.iter().zip(outcomes.chunks(written.len()));
    let rows = rows.flat_map(|(&work, outcomes)| {
        let named = written.iter().zip(outcomes);
        named.map(move |((node, _), outcome)| {
            row_of(work, &**node.borrow(), outcome, &outcomes[1], entries)
        })
    });
    print(&args.output, &rows.collect::<Vec<_>>())
}

type Loaded = Vec<(RefCell<Box<dyn Node>>, RefCell<Entries>)>;

/// Nodes with so many entries in the state machine. The second one is what others are compared
/// with.
fn load(directory: &Path, entries: u64, progress: &Progress) -> Result<Loaded> {
    std::fs::create_dir_all(directory)?;
    let nodes = [
        Box::new(Forerun::open(&directory.join("forerun"))?) as Box<dyn Node>,
        Box::new(RocksNode::open(&directory.join("batch"), Writes::Batch)?),
        Box::new(RocksNode::open(
            &directory.join("example"),
            Writes::Example,
        )?),
    ];
    let bar = progress.steps("loading", entries * nodes.len() as u64);
    let mut loaded = Vec::new();
    for mut node in nodes {
        let mut made = Entries::new(entries);
        for first in (0..entries).step_by(1024) {
            let count = (entries - first).min(1024);
            node.apply(made.ordered(count))?;
            (0..count).for_each(|_| bar.step());
        }
        loaded.push((RefCell::new(node), RefCell::new(made)));
    }
    Ok(loaded)
}

/// One turn. Entries are made and answers are checked untimed.
fn turn_of(work: Work, node: &mut dyn Node, made: &mut Entries, turn: &Turn) -> Result<Sample> {
    let batch = work.batch() as u64;
    Sample::repeat_timed(turn, || match work {
        Work::Append(_) => {
            let entries = made.appended(batch);
            let start = Instant::now();
            node.append(entries)?;
            Ok((batch, start.elapsed()))
        }
        Work::Apply => {
            let entries = made.random(batch);
            let start = Instant::now();
            node.apply(entries)?;
            Ok((batch, start.elapsed()))
        }
        Work::MultiGet => {
            let keys = made.keys(LOOKED_UP);
            let start = Instant::now();
            let found = node.multi_get(&keys)?;
            let took = start.elapsed();
            ensure!(found == keys.len(), "{found} of {} keys found", keys.len());
            Ok((batch, took))
        }
    })
}

fn row_of(work: Work, node: &dyn Node, outcome: &Outcome, peer: &Outcome, entries: u64) -> Row {
    let row = Row {
        bench: "raft".to_owned(),
        case: work.name().to_owned(),
        engine: node.name().to_owned(),
        strategy: node.durability(work.name()).to_owned(),
        keys: entries,
        key_bytes: KEY_BYTES as u64,
        value_bytes: VALUE_BYTES as u64,
        batch: work.batch() as u64,
        threads: 1,
        hit_rate: matches!(work, Work::MultiGet).then_some(1.0),
        rounds: outcome.samples.len() as u64,
        speedup_vs_peer: Some(outcome.ratio_to(peer)),
        ..Row::default()
    };
    row.with_rates(
        outcome.per_second(),
        outcome.per_second_min(),
        outcome.per_second_max(),
    )
}

fn print(output: &Output, rows: &[Row]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if output.json_rows(rows, &mut out)? {
        return Ok(());
    }
    write_facts(&mut out, &machine::facts())?;
    let headings = [
        "case",
        "batch",
        "engine",
        "durability",
        "per second",
        "vs rocksdb",
    ];
    let mut table = TextTable::new(headings);
    for row in rows {
        table.push([
            row.case.clone(),
            row.batch.to_string(),
            row.engine.clone(),
            row.strategy.clone(),
            format!("{:.0}", row.keys_per_second),
            row.speedup_vs_peer
                .map_or_else(String::new, |ratio| format!("{ratio:.2}x")),
        ]);
    }
    Ok(writeln!(out, "{}", table.to_text())?)
}
