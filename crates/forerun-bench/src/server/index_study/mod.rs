//! `forerun-bench server --study index`: one server, one protocol, one kind of socket, and the
//! index exchanged. It is the question of SimdHT-Bench (Shankar, Lu and Panda, IISWC 2019): what is
//! left of a faster table once a server is around it?
//!
//! ```text
//!   for each number of keys per request
//!     round after round        each index in the study's server, then this project's server and memcached,
//!                              over each transport:
//!       a turn                 the load of the bench `server`; the phases before and after from `stats`
//!
//!   index_name.rs      the names of indexes        index.rs       the indexes
//!   study_server.rs    the server                  phases.rs      the time in each phase of a request
//!   result_row.rs      a result                    show.rs        tables, the page
//! ```

mod index;
mod index_name;
mod phases;
mod result_row;
mod show;
mod study_server;

pub use index_name::IndexName;
pub use result_row::{IndexRow, PhaseTimes};
pub use study_server::{ServeArgs, serve};

use super::blocking_connection::BlockingConnection;
use super::data::{Items, KEY_BYTES};
use super::form::Form;
use super::link::Transport;
use super::program::Program;
use super::request::Requests;
use super::{Bench, Cell, Target, TurnTotals, load};
use crate::output::write_facts;
use anyhow::{Context, Result, ensure};
use forerun_measure::harness::{self, Case, Outcome, Sample, Turn, median};
use forerun_measure::progress::{Bar, Progress};
use forerun_measure::report::Report;
use forerun_measure::result_row::Row;
use index_name::MEMC3;
use phases::{Phase, Phases};
use std::cell::RefCell;
use std::io::Write;

/// The longest line that the study's server reads at once has fewer keys than this.
const KEYS_MAX: usize = 900;
/// The engine of the rows of the study's server.
const ENGINE: &str = "study";

/// A server to measure over one kind of link.
struct Contender {
    /// The index of the study's server; none for another server.
    index: Option<IndexName>,
    target: Target,
    /// A connection for `stats`.
    stats: Option<BlockingConnection>,
}

/// The results of a turn besides its rate.
struct Round {
    mean_us: f64,
    p50_us: f64,
    p99_us: f64,
    /// Core time of the server per key, in nanoseconds; NaN if the system does not report it.
    core_ns: f64,
    phases: Option<Phases>,
    totals: TurnTotals,
}

/// Runs the study. `others` are servers to measure beside the study's.
///
/// # Errors
/// A server that cannot be started or answers wrongly, or an output that cannot be written.
pub(super) fn run(
    bench: &Bench<'_>,
    others: &[Program],
    mut facts: Vec<(String, String)>,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<()> {
    let (args, plan) = (bench.args, bench.plan);
    let mut indexes = match &args.index[..] {
        [] => IndexName::defaults(),
        named => named.to_vec(),
    };
    // Everything is compared with MemC3's.
    indexes.retain(|index| *index != MEMC3);
    indexes.insert(0, MEMC3);
    ensure!(
        plan.keys.iter().all(|keys| *keys <= KEYS_MAX),
        "--keys: the study takes at most {KEYS_MAX} per request"
    );
    ensure!(args.threads == 1, "--threads: the study's server has one");
    let load_factor = |items: &Items| {
        let slots = crate::memc3_index::slots_for(items.count as usize);
        format!("{:.2}", items.count as f64 / slots as f64)
    };
    let load_factors: Vec<String> = plan.loads.iter().map(load_factor).collect();
    facts.push(("load factor".to_owned(), load_factors.join(", ")));
    if !args.output.json {
        write_facts(out, &facts)?;
    }
    let cells = plan.loads.len() * plan.access.len() * plan.keys.len();
    let links = others.iter().map(|program| bench.links(program).len());
    let contenders = indexes.len() * plan.links.len() + links.sum::<usize>();
    let turns = cells * contenders * args.output.plan(&args.timing).rounds;
    let bar = progress.steps("measuring", turns as u64);
    let mut rows: Vec<IndexRow> = Vec::new();
    for &items in &plan.loads {
        let mut contenders = Vec::new();
        for &index in &indexes {
            let of_index = of_index(bench, index, items);
            contenders.extend(of_index.with_context(|| index.to_string())?);
        }
        for program in others {
            let links = bench.links(program);
            if links.is_empty() {
                continue;
            }
            let mut targets = bench.connect(program, &links)?;
            load(&mut targets[0], items).context("while loading")?;
            contenders.extend(targets.into_iter().map(|target| Contender {
                index: None,
                target,
                stats: None,
            }));
        }
        let contenders: Vec<_> = contenders.into_iter().map(RefCell::new).collect();
        for &access in &plan.access {
            for &keys in &plan.keys {
                let form = Form::Get;
                let cell = Cell { access, form, keys };
                let of_cell = measure(bench, cell, items, &contenders, &bar)?;
                args.output.json_rows(&of_cell, out)?;
                rows.extend(of_cell);
            }
        }
    }
    if !args.output.json {
        let (constant, table) = show::table(&rows);
        writeln!(out)?;
        write_facts(out, &constant)?;
        writeln!(out, "\n{}\n{}", table.to_text(), show::legend(&rows))?;
        out.flush()?;
    }
    let mut report = Report::new("Indexes of a server", show::INTRO);
    report.facts = facts;
    show::fill(&mut report, &rows);
    args.output.write_report(&report)
}

/// Starts the study's server with an index, and connects to it over each kind of link.
fn of_index(bench: &Bench<'_>, index: IndexName, items: Items) -> Result<Vec<Contender>> {
    let mut program = Program::forerun()?;
    program.name = index.to_string();
    program.args = ["index-server", "--index", &program.name]
        .map(Into::into)
        .to_vec();
    // In a quick run, every turn counts.
    let sample = if bench.args.output.quick {
        1
    } else {
        phases::SAMPLE
    };
    for (option, value) in [
        ("--items", items.count),
        ("--value-bytes", items.value_bytes as u64),
        ("--sample", sample),
    ] {
        program.args.push(option.into());
        program.args.push(value.to_string().into());
    }
    let targets = bench.connect(&program, &bench.links(&program))?;
    let contenders = targets.into_iter().map(|target| {
        let stats = BlockingConnection::connect(target.process.borrow().address())?;
        Ok(Contender {
            index: Some(index),
            target,
            stats: Some(stats),
        })
    });
    contenders.collect()
}

/// Measures the servers alternately.
fn measure(
    bench: &Bench<'_>,
    cell: Cell,
    items: Items,
    contenders: &[RefCell<Contender>],
    bar: &Bar,
) -> Result<Vec<IndexRow>> {
    let requests = bench.compose(cell, items);
    let rounds: Vec<RefCell<Vec<Round>>> = contenders.iter().map(|_| RefCell::default()).collect();
    let cases = contenders.iter().zip(&rounds).map(|(contender, rounds)| {
        let shown = contender.borrow();
        let (server, link) = (&shown.target.name, shown.target.link);
        let name = format!("{} {server} {} {}", cell.keys, link.transport, link.wait);
        let requests = &requests;
        Case::new(0, name, move |turn| {
            let (sample, round) = contender.borrow_mut().turn(bench, turn, requests)?;
            rounds.borrow_mut().push(round);
            Ok(sample)
        })
    });
    let plan = bench.args.output.plan(&bench.args.timing);
    let outcomes = harness::measure_on(cases.collect(), &plan, bar)?;
    let rounds: Vec<Vec<Round>> = rounds.into_iter().map(RefCell::into_inner).collect();
    let rows = contenders.iter().zip(outcomes.iter().zip(&rounds));
    let rows = rows.map(|(contender, (outcome, of_rounds))| {
        let contender = contender.borrow();
        let link = contender.target.link;
        let find = |is_it: &dyn Fn(&Contender) -> bool| {
            let at = contenders.iter().position(|other| is_it(&other.borrow()));
            at.map(|at| (&outcomes[at], &rounds[at][..]))
        };
        // What the index changes is seen over one transport, what the transport changes with one
        // index.
        let memc3 = find(&|other| other.index == Some(MEMC3) && other.target.link == link);
        let memc3 = memc3.context("MemC3's index is measured over each transport")?;
        let tcp = find(&|other| {
            let of_other = other.target.link;
            other.target.name == contender.target.name
                && (of_other.transport, of_other.wait) == (Transport::Tcp, link.wait)
        });
        let tcp = tcp.filter(|_| link.transport != Transport::Tcp);
        let mut row = row(bench, cell, items, &contender, (outcome, of_rounds), memc3);
        row.vs_tcp = tcp.map(|(over_tcp, _)| outcome.ratio_to(over_tcp));
        Ok(row)
    });
    rows.collect()
}

impl Contender {
    fn turn(
        &mut self,
        bench: &Bench<'_>,
        turn: &Turn,
        requests: &Requests,
    ) -> Result<(Sample, Round)> {
        let before = self.phases()?;
        let mut totals = TurnTotals::new()?;
        let sample = bench.turn(turn, requests, &mut self.target, &mut totals)?;
        let after = self.phases()?;
        let found = totals.answered.requests * requests.keys() as u64;
        ensure!(
            self.index.is_none() || totals.answered.hits == found,
            "{} of {found} keys were found",
            totals.answered.hits
        );
        let micros = |quantile| totals.latencies.value_at_quantile(quantile) as f64 / 1000.0;
        let busy = totals
            .server_busy
            .map_or(f64::NAN, |busy| busy.as_secs_f64());
        let share = busy / totals.server_elapsed.as_secs_f64().max(1e-9);
        let round = Round {
            core_ns: 1e9 * share / sample.per_second,
            mean_us: totals.latencies.mean() / 1000.0,
            p50_us: micros(0.50),
            p99_us: micros(0.99),
            phases: after
                .zip(before)
                .map(|(after, before)| after.since(&before)),
            totals,
        };
        Ok((sample, round))
    }

    /// The phases so far.
    fn phases(&mut self) -> Result<Option<Phases>> {
        let Some(stats) = &mut self.stats else {
            return Ok(None);
        };
        stats.send(b"stats\r\n")?;
        let mut phases = Phases::default();
        loop {
            match stats.line()? {
                b"END" => return Ok(Some(phases)),
                line => phases.take_line(std::str::from_utf8(line)?)?,
            }
        }
    }
}

/// The median of a figure over the rounds.
fn typical(rounds: &[Round], figure: impl Fn(&Round) -> f64) -> f64 {
    median(rounds.iter().map(figure))
}

/// The median of the ratios of a figure over the rounds.
fn ratio(rounds: &[Round], others: &[Round], figure: impl Fn(&Round) -> f64) -> f64 {
    let pairs = rounds.iter().zip(others);
    median(pairs.map(|(one, other)| figure(one) / figure(other)))
}

/// Nanoseconds per key in these phases; NaN for a server that does not report them.
fn ns_per_key(round: &Round, phases: &[Phase]) -> f64 {
    let all = round.phases.as_ref();
    all.map_or(f64::NAN, |all| all.ns_per_key(phases))
}

fn row(
    bench: &Bench<'_>,
    cell: Cell,
    items: Items,
    contender: &Contender,
    (outcome, rounds): (&Outcome, &[Round]),
    (memc3_outcome, memc3_rounds): (&Outcome, &[Round]),
) -> IndexRow {
    let hits: u64 = rounds.iter().map(|one| one.totals.answered.hits).sum();
    let requests: u64 = rounds.iter().map(|one| one.totals.answered.requests).sum();
    let common = Row {
        bench: "server".into(),
        case: cell.form.to_string(),
        engine: match contender.index {
            Some(_) => ENGINE.to_owned(),
            None => contender.target.name.clone(),
        },
        strategy: match contender.index {
            Some(index) => index.to_string(),
            None => "classic".to_owned(),
        },
        keys: items.count,
        key_bytes: KEY_BYTES as u64,
        prefix_bytes: "key:".len() as u64,
        value_bytes: items.value_bytes as u64,
        batch: cell.keys as u64,
        threads: 1,
        hit_rate: Some(hits as f64 / (requests * cell.keys as u64).max(1) as f64),
        access: Some(cell.access.to_string()),
        isa: match contender.index {
            Some(index) => index.isa.to_string(),
            None => forerun_core::arch::isa().to_string(),
        },
        rounds: rounds.len() as u64,
        ..Row::default()
    };
    let phase = |phase: Phase| typical(rounds, |round| ns_per_key(round, &[phase]));
    let speed = |phases: &[Phase]| ratio(memc3_rounds, rounds, |round| ns_per_key(round, phases));
    let table = [Phase::Hash, Phase::Probe];
    let server = [Phase::Parse, Phase::Hash, Phase::Probe, Phase::Copy];
    let index_bytes = rounds
        .last()
        .and_then(|round| Some(round.phases.as_ref()?.index_bytes));
    let phases = contender.index.map(|_| PhaseTimes {
        receive_ns: phase(Phase::Receive),
        parse_ns: phase(Phase::Parse),
        hash_ns: phase(Phase::Hash),
        probe_ns: phase(Phase::Probe),
        copy_ns: phase(Phase::Copy),
        send_ns: phase(Phase::Send),
        table_vs_memc3: speed(&table),
        server_vs_memc3: speed(&server),
    });
    let client_share = |round: &Round| {
        let answered = &round.totals.answered;
        answered.busy.as_secs_f64() / answered.elapsed.as_secs_f64().max(1e-9)
    };
    let server_share = |round: &Round| {
        let busy = round.totals.server_busy.unwrap_or_default();
        busy.as_secs_f64() / round.totals.server_elapsed.as_secs_f64().max(1e-9)
    };
    let is_busy_known = rounds
        .iter()
        .all(|round| round.totals.server_busy.is_some());
    let core_vs_memc3 = ratio(memc3_rounds, rounds, |round| round.core_ns);
    IndexRow {
        common: common.with_rates(
            outcome.per_second(),
            outcome.per_second_min(),
            outcome.per_second_max(),
        ),
        study: "index".to_owned(),
        transport: contender.target.link.transport.to_string(),
        client_wait: contender.target.link.wait.to_string(),
        vs_tcp: None,
        connections: (bench.plan.clients * bench.plan.connections) as u64,
        depth: bench.args.depth.into(),
        pinned_apart: bench.split.is_apart(),
        mean_us: typical(rounds, |round| round.mean_us),
        p50_us: typical(rounds, |round| round.p50_us),
        p99_us: typical(rounds, |round| round.p99_us),
        phases,
        index_bytes_per_item: index_bytes.map(|bytes| bytes as f64 / items.count as f64),
        rate_vs_memc3: Some(outcome.ratio_to(memc3_outcome)),
        p50_vs_memc3: Some(ratio(rounds, memc3_rounds, |round| round.p50_us)),
        mean_vs_memc3: Some(ratio(rounds, memc3_rounds, |round| round.mean_us)),
        client_share: typical(rounds, client_share),
        server_share: is_busy_known.then(|| typical(rounds, server_share)),
        core_ns_per_key: is_busy_known.then(|| typical(rounds, |round| round.core_ns)),
        core_vs_memc3: is_busy_known.then_some(core_vs_memc3),
    }
}

/// The name of a row's index, or of its server.
fn label(row: &IndexRow) -> String {
    match row.common.engine.as_str() {
        ENGINE => row.common.strategy.clone(),
        other => other.to_owned(),
    }
}

/// Whether a row is of MemC3's index.
fn is_memc3(row: &IndexRow) -> bool {
    row.common.engine == ENGINE && row.common.strategy == MEMC3.to_string()
}
