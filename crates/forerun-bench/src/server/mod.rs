//! `bench server`: the cache server over a socket, with memcached beside it.
//!
//! ```text
//!   args      what is measured: cells           peer      a server as a process of its own, pinned, filled
//!   requests  composed before the clock runs    client    one request under way on each connection
//!   row, show one result; tables and pages
//!
//!   round:  server A driven ── server B driven ── (next round) B ── A ...
//! ```

mod args;
mod client;
mod peer;
mod requests;
mod row;
mod show;

use crate::machine;
use crate::output::{on_stdout, write_facts};
use crate::progress::{Bar, Progress};
use crate::report::Report;
use anyhow::{Context, Result, bail};
pub use args::Args;
use args::Cell;
use client::{Client, Seen};
use peer::{Peer, Setting};
use requests::Requests;
pub use row::ServerRow;
use row::Turn;
use std::io::Write;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use crate::threads::Cores;

/// Where the requests' random numbers begin.
const SEED: u64 = 0x5eed;

/// Runs the bench and prints to the standard output.
///
/// # Errors
/// A server that does not start, does not answer, or answers wrongly; the stream's.
pub fn run(args: &Args) -> Result<()> {
    let progress = Progress::on_terminal();
    on_stdout(|out| bench(args, &progress, out))
}

fn bench(args: &Args, progress: &Progress, out: &mut dyn Write) -> Result<()> {
    args.output.check()?;
    let cells = args.cells();
    let cores: Vec<usize> = core_affinity::get_core_ids()
        .unwrap_or_default()
        .iter()
        .map(|core| core.id)
        .collect();
    let threads = usize::from(args.threads);
    let pinned = cores.len() >= 2 * threads;
    let setting = Setting {
        memory_bytes: args.memory_bytes(),
        threads,
        connections: cells.iter().map(|cell| cell.connections).max().unwrap_or(1) + 64,
        cores: if pinned {
            (0..threads).collect()
        } else {
            Vec::new()
        },
    };
    let mut facts = machine::facts();
    let peers = start(args, &setting)?;
    let versions = peers
        .iter()
        .map(Peer::version)
        .collect::<Result<Vec<_>>>()?;
    facts.push(("servers".into(), versions.join(", ")));
    if peers.len() == 1 && !args.alone {
        let name = args.memcached.display();
        facts.push((
            "memcached".into(),
            format!("not measured: there is no {name}"),
        ));
    }
    if !pinned {
        let text = format!(
            "not pinned: {} cores are too few for {threads} and {threads}",
            cores.len()
        );
        facts.push(("threads".into(), text));
    }
    if !args.output.json {
        write_facts(out, &facts)?;
        out.flush()?;
    }

    let plan = args.output.plan();
    let bar = progress.steps("measuring", (cells.len() * (plan.rounds + 1)) as u64);
    let mut rows = Vec::new();
    let mut filled = None;
    for cell in &cells {
        if filled != Some((cell.value_bytes, cell.items)) {
            fill(&peers, cell, progress)?;
            filled = Some((cell.value_bytes, cell.items));
        }
        let turns = measure(args, cell, &peers, pinned, &bar)?;
        let beside = peers.iter().position(|peer| peer.name == "memcached");
        for (number, peer) in peers.iter().enumerate() {
            let others = beside.filter(|at| *at != number);
            let others = others.map(|at| turns[at].as_slice());
            let mut row = ServerRow::of(cell, &turns[number], others);
            row.server = peer.name.into();
            row.version = versions[number].clone();
            row.memory_bytes = setting.memory_bytes as u64;
            row.threads = threads as u64;
            row.pinned = pinned;
            if args.output.json {
                writeln!(out, "{}", serde_json::to_string(&row)?)?;
                out.flush()?;
            }
            rows.push(row);
        }
    }
    drop(bar);
    if !args.output.json {
        let (constant, table) = show::table(&rows);
        write_facts(out, &constant)?;
        writeln!(out, "\n{}\n{}", table.to_text(), show::legend(&rows))?;
    }
    let mut report = Report::new("A cache server beside memcached", show::LEAD);
    report.facts = facts;
    show::fill(&mut report, &rows);
    args.output.write_report(&report)
}

fn start(args: &Args, setting: &Setting) -> Result<Vec<Peer>> {
    let binary = match &args.server {
        Some(binary) => binary.clone(),
        None => std::env::current_exe().context("cannot find this program")?,
    };
    let mut peers = vec![Peer::forerun(&binary, setting)?];
    if !args.alone {
        peers.extend(Peer::memcached(&args.memcached, setting)?);
    }
    Ok(peers)
}

fn fill(peers: &[Peer], cell: &Cell, progress: &Progress) -> Result<()> {
    for peer in peers {
        let bar = progress.steps(&format!("fill {}", peer.name), cell.items as u64);
        peer.fill(cell.items, cell.value_bytes, |items| bar.skip(items))
            .with_context(|| format!("while {} was filled", peer.name))?;
    }
    Ok(())
}

/// Drives the servers in alternation; gives each one's turns.
fn measure(
    args: &Args,
    cell: &Cell,
    peers: &[Peer],
    pinned: bool,
    bar: &Bar,
) -> Result<Vec<Vec<Turn>>> {
    let requests = Requests::compose(cell, SEED)?;
    let mut turns: Vec<Vec<Turn>> = vec![Vec::new(); peers.len()];
    bar.tell(&format!(
        "{} {} x{}",
        cell.operation, cell.protocol, cell.keys
    ));
    // The first round warms up and is not counted.
    for round in 0..=args.output.plan().rounds {
        for step in 0..peers.len() {
            // Who is first in one round is last in the next.
            let number = match round % 2 {
                0 => step,
                _ => peers.len() - 1 - step,
            };
            let time = args.turn() / if round == 0 { 4 } else { 1 };
            let turn = drive(args, cell, &peers[number], &requests, pinned, time, round)
                .with_context(|| format!("while {} was measured", peers[number].name))?;
            if round > 0 {
                turns[number].push(turn);
            }
        }
        bar.step();
    }
    Ok(turns)
}

/// One server's turn: all client threads at once.
fn drive(
    args: &Args,
    cell: &Cell,
    peer: &Peer,
    requests: &Requests,
    pinned: bool,
    time: Duration,
    round: usize,
) -> Result<Turn> {
    let threads = usize::from(args.threads).min(cell.connections);
    let cores = Cores::available();
    let ready = Barrier::new(threads + 1);
    let (seen, server_s) = thread::scope(|scope| {
        let clients: Vec<_> = (0..threads)
            .map(|thread| {
                let (cores, ready) = (&cores, &ready);
                scope.spawn(move || {
                    if pinned {
                        cores.pin(usize::from(args.threads) + thread);
                    }
                    // The first threads take the connections that do not divide.
                    let extra = usize::from(thread < cell.connections % threads);
                    let connections = cell.connections / threads + extra;
                    let first = (round * 31 + thread * 7) * requests.len() / 97;
                    let client = Client::connect(peer.address, connections, requests, first);
                    ready.wait();
                    client?.drive(time)
                })
            })
            .collect();
        ready.wait();
        let before_s = peer.cpu_s();
        let seen: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        (seen, peer.cpu_s() - before_s)
    });
    let mut all: Option<Seen> = None;
    for one in seen {
        let Ok(one) = one else {
            bail!("a client thread panicked");
        };
        let one = one?;
        match &mut all {
            None => all = Some(one),
            Some(all) => {
                all.requests += one.requests;
                all.compared += one.compared;
                all.cpu_share += one.cpu_share;
                all.elapsed = all.elapsed.max(one.elapsed);
                all.latency_ns.add(one.latency_ns)?;
            }
        }
    }
    let seen = all.context("there is no client thread")?;
    let us_at = |share: f64| seen.latency_ns.value_at_quantile(share) as f64 / 1e3;
    let elapsed_s = seen.elapsed.as_secs_f64();
    Ok(Turn {
        keys_per_second: (seen.requests * requests.keys() as u64) as f64 / elapsed_s,
        p50_us: us_at(0.5),
        p99_us: us_at(0.99),
        p999_us: us_at(0.999),
        client_share: seen.cpu_share / threads as f64,
        server_share: server_s / elapsed_s / usize::from(args.threads) as f64,
        compared: seen.compared,
    })
}
