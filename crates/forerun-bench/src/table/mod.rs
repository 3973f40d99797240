//! `forerun-bench table`: rows in memory and on disk, by access, budget and batch.
//!
//! ```text
//!  args.rs          the command line
//!  access.rs        the rows, and which are requested
//!  contender.rs     the interface of a table, ours or a peer's
//!  result_row.rs    a result
//!  show.rs          tables, the page
//!  trace_replay.rs  each access once instead of rounds, to compare policies
//!
//!  for each access                      a loaded store per engine
//!    for each budget                    opened, and used untimed until memory is warm
//!      round after round                (harness)
//!        for each number of threads     a group: what is compared
//!          the machine's random lines   a case
//!          for each batch x contender   a case
//! ```
//!
//! Both ends of each returned row are compared with the expected row, untimed. The bench can also
//! measure peers: see [`run_with`].

pub mod access;
mod args;
pub mod contender;
mod result_row;
mod show;
mod trace_replay;

pub use args::Args;
pub use result_row::TableRow;

use crate::output::{on_stdout, write_facts};
use crate::threads::Cores;
use access::{Access, Workload, is_row};
use anyhow::{Context, Result, ensure};
use args::Plan;
use contender::{Contender, Counters, ForerunTables, StoreRequirements, TieredTable};
use forerun_core::{CACHE_LINE_BYTES, Pages};
use forerun_measure::harness::{self, Case, Outcome, Sample};
use forerun_measure::machine;
use forerun_measure::progress::Progress;
use forerun_measure::report::Report;
use forerun_measure::result_row::Row;
use forerun_studies::roofline::Probe;
use forerun_table::Background;
use std::cell::Cell;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Chases in flight of the probe: enough to reach the machine's rate.
const IN_FLIGHT: usize = 32;

/// Measures and prints to the standard output.
///
/// # Errors
/// Invalid lists, a table that fails or answers wrongly, or an output that cannot be written.
pub fn run(args: &Args) -> Result<()> {
    run_with(args, &[], None)
}

/// [`run`] with peers measured along with the table: same rows, same keys, same rounds, same
/// checks. A column of ratios compares with the engine that `peer` names.
///
/// # Errors
/// The errors of [`run`], and errors of a peer.
pub fn run_with(args: &Args, peers: &[&dyn Contender], peer: Option<&str>) -> Result<()> {
    on_stdout(|out| run_to(args, peers, peer, &Progress::on_terminal(), out))
}

/// [`run_with`], printing to `out`.
///
/// # Errors
/// The same as for [`run_with`].
pub fn run_to(
    args: &Args,
    peers: &[&dyn Contender],
    peer: Option<&str>,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<()> {
    args.output.check()?;
    let plan = args.plan()?;
    let ours = ours(args);
    let mut contenders: Vec<&dyn Contender> = Vec::new();
    contenders.extend(ours.iter().map(|ours| ours as &dyn Contender));
    contenders.extend(peers);
    let quick = args.output.quick;
    let probe = Probe::new(if quick { 1 << 20 } else { 1 << 30 }, Pages::Huge)
        .context("measuring the random-access rate")?;
    let facts = machine::facts();
    if !args.output.json {
        write_facts(out, &facts)?;
    }
    let bench = Bench {
        args,
        plan: &plan,
        peer,
        probe: &probe,
        cores: Cores::available(),
        progress,
    };
    let mut all = Vec::new();
    for access in &plan.access {
        bench.access(access, &contenders, &mut |rows| {
            if !args.output.json_rows(&rows, out)? {
                show::print(&rows, out)?;
            }
            all.extend(rows);
            Ok(())
        })?;
    }
    if !args.output.json {
        writeln!(out, "{}", show::legend(&all))?;
    }
    let mut report = Report::new("Tables larger than memory", show::INTRO);
    report.facts = facts;
    show::fill(&mut report, &all);
    args.output.write_report(&report)
}

/// The requested policies.
fn ours(args: &Args) -> Vec<ForerunTables> {
    let strategies = crate::output::or(&args.evict_strategy, &[Default::default()]);
    let admissions = crate::output::or(&args.admission, &[Default::default()]);
    let each = strategies.iter().flat_map(|&evict_strategy| {
        admissions.iter().map(move |&admission| ForerunTables {
            evict_strategy,
            admission,
            page_bytes: args.page,
            background: if args.replay {
                Background::Caller
            } else {
                Background::Threads
            },
        })
    });
    each.collect()
}

struct Bench<'a> {
    args: &'a Args,
    plan: &'a Plan,
    peer: Option<&'a str>,
    probe: &'a Probe,
    cores: Cores,
    progress: &'a Progress,
}

/// One engine's case.
struct TableCase<'a> {
    contender: &'a dyn Contender,
    tiers: &'a dyn TieredTable,
    threads: usize,
    batch: usize,
    /// The counts of its turns.
    counters: Cell<Counters>,
}

impl Bench<'_> {
    fn access(
        &self,
        access: &Access,
        contenders: &[&dyn Contender],
        emit: &mut dyn FnMut(Vec<TableRow>) -> Result<()>,
    ) -> Result<()> {
        let threads = self.plan.threads.iter().copied().max().unwrap_or(1);
        let workload = Workload::new(access, self.plan.rows, threads, self.plan.stream_len)?;
        let parent = self.args.dir.clone().unwrap_or_else(std::env::temp_dir);
        let dir = tempfile::tempdir_in(&parent)
            .with_context(|| format!("cannot make a directory in {}", parent.display()))?;
        let needs = contenders.iter().map(|contender| {
            let dir = self.dir(dir.path(), contender.name())?;
            Ok((*contender, dir))
        });
        let needs: Vec<(&dyn Contender, PathBuf)> = needs.collect::<Result<_>>()?;
        for (contender, dir) in &needs {
            let bar = self.progress.steps(
                &format!("loading {}", contender.name()),
                workload.keys.len(),
            );
            let requirements = self.requirements(&workload, dir);
            contender
                .load(&requirements, &|done| bar.at(done))
                .with_context(|| format!("loading {}", contender.name()))?;
        }
        for &budget in &self.plan.budgets {
            if self.args.replay {
                emit(self.replay(access, &workload, budget, &needs)?)?;
                continue;
            }
            let rows = (workload.keys.len() as f64 * budget).ceil() as u64;
            let mut opened = Vec::new();
            for (contender, dir) in &needs {
                let tiers = contender
                    .open(&self.requirements(&workload, dir), rows)
                    .with_context(|| format!("opening {}", contender.name()))?;
                self.warm(&*tiers, &workload, budget, rows)
                    .with_context(|| format!("warming {}", contender.name()))?;
                opened.push((*contender, tiers));
            }
            emit(self.budget(access, &workload, budget, &opened)?)?;
        }
        Ok(())
    }

    fn dir(&self, parent: &Path, name: &str) -> Result<PathBuf> {
        let dir = parent.join(name);
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        Ok(dir)
    }

    fn requirements<'n>(&self, workload: &'n Workload, dir: &'n Path) -> StoreRequirements<'n> {
        StoreRequirements {
            row: self.plan.row,
            keys: &workload.keys,
            cache_bytes: self.args.cache.unwrap_or(64 << 20),
            dir,
        }
    }

    /// Uses a table until memory is warm: until it holds all rows, or until there were a few times
    /// as many lookups as memory has rows.
    fn warm(
        &self,
        tiers: &dyn TieredTable,
        workload: &Workload,
        budget: f64,
        budget_rows: u64,
    ) -> Result<()> {
        const FETCH: u64 = 1 << 16;
        const TIMES: usize = 6;
        if budget >= 1.0 {
            for from in (0..workload.keys.len()).step_by(FETCH as usize) {
                tiers.fetch(&workload.keys.part(from, from + FETCH))?;
                tiers.wait_idle();
            }
        }
        let batch = 1024;
        let mut reader = tiers.reader()?;
        let mut rows = vec![0; batch * self.plan.row.bytes()];
        let mut found = vec![false; batch];
        let stream = &workload.streams[0];
        let stream = &stream[..stream.len().min(budget_rows as usize * TIMES)];
        let bar = self.progress.steps("warming", stream.len() as u64);
        for (nth, keys) in stream.chunks(batch).enumerate() {
            let rows = &mut rows[..keys.len() * self.plan.row.bytes()];
            reader.find(keys, rows, &mut found[..keys.len()])?;
            bar.at((nth * batch) as u64);
        }
        tiers.wait_idle();
        Ok(())
    }

    fn budget(
        &self,
        access: &Access,
        workload: &Workload,
        budget: f64,
        opened: &[(&dyn Contender, Box<dyn TieredTable>)],
    ) -> Result<Vec<TableRow>> {
        // Where each thread's next turn begins, so that no turn requests what the previous one just
        // requested.
        let cursors: Vec<AtomicUsize> = workload
            .streams
            .iter()
            .map(|_| AtomicUsize::new(0))
            .collect();
        let mut lanes: Vec<Option<TableCase<'_>>> = Vec::new();
        for &threads in &self.plan.threads {
            lanes.push(None);
            for &batch in &self.plan.batches {
                lanes.extend(opened.iter().map(|(contender, tiers)| {
                    Some(TableCase {
                        contender: *contender,
                        tiers: &**tiers,
                        threads,
                        batch,
                        counters: Cell::default(),
                    })
                }));
            }
        }
        let mut group = 0;
        let cases = lanes.iter().map(|lane| match lane {
            None => {
                let threads = self.plan.threads[group];
                group += 1;
                Case::new(
                    threads,
                    format!("{threads} threads' random lines"),
                    move |turn| {
                        let rate = self.probe.lines_per_second(
                            threads,
                            IN_FLIGHT,
                            turn.round,
                            turn.duration.max(Duration::from_micros(100)),
                        )?;
                        Ok(Sample::new((rate * 1e3) as u64, Duration::from_secs(1000)))
                    },
                )
            }
            Some(lane) => {
                let name = format!("{} batch {}", lane.contender.name(), lane.batch);
                let cursors = &cursors;
                Case::new(lane.threads, name, move |turn| {
                    self.turn(lane, workload, cursors, turn)
                })
            }
        });
        let outcomes = harness::measure(
            cases.collect(),
            &self.args.output.plan(&self.args.timing),
            self.progress,
        )?;
        let mut rows = Vec::new();
        for (at, lane) in lanes.iter().enumerate() {
            if let Some(lane) = lane {
                let row = self.row(access, workload, budget, lane, &outcomes[at]);
                rows.push(self.compare(row, lane, at, &lanes, &outcomes));
            }
        }
        Ok(rows)
    }

    fn turn(
        &self,
        lane: &TableCase<'_>,
        workload: &Workload,
        cursors: &[AtomicUsize],
        turn: &harness::Turn,
    ) -> Result<Sample> {
        let (batch, row_bytes) = (lane.batch, self.plan.row.bytes());
        let before = lane.tiers.counters();
        let rates = self.cores.run(lane.threads, |thread, ready| {
            let mut reader = lane.tiers.reader()?;
            let stream = &workload.streams[thread];
            let mut rows = vec![0; batch * row_bytes];
            let (mut found, mut keys) = (vec![false; batch], Vec::with_capacity(batch));
            ready.wait();
            let sample = Sample::repeat_timed(turn, || {
                // Relaxed: one thread at a time uses this cursor.
                let from = cursors[thread].fetch_add(batch, Ordering::Relaxed) % stream.len();
                keys.clear();
                keys.extend((from..from + batch).map(|at| stream[at % stream.len()]));
                let start = Instant::now();
                let found_count = reader.find(&keys, &mut rows, &mut found)?;
                let took = start.elapsed();
                ensure!(
                    found_count == batch,
                    "only {found_count} of {batch} rows were found"
                );
                let wrong = keys.iter().zip(rows.chunks_exact(row_bytes));
                let wrong = wrong.filter(|(key, row)| !is_row(**key, row)).count();
                ensure!(
                    wrong == 0,
                    "{wrong} of {batch} rows do not belong to their keys"
                );
                Ok((batch as u64, took))
            })?;
            Ok(sample.per_second)
        })?;
        let (after, so_far) = (lane.tiers.counters(), lane.counters.get());
        lane.counters.set(Counters {
            keys: so_far.keys + after.keys - before.keys,
            host_hits: so_far.host_hits + after.host_hits - before.host_hits,
            moved_bytes: so_far.moved_bytes + after.moved_bytes - before.moved_bytes,
            host_bytes: after.host_bytes,
        });
        // Pending moves must not run into the next turn, which may be another engine's.
        lane.tiers.wait_idle();
        Ok(Sample {
            per_second: rates.iter().sum(),
            beside_per_second: None,
        })
    }

    /// Cache lines of a row and its bucket.
    fn lines_per_row(&self) -> u64 {
        1 + self.plan.row.bytes().div_ceil(CACHE_LINE_BYTES) as u64
    }

    fn row(
        &self,
        access: &Access,
        workload: &Workload,
        budget: f64,
        lane: &TableCase<'_>,
        outcome: &Outcome,
    ) -> TableRow {
        let counters = lane.counters.get();
        let found_bytes = counters.keys * self.plan.row.bytes() as u64;
        let common = Row {
            bench: "table".into(),
            case: access.to_string(),
            engine: lane.contender.name().to_owned(),
            strategy: lane.contender.policy(),
            keys: workload.keys.len(),
            key_bytes: 8,
            value_bytes: self.plan.row.bytes() as u64,
            batch: lane.batch as u64,
            threads: lane.threads as u64,
            hit_rate: Some(1.0),
            access: Some(access.to_string()),
            pages: Pages::Huge.to_string(),
            isa: forerun_core::arch::isa().to_string(),
            rounds: outcome.samples.len() as u64,
            ..Row::default()
        };
        TableRow {
            common: common.with_rates(
                outcome.per_second(),
                outcome.per_second_min(),
                outcome.per_second_max(),
            ),
            budget,
            host_bytes: counters.host_bytes,
            host_hit_rate: counters.host_hits as f64 / counters.keys.max(1) as f64,
            moved_per_found: counters.moved_bytes as f64 / found_bytes.max(1) as f64,
            lines_per_row: self.lines_per_row(),
        }
    }

    /// Adds the ratios to the machine's random lines and to the peer.
    fn compare(
        &self,
        mut row: TableRow,
        mine: &TableCase<'_>,
        at: usize,
        lanes: &[Option<TableCase<'_>>],
        outcomes: &[Outcome],
    ) -> TableRow {
        let probe = lanes[..at].iter().rposition(Option::is_none);
        row.common.roofline_share = probe
            .map(|probe| outcomes[at].ratio_to(&outcomes[probe]) * self.lines_per_row() as f64);
        let rival = self.peer.and_then(|peer| {
            lanes.iter().position(|lane| {
                lane.as_ref().is_some_and(|lane| {
                    (lane.threads, lane.batch) == (mine.threads, mine.batch)
                        && lane.contender.name() == peer
                })
            })
        });
        row.common.speedup_vs_peer = rival.map(|rival| outcomes[at].ratio_to(&outcomes[rival]));
        row
    }
}
