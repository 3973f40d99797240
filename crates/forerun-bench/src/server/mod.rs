//! `forerun-bench server`: the cache server over the network, compared with memcached, Redis and
//! Valkey.
//!
//! ```text
//!  args.rs            the command line
//!  data.rs            items: keys, values, their choice
//!  program.rs         the programs of servers and their options
//!  server_process.rs  a server's process, its cores
//!  form.rs            the forms of requests
//!  request.rs         requests, composed in advance, and their replies
//!  client.rs          the load
//!  link.rs            its connections over TCP or UCX
//!  ucx_link.rs        those over UCX (ucx_link_none.rs: in a build without UCX)
//!  reply.rs           replies that are not the expected ones
//!  multi_get_form.rs  multi-get frames and their replies
//!  resp_form.rs       requests and replies in RESP
//!  compare_rows.rs    ratios of a result to others
//!  result_row.rs      a result
//!  show.rs            tables, the page
//!  blocking_connection.rs   commands that are not part of the load
//!  tail/              a study: sets into a full cache under disturbances
//!  index_study/       a study: the server's index exchanged
//!  memory_study.rs    a study: the memory of an item
//!
//!  for each value size                        the servers started and loaded
//!    for each access x keys per request       (harness)
//!      round after round                      each form of reading on this server and its peers: a turn each
//!                                             while the others are idle; then the sets in the same way
//! ```

mod args;
mod blocking_connection;
pub mod client;
#[cfg(test)]
mod client_tests;
mod compare_rows;
pub mod data;
pub mod form;
mod index_study;
pub mod link;
mod memory_study;
pub mod multi_get_form;
pub mod program;
pub mod reply;
pub mod request;
pub mod resp_form;
mod result_row;
pub mod server_process;
mod show;
mod tail;
#[cfg(feature = "ucx")]
pub mod ucx_link;
#[cfg(not(feature = "ucx"))]
#[path = "ucx_link_none.rs"]
mod ucx_link;

pub use args::{Args, Study};
pub use index_study::{IndexName, IndexRow, PhaseTimes, ServeArgs, serve};
pub use result_row::ServerRow;

use crate::output::{on_stdout, or, write_facts};
use crate::skew::Skew;
use anyhow::{Context, Result, anyhow, ensure};
use args::Plan;
use client::{Answered, Client, Until};
use compare_rows::compared;
use data::{Items, KEY_BYTES};
use forerun_measure::harness::{self, Case, Outcome, Sample, Turn};
use forerun_measure::machine;
use forerun_measure::progress::{Bar, Progress};
use forerun_measure::report::Report;
use forerun_measure::result_row::Row;
use form::{Form, Protocol};
use hdrhistogram::Histogram;
use link::{LinkKind, Transport};
use program::{OptionStyle, Program, Share};
use request::Requests;
use server_process::{Process, Split};
use std::cell::RefCell;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The maximum number of keys drawn for a case, and of bytes of its requests.
const DRAWN_MAX: usize = 2 << 20;
const REQUEST_BYTES_MAX: usize = 64 << 20;

/// The name of the server that the others are compared with in memcached's protocol.
const PEER: &str = "memcached";

/// Measures and prints to the standard output.
///
/// # Errors
/// Invalid lists, a server that cannot be started or answers wrongly, or an output that cannot be
/// written.
pub fn run(args: &Args) -> Result<()> {
    on_stdout(|out| run_to(args, &Progress::on_terminal(), out))
}

/// [`run`], printing to `out`.
///
/// # Errors
/// The same as for [`run`].
pub fn run_to(args: &Args, progress: &Progress, out: &mut dyn Write) -> Result<()> {
    args.output.check()?;
    let plan = args.plan()?;
    let mut facts = machine::facts();
    let bench = Bench {
        args,
        plan: &plan,
        split: Split::of(usize::from(args.threads)),
    };
    let programs = bench.programs(&mut facts)?;
    facts.push(("cores".to_owned(), bench.cores()));
    match args.study {
        Some(Study::Tail) => {
            let own_first = args.server.is_none();
            return tail::run(args, &plan, programs, own_first, facts, progress, out);
        }
        Some(Study::Index) => return index_study::run(&bench, &programs, facts, progress, out),
        Some(Study::Memory) => return memory_study::run(&bench, &programs, &facts, progress, out),
        None => {}
    }
    if !args.output.json {
        write_facts(out, &facts)?;
    }
    let cells = plan.loads.len() * plan.access.len() * plan.keys.len();
    let cases = programs.iter().map(|program| {
        let links = bench.links(program);
        let forms = |link: &LinkKind| {
            let has = |form: &&Form| has_form(&program.name, *link, **form);
            plan.forms.iter().filter(has).count()
        };
        links.iter().map(forms).sum::<usize>()
    });
    let turns = cells * cases.sum::<usize>() * args.output.plan(&args.timing).rounds;
    let bar = progress.steps("measuring", turns as u64);
    let mut all: Vec<ServerRow> = Vec::new();
    for &items in &plan.loads {
        let rows = bench
            .measure(&programs, items, &bar)
            .with_context(|| format!("items of {} bytes", items.value_bytes))?;
        if !args.output.json_rows(&rows, out)? {
            let (constant, table) = show::table(&rows);
            writeln!(out)?;
            write_facts(out, &constant)?;
            writeln!(out, "\n{}", table.to_text())?;
            out.flush()?;
        }
        all.extend(rows);
    }
    if !args.output.json {
        writeln!(out, "{}", show::legend(&all))?;
    }
    let mut report = Report::new("The cache server", show::INTRO);
    report.facts = facts;
    show::fill(&mut report, &all);
    args.output.write_report(&report)
}

struct Bench<'a> {
    args: &'a Args,
    plan: &'a Plan,
    split: Split,
}

/// A loaded server, and the connections to it over one kind of link.
struct Target {
    name: String,
    process: Rc<RefCell<Process>>,
    link: LinkKind,
    clients: Vec<Client>,
}

/// A case: the dimensions other than the items'.
#[derive(Clone, Copy)]
struct Cell {
    access: Skew,
    form: Form,
    keys: usize,
}

/// The results of a case's turns besides their rates.
struct TurnTotals {
    latencies: Histogram<u64>,
    answered: Answered,
    server_busy: Option<Duration>,
    server_elapsed: Duration,
}

impl TurnTotals {
    fn new() -> Result<TurnTotals> {
        Ok(TurnTotals {
            latencies: client::latencies()?,
            answered: Answered::default(),
            server_busy: Some(Duration::ZERO),
            server_elapsed: Duration::ZERO,
        })
    }
}

impl Bench<'_> {
    /// The servers to measure: this one first. Those that are not there are named in `facts`.
    fn programs(&self, facts: &mut Vec<(String, String)>) -> Result<Vec<Program>> {
        let args = self.args;
        let mut programs = vec![match &args.server {
            None => Program::forerun()?,
            Some(path) => Program {
                name: path
                    .file_name()
                    .map_or_else(|| "server".into(), |name| name.to_string_lossy().into()),
                path: path.clone(),
                args: Vec::new(),
                options: OptionStyle::Memcached,
            },
        }];
        if args.alone {
            return Ok(programs);
        }
        let absent = |path: &Path| format!("not measured: there is no {}", path.display());
        if self.plan.protocols.contains(&Protocol::Memcached) {
            match Program::memcached(&args.memcached) {
                Some(program) => {
                    let version = program.version();
                    facts.extend(version.map(|version| (PEER.to_owned(), version)));
                    programs.push(program);
                }
                None => facts.push((PEER.to_owned(), absent(&args.memcached))),
            }
        }
        if self.plan.protocols.contains(&Protocol::Resp) {
            let default = ["redis", "valkey"].map(PathBuf::from);
            for name in or(&args.peer, &default) {
                match Program::redis(&name)? {
                    Some(program) => programs.push(program),
                    None => facts.push(("peer".to_owned(), absent(&name))),
                }
            }
        }
        Ok(programs)
    }

    fn cores(&self) -> String {
        if self.split.is_apart() {
            format!(
                "servers on {:?}, clients on {:?}",
                self.split.server, self.split.client
            )
        } else {
            "too few: servers and clients share them".to_owned()
        }
    }

    fn measure(&self, programs: &[Program], items: Items, bar: &Bar) -> Result<Vec<ServerRow>> {
        let mut targets = Vec::new();
        for program in programs {
            let links = self.links(program);
            if links.is_empty() {
                continue;
            }
            let started = self.connect(program, &links);
            let loaded = started.and_then(|mut targets| {
                load(&mut targets[0], items).context("while loading")?;
                Ok(targets)
            });
            let loaded = loaded.with_context(|| program.name.clone())?;
            targets.extend(loaded.into_iter().map(RefCell::new));
        }
        let mut rows: Vec<ServerRow> = Vec::new();
        for &access in &self.plan.access {
            // The forms of reading alternate, so that they can be compared with each other. Sets
            // change the servers' memory, so they come afterwards.
            let (reads, writes): (Vec<Form>, Vec<Form>) =
                self.plan.forms.iter().partition(|form| !form.is_set());
            for forms in [reads, writes] {
                if forms.is_empty() {
                    continue;
                }
                let mut by_keys = Vec::new();
                for &keys in &self.plan.keys {
                    by_keys.push(self.cells(access, &forms, keys, items, &targets, bar)?);
                }
                let peer = programs
                    .iter()
                    .find(|program| program.options == OptionStyle::Redis);
                let peer = peer.map(|program| &program.name[..]);
                rows.extend(compared(&by_keys, &forms, peer));
            }
        }
        Ok(rows)
    }

    /// Starts a server and opens the connections of each kind of link.
    fn connect(&self, program: &Program, links: &[LinkKind]) -> Result<Vec<Target>> {
        // memcached's limit is on its descriptors, and it inherits some: libucp opens those of this
        // process without close-on-exec.
        let inherited = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        let share = Share {
            threads: usize::from(self.args.threads),
            memory_mib: self.plan.memory_mib,
            connections: links.len() * self.plan.clients * self.plan.connections + inherited + 16,
            cores: self.split.server.clone(),
        };
        let process = Process::start_for(program, &share, links)?;
        let process = Rc::new(RefCell::new(process));
        let depth = usize::from(self.args.depth);
        let mut targets = Vec::new();
        for &link in links {
            let place = process.borrow().place(link)?;
            let connections = self.plan.connections;
            let connect = || Client::connect_to(&place, link.wait, connections, depth);
            let clients = (0..self.plan.clients).map(|_| connect());
            targets.push(Target {
                name: program.name.clone(),
                process: process.clone(),
                link,
                clients: clients.collect::<Result<_>>()?,
            });
        }
        Ok(targets)
    }

    /// The kinds of links to a server.
    fn links(&self, program: &Program) -> Vec<LinkKind> {
        let links = self.plan.links.iter().copied();
        let is_own = program.name != PEER && program.options == OptionStyle::Memcached;
        let can = |link: &LinkKind| {
            program.speaks(link.protocol) && (is_own || link.transport == Transport::Tcp)
        };
        links.filter(can).collect()
    }

    /// Measures these forms on every server that has them, alternately.
    fn cells(
        &self,
        access: Skew,
        forms: &[Form],
        keys: usize,
        items: Items,
        targets: &[RefCell<Target>],
        bar: &Bar,
    ) -> Result<Vec<(ServerRow, Outcome)>> {
        let mut cases = Vec::new();
        for &form in forms {
            let cell = Cell { access, form, keys };
            let requests = Rc::new(self.compose(cell, items));
            for target in targets {
                if has_form(&target.borrow().name, target.borrow().link, form) {
                    let totals = RefCell::new(TurnTotals::new()?);
                    cases.push((cell, requests.clone(), target, totals));
                }
            }
        }
        let turns = cases.iter().map(|(cell, requests, target, totals)| {
            let (link, server) = (target.borrow().link, target.borrow().name.clone());
            let name = format!(
                "{} {} {server} {} {}",
                cell.form, cell.keys, link.transport, link.wait
            );
            Case::new(0, name, move |turn| {
                self.turn(
                    turn,
                    requests,
                    &mut target.borrow_mut(),
                    &mut totals.borrow_mut(),
                )
            })
        });
        let plan = self.args.output.plan(&self.args.timing);
        let outcomes = harness::measure_on(turns.collect(), &plan, bar)?;
        let rows = outcomes.into_iter().zip(&cases);
        let rows = rows.map(|(outcome, (cell, _, target, totals))| {
            let row = self.row(*cell, items, &target.borrow(), &outcome, &totals.borrow());
            (row, outcome)
        });
        Ok(rows.collect())
    }

    fn compose(&self, cell: Cell, items: Items) -> Requests {
        let mut one = Vec::new();
        cell.form.push_request(&items, &[0], &mut one);
        let drawn = DRAWN_MAX.min(REQUEST_BYTES_MAX / one.len()).max(cell.keys);
        let drawn = if self.args.output.quick {
            drawn.min(10_000)
        } else {
            drawn
        };
        let seed = (cell.form as u64) << 32 ^ cell.keys as u64;
        let numbers = items.draw(cell.access, drawn, seed);
        Requests::compose(cell.form, items, cell.keys, numbers)
    }

    fn turn(
        &self,
        turn: &Turn,
        requests: &Requests,
        target: &mut Target,
        totals: &mut TurnTotals,
    ) -> Result<Sample> {
        let until = Until::Time {
            warm_up: turn.warm_up,
            timed: turn.duration,
        };
        let process = target.process.clone();
        let (busy, start) = (process.borrow().busy(), Instant::now());
        let driven = self.drive(&mut target.clients, requests, until);
        // If a server ended, its exit says more than the connection that it closed.
        process.borrow_mut().check()?;
        let driven = driven?;
        totals.server_elapsed += start.elapsed();
        totals.server_busy = (|| {
            totals
                .server_busy?
                .checked_add(process.borrow().busy()? - busy?)
        })();
        let mut per_second = 0.0;
        for (answered, latencies) in driven {
            per_second += answered.hits as f64 / answered.elapsed.as_secs_f64().max(1e-9);
            totals.latencies.add(latencies)?;
            totals.answered.requests += answered.requests;
            totals.answered.hits += answered.hits;
            totals.answered.elapsed += answered.elapsed;
            totals.answered.busy += answered.busy;
        }
        ensure!(per_second > 0.0, "the server no longer had any of the keys");
        Ok(Sample {
            per_second,
            beside_per_second: None,
        })
    }

    /// Drives all clients at once, each on its core.
    fn drive(
        &self,
        clients: &mut [Client],
        requests: &Requests,
        until: Until,
    ) -> Result<Vec<(Answered, Histogram<u64>)>> {
        std::thread::scope(|scope| {
            let threads: Vec<_> = clients
                .iter_mut()
                .enumerate()
                .map(|(at, client)| {
                    let cores = &self.split.client;
                    scope.spawn(move || {
                        if let Some(core) = cores.get(at % cores.len().max(1)) {
                            server_process::pin(&[*core]);
                        }
                        let mut latencies = client::latencies()?;
                        let answered = client.drive(requests, until, &mut latencies)?;
                        Ok((answered, latencies))
                    })
                })
                .collect();
            // All threads are joined before any result is examined, so that none outlives the first
            // error.
            let results: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
            results
                .into_iter()
                .map(|result| result.map_err(|_| anyhow!("a client panicked"))?)
                .collect()
        })
    }

    fn row(
        &self,
        cell: Cell,
        items: Items,
        target: &Target,
        outcome: &Outcome,
        totals: &TurnTotals,
    ) -> ServerRow {
        let answered = &totals.answered;
        let share = |busy: Duration, of: Duration| busy.as_secs_f64() / of.as_secs_f64().max(1e-9);
        let threads = u32::from(self.args.threads);
        let asked = answered.requests * cell.keys as u64;
        let common = Row {
            bench: "server".into(),
            case: cell.form.to_string(),
            engine: target.name.clone(),
            strategy: match cell.form {
                Form::Mg => "meta".into(),
                Form::MultiGet => "multi_get".into(),
                Form::Get | Form::Set => "classic".into(),
                Form::RespGet | Form::RespMget | Form::RespSet => "resp".into(),
            },
            keys: items.count,
            key_bytes: KEY_BYTES as u64,
            prefix_bytes: "key:".len() as u64,
            value_bytes: items.value_bytes as u64,
            batch: cell.keys as u64,
            threads: threads.into(),
            hit_rate: Some(answered.hits as f64 / asked.max(1) as f64),
            access: Some(cell.access.to_string()),
            isa: forerun_core::arch::isa().to_string(),
            rounds: outcome.samples.len() as u64,
            ..Row::default()
        };
        let micros = |quantile| totals.latencies.value_at_quantile(quantile) as f64 / 1000.0;
        let server_share = totals
            .server_busy
            .map(|busy| share(busy, totals.server_elapsed * threads));
        let client_s = answered.elapsed.as_secs_f64() / self.plan.clients as f64;
        let core_ns = |share: f64| 1e9 * share * f64::from(threads) * client_s;
        ServerRow {
            common: common.with_rates(
                outcome.per_second(),
                outcome.per_second_min(),
                outcome.per_second_max(),
            ),
            memory_mib: self.plan.memory_mib,
            clients: self.plan.clients as u64,
            connections: (self.plan.clients * self.plan.connections) as u64,
            depth: self.args.depth.into(),
            transport: target.link.transport.to_string(),
            client_wait: target.link.wait.to_string(),
            pinned_apart: self.split.is_apart(),
            p50_us: micros(0.50),
            p99_us: micros(0.99),
            p999_us: micros(0.999),
            p99_vs_peer: None,
            vs_get: None,
            vs_tcp: None,
            client_share: share(answered.busy, answered.elapsed),
            server_share,
            core_ns_per_key: server_share.map(|share| core_ns(share) / answered.hits as f64),
            core_vs_peer: None,
        }
    }
}

/// Stores every item, once.
fn load(target: &mut Target, items: Items) -> Result<()> {
    const BATCH: u64 = 32;
    const STEP_BYTES: usize = 16 << 20;
    let step = (STEP_BYTES / (items.value_bytes + 64)) as u64 / BATCH * BATCH;
    let step = step.max(BATCH);
    let form = Form::set_of(target.link.protocol);
    let client = &mut target.clients[0];
    let mut first = 0;
    while first < items.count {
        let numbers: Vec<u64> = (first..items.count.min(first + step)).collect();
        first += step;
        let whole = numbers.len() / BATCH as usize * BATCH as usize;
        for (numbers, batch) in [(&numbers[..whole], BATCH as usize), (&numbers[whole..], 1)] {
            if !numbers.is_empty() {
                let requests = Requests::compose(form, items, batch, numbers.to_vec());
                client.drive(&requests, Until::Once, &mut client::latencies()?)?;
            }
        }
    }
    Ok(())
}

/// Whether a server answers requests of this form over this kind of link.
fn has_form(server: &str, link: LinkKind, form: Form) -> bool {
    link.protocol == form.protocol() && (form != Form::MultiGet || server != PEER)
}
