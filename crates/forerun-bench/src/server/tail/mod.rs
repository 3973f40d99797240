//! `forerun-bench server --study tail`: how long sets into a full cache take while something
//! disturbs them.
//!
//! ```text
//!  for each disturbance        none, gat, snapshot, slow_snapshot, flush_all, expiry
//!    round after round         this server, memcached: a new process each turn, filled until it evicts
//!      setter                  a set every interval, timed from when it was due
//!      disturber               a connection, or a signal
//! ```
//!
//! `disturbed_load.rs` contains the setter, the disturbers and the filling; `awake_cores.rs` keeps
//! the machine from measuring how long it takes to wake up.

mod awake_cores;
mod disturbed_load;

use super::PEER;
use super::args::{Args, Disturbance, Plan};
use super::blocking_connection::BlockingConnection;
use super::data::{Items, KEY_BYTES};
use super::program::{Program, Share};
use super::server_process::{self, Process, Split};
use crate::lookup_page::{or_dash, times};
use crate::output::write_facts;
use crate::panels::push_legend;
use anyhow::{Context, Result, anyhow, ensure};
use awake_cores::AwakeCores;
use disturbed_load::Set;
use forerun_measure::harness::median;
use forerun_measure::progress::Progress;
use forerun_measure::report::{Report, Section};
use forerun_measure::size::{count, digits, short};
use forerun_measure::text_table::TextTable;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The number of items is this multiple of the number that fits, so that a filled cache evicts.
const OVERFILL: f64 = 1.3;
/// The minimum overhead of an item besides its key and value, in any of the servers.
const ITEM_OVERHEAD_BYTES: u64 = 40;
/// The duration of a turn, long enough to contain a storm of expiries, which servers notice once a
/// second.
const TIMED_MS: u32 = 4_000;
const TIMED_QUICK_MS: u32 = 200;

const INTRO: &str = "How long a set into a full cache takes, from when it was due, under \
disturbances. Sets come at a fixed rate, so a server that stops is charged for every set of that \
time.";

/// One result of the study: a line of JSON.
#[derive(Clone, Debug, Serialize)]
struct TailRow {
    bench: &'static str,
    study: &'static str,
    /// The disturbance.
    case: String,
    /// The server.
    engine: String,
    memory_mib: u64,
    value_bytes: u64,
    threads: u64,
    rounds: u64,
    /// Sets of all rounds.
    sets: u64,
    /// Sets that were not stored.
    refused: u64,
    /// Sets per second: the requested rate, or less if the server could not follow.
    keys_per_second: f64,
    /// Disturbances in all rounds: `gat` lines, requests for a snapshot, flushes.
    disturbances: u64,
    /// Quantiles are the medians of the rounds.
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    /// The maximum of all rounds.
    max_us: f64,
    /// Milliseconds that the server's workers were ready to run but had no core, in all rounds, if
    /// the system reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    core_wait_ms: Option<f64>,
    /// `p999_us` over memcached's.
    #[serde(skip_serializing_if = "Option::is_none")]
    p999_vs_peer: Option<f64>,
}

/// The results of the rounds of one server and disturbance.
#[derive(Default)]
struct RoundTotals {
    sets: u64,
    refused: u64,
    disturbances: u64,
    core_wait: Option<Duration>,
    /// One per round.
    latencies: Vec<Histogram<u64>>,
}

/// A server of the study.
struct Server {
    program: Program,
    /// Whether it writes a snapshot on SIGUSR2.
    can_snapshot: bool,
}

struct Study<'a> {
    args: &'a Args,
    plan: &'a Plan,
    items: Items,
    timed: Duration,
    split: Split,
}

/// Runs the study on `programs`. The first one is this project's if `own_first`.
///
/// # Errors
/// A server that cannot be started or answers wrongly, or an output that cannot be written.
pub(super) fn run(
    args: &Args,
    plan: &Plan,
    programs: Vec<Program>,
    own_first: bool,
    mut facts: Vec<(String, String)>,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<()> {
    let quick = args.output.quick;
    let rounds = args.output.rounds.unwrap_or(if quick { 1 } else { 5 });
    let timed_ms = if quick { TIMED_QUICK_MS } else { TIMED_MS };
    let value_bytes = plan.loads[0].value_bytes;
    let item_bytes = value_bytes as u64 + KEY_BYTES as u64 + ITEM_OVERHEAD_BYTES;
    let fit = (plan.memory_mib << 20) as f64 / item_bytes as f64;
    let study = Study {
        args,
        plan,
        items: Items {
            count: (fit * OVERFILL) as u64,
            value_bytes,
        },
        timed: Duration::from_millis(args.timing.duration_ms.unwrap_or(timed_ms).into()),
        split: Split::of(usize::from(args.threads)),
    };
    // Snapshots go to a temporary directory on the given disk.
    let parent = args.snapshot_dir.clone().unwrap_or_else(std::env::temp_dir);
    let dir = tempfile::tempdir_in(&parent)
        .with_context(|| format!("cannot make a directory in {}", parent.display()))?;
    facts.push(("snapshots in".to_owned(), parent.display().to_string()));
    let cores = study.split.server.iter().chain(&study.split.client);
    let mut awake_cores = AwakeCores::start(cores.copied());
    facts.push(awake_cores.fact());
    if !args.output.json {
        write_facts(out, &facts)?;
    }
    let servers: Vec<Server> = programs
        .into_iter()
        .enumerate()
        .map(|(at, program)| Server {
            program,
            can_snapshot: own_first && at == 0,
        })
        .collect();
    let disturbances = match &args.disturbance[..] {
        [] => &Disturbance::ALL[..],
        named => named,
    };
    let turns = disturbances.len() * servers.len() * rounds as usize;
    let bar = progress.steps("measuring", turns as u64);
    let mut rows: Vec<TailRow> = Vec::new();
    for &disturbance in disturbances {
        let mut totals: Vec<RoundTotals> = servers.iter().map(|_| RoundTotals::default()).collect();
        for round in 0..rounds {
            for (server, totals) in servers.iter().zip(&mut totals) {
                let turn = study.turn(server, disturbance, round, dir.path());
                let turn =
                    turn.with_context(|| format!("{}, {disturbance}", server.program.name))?;
                totals.add(turn);
                bar.step();
            }
        }
        let of_case = servers.iter().zip(&totals);
        let of_case: Vec<TailRow> = of_case
            .map(|(server, totals)| study.row(server, disturbance, u64::from(rounds), totals))
            .collect();
        let peer = of_case.iter().find(|row| row.engine == PEER);
        let peer_us = peer.map(|row| row.p999_us);
        let of_case: Vec<TailRow> = of_case
            .into_iter()
            .map(|row| TailRow {
                p999_vs_peer: peer_us.map(|peer_us| row.p999_us / peer_us),
                ..row
            })
            .collect();
        args.output.json_rows(&of_case, out)?;
        rows.extend(of_case);
    }
    let (constant, table) = table(&rows);
    if !args.output.json {
        writeln!(out)?;
        write_facts(out, &constant)?;
        writeln!(out, "\n{}\n{}", table.to_text(), legend(&study))?;
        out.flush()?;
    }
    let mut report = Report::new("Sets into a full cache, disturbed", INTRO);
    report.facts = facts;
    report.facts.extend(constant);
    report.sections.push(Section::Table {
        caption: String::new(),
        table,
    });
    push_legend(&mut report, &legend(&study));
    args.output.write_report(&report)
}

impl RoundTotals {
    fn add(&mut self, turn: RoundTotals) {
        self.sets += turn.sets;
        self.refused += turn.refused;
        self.disturbances += turn.disturbances;
        self.core_wait = match (self.core_wait, turn.core_wait) {
            (Some(before), Some(more)) => Some(before + more),
            (before, more) => before.or(more),
        };
        self.latencies.extend(turn.latencies);
    }

    /// The median of the rounds' quantiles, in microseconds, so that one round on a busy machine
    /// does not decide.
    fn quantile_us(&self, quantile: f64) -> f64 {
        let rounds = self.latencies.iter();
        median(rounds.map(|round| round.value_at_quantile(quantile) as f64 / 1000.0))
    }

    fn max_us(&self) -> f64 {
        let rounds = self.latencies.iter();
        rounds
            .map(|round| round.max() as f64 / 1000.0)
            .fold(0.0, f64::max)
    }
}

impl Study<'_> {
    /// Starts a server, fills it, and sends sets under the disturbance.
    fn turn(
        &self,
        server: &Server,
        disturbance: Disturbance,
        round: u32,
        dir: &Path,
    ) -> Result<RoundTotals> {
        let mut program = server.program.clone();
        if server.can_snapshot && disturbance.is_snapshot() {
            let file: PathBuf = dir.join("cache.snapshot");
            program.args.extend(["--snapshot".into(), file.into()]);
        }
        if server.can_snapshot && disturbance == Disturbance::SlowSnapshot {
            // At this rate, half of the cache is written by the end of the round.
            let rate = (self.plan.memory_mib << 20) as f64 / (2.0 * self.timed.as_secs_f64());
            let rate = (rate as u64).to_string();
            program.args.extend(["--snapshot-rate".into(), rate.into()]);
        }
        let mut process = Process::start(
            &program,
            &Share {
                threads: usize::from(self.args.threads),
                memory_mib: self.plan.memory_mib,
                connections: 64,
                cores: self.split.server.clone(),
            },
        )?;
        let mut connection = BlockingConnection::connect(process.address())?;
        disturbed_load::fill(&mut connection, self.items, disturbance, self.timed)
            .context("while filling it")?;
        let waited = process.workers_wait();
        let over = AtomicBool::new(false);
        let interval = Duration::from_secs(1) / self.args.rate;
        let (set, disturbed) = std::thread::scope(|scope| {
            let disturber = scope.spawn(|| {
                self.pin(1);
                disturbed_load::disturb(
                    disturbance,
                    &process,
                    self.items,
                    server.can_snapshot,
                    &over,
                )
            });
            let setter = scope.spawn(|| {
                self.pin(0);
                disturbed_load::set(
                    &mut connection,
                    self.items,
                    round.into(),
                    interval,
                    self.timed,
                )
            });
            let set = setter.join();
            // Relaxed: see the load.
            over.store(true, Ordering::Relaxed);
            (set, disturber.join())
        });
        // If a server ended, its exit says more than the connection that it closed.
        process.check()?;
        let core_wait = waited.zip(process.workers_wait());
        let panicked = |_| anyhow!("a client panicked");
        let Set {
            sets,
            refused,
            latencies,
        } = set.map_err(panicked)??;
        let disturbances = disturbed.map_err(panicked)??;
        ensure!(
            sets > 0,
            "no set was due in a turn: raise --rate or --duration-ms"
        );
        Ok(RoundTotals {
            sets,
            refused,
            disturbances,
            core_wait: core_wait.map(|(before, after)| after.saturating_sub(before)),
            latencies: vec![latencies],
        })
    }

    /// Pins the current thread to a client's core.
    fn pin(&self, client: usize) {
        let cores = &self.split.client;
        if let Some(core) = cores.get(client % cores.len().max(1)) {
            server_process::pin(&[*core]);
        }
    }

    fn row(
        &self,
        server: &Server,
        disturbance: Disturbance,
        rounds: u64,
        totals: &RoundTotals,
    ) -> TailRow {
        TailRow {
            bench: "server",
            study: "tail",
            case: disturbance.to_string(),
            engine: server.program.name.clone(),
            memory_mib: self.plan.memory_mib,
            value_bytes: self.items.value_bytes as u64,
            threads: self.args.threads.into(),
            rounds,
            sets: totals.sets,
            refused: totals.refused,
            keys_per_second: totals.sets as f64 / (self.timed.as_secs_f64() * rounds as f64),
            disturbances: totals.disturbances,
            p50_us: totals.quantile_us(0.5),
            p99_us: totals.quantile_us(0.99),
            p999_us: totals.quantile_us(0.999),
            max_us: totals.max_us(),
            core_wait_ms: totals.core_wait.map(|wait| wait.as_secs_f64() * 1000.0),
            p999_vs_peer: None,
        }
    }
}

fn table(rows: &[TailRow]) -> (Vec<(String, String)>, TextTable) {
    let mut table = TextTable::new([
        "disturbance",
        "server",
        "memory",
        "value",
        "sets/s",
        "refused",
        "disturbances",
        "p50 us",
        "p99 us",
        "p99.9 us",
        "max us",
        "core wait ms",
        "p99.9 vs memcached",
    ]);
    for row in rows {
        table.push([
            row.case.clone(),
            row.engine.clone(),
            format!("{} MiB", row.memory_mib),
            format!("{}B", count(row.value_bytes)),
            short(row.keys_per_second),
            count(row.refused),
            count(row.disturbances),
            digits(row.p50_us),
            digits(row.p99_us),
            digits(row.p999_us),
            digits(row.max_us),
            or_dash(row.core_wait_ms, digits),
            or_dash(row.p999_vs_peer, times),
        ]);
    }
    let constant = table.take_constant(&[
        "disturbance",
        "server",
        "refused",
        "p50 us",
        "p99 us",
        "p99.9 us",
        "max us",
    ]);
    (constant, table)
}

fn legend(study: &Study<'_>) -> String {
    format!(
        "A set every {} us for {} ms per round, into a full cache; times count from when a set was \
         due until its answer arrived.\nnone: no disturbance. gat: lines of 30 keys, one after the \
         other. snapshot: SIGUSR2 to this server, ten times per second unless it is still writing; \
         memcached cannot write snapshots while it serves and is left alone. slow_snapshot: the \
         same, at a rate that writes half of the cache in a round. flush_all: ten times per \
         second. expiry: half of the items expire in the same second, in the middle of the \
         round.\nrefused: sets that were not stored. disturbances: gat lines, requests for a \
         snapshot, flushes. Quantiles are the medians of the rounds; max is the maximum of all. \
         core wait: how long the server's workers were ready to run but had no core, in all \
         rounds; if it is long, the figures measure other threads and programs.",
        1_000_000 / study.args.rate,
        study.timed.as_millis(),
    )
}
