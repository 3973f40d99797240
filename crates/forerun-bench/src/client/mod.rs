//! `forerun-bench client`: batches of the client over one server and over several.
//!
//! ```text
//!  args.rs        the command line
//!  result_row.rs  a result
//!  show.rs        the table, the page
//!
//!  the servers started and loaded               ../server: a server's process, items
//!    for each protocol x keys per batch         (harness)
//!      round after round                        each number of servers, overlapped and in turn: a turn each
//! ```

mod args;
mod result_row;
mod show;

pub use args::{Args, Spoken};
pub use result_row::ClientRow;

use crate::output::{on_stdout, write_facts};
use crate::server::data::{Items, KEY_BYTES};
use crate::server::program::{Program, Share};
use crate::server::server_process::{Process, Split, pin};
use crate::skew::Skew;
use anyhow::{Context, Result, ensure};
use args::Plan;
use forerun_client::{Client, ClientOptions, Lookups, NewValue, Placement, Ring, ServerAddress};
use forerun_measure::harness::{self, Case, Outcome, Sample, Turn, median};
use forerun_measure::machine;
use forerun_measure::progress::{Bar, Progress};
use forerun_measure::report::Report;
use forerun_measure::result_row::Row;
use std::cell::RefCell;
use std::io::Write;
use std::time::Duration;

/// Batches that are composed for a case.
const BATCHES: usize = 512;

/// Batches between two readings of the clock.
const BATCHES_PER_STEP: usize = 8;

/// How long a call may take. A bench has no server that fails.
const TIMEOUT: Duration = Duration::from_secs(20);

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
    let program = match &args.memcached {
        None => Program::forerun()?,
        Some(name) => {
            Program::memcached(name).with_context(|| format!("there is no {}", name.display()))?
        }
    };
    let facts = machine::facts();
    if !args.output.json {
        write_facts(out, &facts)?;
    }
    let bench = Bench::start(args, &plan, &program)?;
    let cells = plan.protocols.len() * plan.keys.len();
    let turns = cells * plan.servers.len() * Asked::BOTH.len();
    let rounds = args.output.plan(&args.timing).rounds;
    let bar = progress.steps("measuring", (turns * rounds) as u64);
    let mut rows: Vec<ClientRow> = Vec::new();
    for &spoken in &plan.protocols {
        for &keys in &plan.keys {
            rows.extend(bench.cell(spoken, keys, &bar)?);
        }
    }
    if !args.output.json_rows(&rows, out)? {
        let (constant, table) = show::table(&rows);
        writeln!(out)?;
        write_facts(out, &constant)?;
        writeln!(out, "\n{}\n{}", table.to_text(), show::legend(&rows))?;
    }
    let mut report = Report::new("The client of several servers", show::INTRO);
    report.facts = facts;
    show::fill(&mut report, &rows);
    args.output.write_report(&report)
}

/// How a batch queries its servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Overlapped,
    InTurn,
}

impl Asked {
    const BOTH: [Asked; 2] = [Asked::Overlapped, Asked::InTurn];

    fn name(self) -> &'static str {
        match self {
            Asked::Overlapped => "overlapped",
            Asked::InTurn => "in turn",
        }
    }
}

struct Bench<'a> {
    args: &'a Args,
    plan: &'a Plan,
    engine: String,
    items: Items,
    split: Split,
    /// All servers, each with all items.
    processes: Vec<Process>,
}

/// The keys of a batch, and the numbers of their items.
struct Batch {
    numbers: Vec<u64>,
    keys: Vec<Vec<u8>>,
}

/// Some servers, and how they are queried.
enum Clients {
    Overlapped(Box<Client>),
    /// A client for each server, and the same distribution of keys.
    InTurn(Ring, Vec<Client>),
}

impl Bench<'_> {
    fn start<'a>(args: &'a Args, plan: &'a Plan, program: &Program) -> Result<Bench<'a>> {
        let split = Split::of(1);
        let items = Items {
            count: plan.items,
            value_bytes: args.value_bytes,
        };
        let bytes = items.count * (args.value_bytes + KEY_BYTES + 100) as u64;
        let share = Share {
            threads: 1,
            memory_mib: ((bytes * 2) >> 20) + 64,
            connections: 64,
            cores: split.server.clone(),
        };
        let servers = plan.servers.iter().copied().max().unwrap_or(1);
        let processes: Result<Vec<Process>> = (0..servers)
            .map(|_| Process::start(program, &share))
            .collect();
        let bench = Bench {
            args,
            plan,
            engine: program.name.clone(),
            items,
            split,
            processes: processes?,
        };
        for process in &bench.processes {
            bench.load(process)?;
        }
        Ok(bench)
    }

    fn options(&self, spoken: Spoken) -> ClientOptions {
        ClientOptions::default()
            .timeout(TIMEOUT)
            .protocol(spoken.into())
    }

    fn load(&self, process: &Process) -> Result<()> {
        let client = Client::new([process.address().into()], self.options(Spoken::Classic))?;
        let (mut key, mut value) = (Vec::new(), Vec::new());
        for number in 0..self.items.count {
            key.clear();
            value.clear();
            self.items.push_key(number, &mut key);
            self.items.push_value(number, &mut value);
            client
                .set(&key, NewValue::new(&value))
                .context("while loading")?;
        }
        Ok(())
    }

    fn clients(&self, spoken: Spoken, servers: usize, asked: Asked) -> Result<Clients> {
        let addresses = self.processes[..servers].iter();
        let addresses: Vec<ServerAddress> =
            addresses.map(|process| process.address().into()).collect();
        let options = self.options(spoken);
        Ok(match asked {
            Asked::Overlapped => Clients::Overlapped(Box::new(Client::new(addresses, options)?)),
            Asked::InTurn => {
                let ring = Ring::new(Placement::default(), &addresses);
                let clients = addresses
                    .into_iter()
                    .map(|server| Client::new([server], options.clone()));
                Clients::InTurn(ring, clients.collect::<Result<_, _>>()?)
            }
        })
    }

    fn batches(&self, keys: usize) -> Vec<Batch> {
        let batch = |at: usize| {
            let numbers = self.items.draw(Skew::Uniform, keys, at as u64);
            let key = |number: &u64| {
                let mut key = Vec::new();
                self.items.push_key(*number, &mut key);
                key
            };
            let keys = numbers.iter().map(key).collect();
            Batch { numbers, keys }
        };
        (0..BATCHES).map(batch).collect()
    }

    /// Measures every number of servers, queried in both ways.
    fn cell(&self, spoken: Spoken, keys: usize, bar: &Bar) -> Result<Vec<ClientRow>> {
        let batches = &self.batches(keys);
        let mut servers = self.plan.servers.clone();
        servers.sort_unstable();
        let mut cases = Vec::new();
        let mut shapes = Vec::new();
        for servers in servers {
            for asked in Asked::BOTH {
                let clients = RefCell::new(self.clients(spoken, servers, asked)?);
                self.check(&clients.borrow(), batches)?;
                let name = format!("{spoken} {keys} {servers} {}", asked.name());
                cases.push(Case::new(0, name, move |turn: &Turn| {
                    self.turn(turn, &clients.borrow(), batches)
                }));
                shapes.push((servers, asked));
            }
        }
        let plan = self.args.output.plan(&self.args.timing);
        let outcomes = self.pinned(|| harness::measure_on(cases, &plan, bar))?;
        let row = |(outcome, (servers, asked)): (&Outcome, (usize, Asked))| {
            self.row(spoken, keys, servers, asked, outcome, &outcomes[0])
        };
        Ok(outcomes.iter().zip(shapes).map(row).collect())
    }

    /// Runs something on the client's core.
    fn pinned<T>(&self, measure: impl FnOnce() -> T) -> T {
        if let Some(core) = self.split.client.first() {
            pin(&[*core]);
        }
        let result = measure();
        let both: Vec<usize> = [&self.split.server[..], &self.split.client[..]].concat();
        pin(&both);
        result
    }

    /// Compares every value of every batch.
    fn check(&self, clients: &Clients, batches: &[Batch]) -> Result<()> {
        let mut expected = Vec::new();
        for batch in batches {
            let mut found = vec![Vec::new(); batch.keys.len()];
            clients.look_up(&batch.keys, &mut Lookups::new(), |at, value| {
                found[at] = value.to_vec()
            })?;
            for (number, value) in batch.numbers.iter().zip(&found) {
                expected.clear();
                self.items.push_value(*number, &mut expected);
                ensure!(*value == expected, "a wrong value of item {number}");
            }
        }
        Ok(())
    }

    fn turn(&self, turn: &Turn, clients: &Clients, batches: &[Batch]) -> Result<Sample> {
        let (mut values, mut next) = (Lookups::new(), 0);
        Sample::repeat(turn, || {
            let mut bytes = 0;
            let mut keys = 0;
            for _ in 0..BATCHES_PER_STEP {
                let batch = &batches[next % batches.len()];
                next += 1;
                clients.look_up(&batch.keys, &mut values, |_, value| bytes += value.len())?;
                keys += batch.keys.len();
            }
            ensure!(bytes == keys * self.items.value_bytes, "a value is missing");
            Ok(keys as u64)
        })
    }

    fn row(
        &self,
        spoken: Spoken,
        keys: usize,
        servers: usize,
        asked: Asked,
        outcome: &Outcome,
        base: &Outcome,
    ) -> ClientRow {
        let common = Row {
            bench: "client".into(),
            case: spoken.to_string(),
            engine: self.engine.clone(),
            strategy: asked.name().into(),
            keys: self.items.count,
            key_bytes: KEY_BYTES as u64,
            prefix_bytes: "key:".len() as u64,
            value_bytes: self.items.value_bytes as u64,
            batch: keys as u64,
            threads: 1,
            hit_rate: Some(1.0),
            access: Some(Skew::Uniform.to_string()),
            isa: forerun_core::arch::isa().to_string(),
            rounds: outcome.samples.len() as u64,
            ..Row::default()
        };
        let rate = outcome.per_second();
        let ratios = base.samples.iter().zip(&outcome.samples);
        ClientRow {
            common: common.with_rates(rate, outcome.per_second_min(), outcome.per_second_max()),
            servers: servers as u64,
            batch_us: 1e6 * keys as f64 / rate,
            of_fewest_servers: median(ratios.map(|(base, own)| base.per_second / own.per_second)),
            pinned_apart: self.split.is_apart(),
        }
    }
}

impl Clients {
    /// Looks up a batch and visits each value.
    fn look_up(
        &self,
        keys: &[Vec<u8>],
        values: &mut Lookups,
        mut visit: impl FnMut(usize, &[u8]),
    ) -> Result<()> {
        match self {
            Clients::Overlapped(client) => {
                let report = client.multi_get(keys, values)?;
                ensure!(report.hits == keys.len(), "{report:?}");
                for (at, value) in values.iter().enumerate() {
                    visit(at, value.map_or(&[][..], |value| value.data));
                }
            }
            Clients::InTurn(ring, clients) => {
                let mut by_server = vec![(Vec::new(), Vec::new()); clients.len()];
                ring.servers_of(keys, |at, server| {
                    by_server[server].0.push(at);
                    by_server[server].1.push(&keys[at]);
                });
                for (client, (places, keys)) in clients.iter().zip(&by_server) {
                    if keys.is_empty() {
                        continue;
                    }
                    let report = client.multi_get(keys, values)?;
                    ensure!(report.hits == keys.len(), "{report:?}");
                    for (at, value) in places.iter().zip(values.iter()) {
                        visit(*at, value.map_or(&[][..], |value| value.data));
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_checked() {
        let args = |servers: usize, keys: usize| Args {
            servers: vec![servers],
            keys: vec![keys],
            ..Args::default()
        };
        assert!(args(4, 100).plan().is_ok());
        assert!(
            args(0, 100)
                .plan()
                .is_err_and(|error| error.to_string().contains("--servers"))
        );
        assert!(
            args(1, 0)
                .plan()
                .is_err_and(|error| error.to_string().contains("--keys"))
        );
    }
}
