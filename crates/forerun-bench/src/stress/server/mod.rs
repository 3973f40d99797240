//! `stress --server`: a server under mixed load for minutes, with clients that check every value,
//! stall, leave and are killed, and an operator who changes the server at the same time.
//!
//! ```text
//!  mod.rs                the server, its memory, the summary
//!  client.rs             what a client does, at random
//!  resp_client.rs        what it does over RESP, on the same keys
//!  counters.rs           what clients have done
//!  wire.rs               a connection, plain, with TLS, or over UCX
//!  ucx_stream.rs         a connection over UCX
//!  limits.rs             what the server's memory, buffers and uploads may take
//!  operator.rs           copies of the cache, new certificates, other memory limits
//!  certificates.rs       the files of certificates
//!  expected_versions.rs  what a read may find
//!  value.rs              values that contain their key and version
//! ```

mod certificates;
mod client;
mod counters;
mod expected_versions;
mod limits;
mod operator;
mod resp_client;
#[cfg(feature = "ucx")]
mod ucx_stream;
#[cfg(not(feature = "ucx"))]
#[path = "ucx_stream_none.rs"]
mod ucx_stream;
mod value;
mod wire;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context;
use forerun_bench::server::link::{LinkKind, Place, Transport};
use forerun_bench::server::program::{Program, Share};
use forerun_bench::server::server_process::{Process, Split, free_port, pin};

use certificates::Certificates;
use client::{Client, ValueLimits};
use counters::Counters;
use expected_versions::ExpectedVersions;
use forerun_cli::exit::CheckFailed;
use forerun_cli::output::{self, Out};
use forerun_measure::progress::Progress;
use limits::Limits;
use operator::{Actions, Operator};
use rustls::ClientConfig;
use ucx_stream::UcxHubs;
use wire::{TIMEOUT, Target};

/// What UCX takes in a server besides: its libraries, its workers, and its part of a connection.
const UCX_BYTES: u64 = 16 << 20;
const UCX_BYTES_PER_CONNECTION: u64 = 8 << 10;
/// The most that the server maps of a client's shared memory, measured: the 64 places of the
/// client's segment. UCX maps them for each connection, and the system counts them each time.
const UCX_SHARED_BYTES_PER_CONNECTION: u64 = 134 * 4096;
/// The shared memory of a UCX worker: 128 buffers of 8.3 KiB.
const UCX_WORKER_BYTES: u64 = 9 << 17;
/// Connections that the clients have closed and the server has not yet.
const UCX_CLOSED_CONNECTIONS: u64 = 64;

/// Faults after which the run stops, and how many are described.
const FAULTS_MAX: usize = 100;
const FAULTS_SHOWN: usize = 10;

/// How long the server may take to close the sockets of clients that are gone.
const CLOSE_TIME: Duration = Duration::from_secs(10);
/// Files that a server opens for its first clients and keeps: those of its UCX workers.
const DESCRIPTORS_KEPT: usize = 48;

/// One client in this many uses TLS.
const TLS_CLIENTS: u32 = 10;

/// Bytes of a value on average, with the server's overhead.
const VALUE_BYTES: u64 = 4000;
/// Bounds of the longest values. In between, they are a sixteenth of the memory limit.
const LONG_VALUE_BYTES: std::ops::RangeInclusive<usize> = 600_000..=4 << 20;

/// The parameters of the run. The clients' values take twice as much as the server's memory.
pub struct Plan {
    pub seconds: u64,
    pub seed: u64,
    pub connections: u32,
    pub memory_mib: u64,
    /// Whether the server evicts, or refuses new items when its memory is full.
    pub evicts: bool,
    /// What carries the connections without TLS.
    pub transport: Transport,
    /// How often the operator does something.
    pub operator_interval: Duration,
}

/// Runs it.
pub fn run(plan: &Plan) -> anyhow::Result<()> {
    let split = Split::of(1);
    let share = Share {
        threads: 1,
        memory_mib: plan.memory_mib,
        // Killed connections may linger while new ones arrive. Each client has another one in RESP,
        // and some have a third.
        connections: 4 * plan.connections as usize + 64,
        cores: split.server.clone(),
    };
    let dir = tempfile::tempdir().context("cannot make a temporary directory")?;
    let certificates = Certificates::new(dir.path())?;
    let plain = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
    let resp = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
    let snapshot = dir.path().join("cache.snapshot");
    let mut program = Program::forerun()?;
    for (option, value) in [
        ("--listen", format!("notls:{plain}").into()),
        ("--resp", format!("notls:{resp}").into()),
        ("--ssl-chain-cert", certificates.certificate().into()),
        ("--ssl-key", certificates.key().into()),
        ("--snapshot", snapshot.clone().into_os_string()),
    ] {
        program.args.extend([option.into(), value]);
    }
    program.args.push("--enable-ssl".into());
    let value_bytes_max = ((plan.memory_mib << 20) as usize / 16)
        .clamp(*LONG_VALUE_BYTES.start(), *LONG_VALUE_BYTES.end());
    // With its key.
    let item_bytes_max = value_bytes_max + 4096;
    let item_limit = item_bytes_max.to_string().into();
    program.args.extend(["--max-item-size".into(), item_limit]);
    if !plan.evicts {
        program.args.push("--disable-evictions".into());
    }
    let link = LinkKind {
        transport: plan.transport,
        ..LinkKind::default()
    };
    let mut server = Process::start_for(&program, &share, &[link])?;
    let (clients, ucx) = match server.place(link)? {
        Place::Tcp(_) => (Target::Plain(plain), Allowance::default()),
        Place::Ucx(path) => {
            let hubs = UcxHubs::new(path, plan.connections as usize, TIMEOUT)?;
            let allowance = Allowance::over_ucx(plan.connections);
            (Target::Ucx(Arc::new(hubs)), allowance)
        }
    };
    let memory_bytes = plan.memory_mib << 20;
    let connections = share.connections as u64;
    let limits = Limits::connect(plain, memory_bytes, item_bytes_max as u64, connections);
    let mut limits = limits?;
    let descriptors = descriptors_of(server.id());
    let mut copy = snapshot.into_os_string();
    copy.push(".live");
    let config = certificates.client()?;
    let mut operator = Operator::new(
        plan.operator_interval,
        plain,
        server.address(),
        certificates,
        copy.into(),
        plan.memory_mib,
    )?;
    let keys = 2 * (plan.memory_mib << 20) / VALUE_BYTES / u64::from(plan.connections);
    let expected =
        ExpectedVersions::new(plan.connections, keys.clamp(64, 9999) as u32, plan.evicts);
    pin(&split.client);
    let load = Load {
        clients,
        resp: Target::Plain(resp),
        ucx,
        tls: (server.address(), config),
        expected: &expected,
        values: ValueLimits {
            bytes_max: value_bytes_max,
            may_be_refused: !plan.evicts,
        },
        seed: plan.seed,
        stop: AtomicBool::new(false),
        counters: Mutex::new(Counters::default()),
        faults: Mutex::new(Vec::new()),
    };
    let seconds = Duration::from_secs(plan.seconds);
    let (elapsed, memory) = load.run(&mut server, &mut operator, &mut limits, seconds)?;
    if let (Some(before), Some(left)) = (descriptors, await_descriptors(server.id(), descriptors))
        && left > before + DESCRIPTORS_KEPT
    {
        let fault = format!("{left} open files after the last client, {before} before the first");
        locked(&load.faults).push(fault);
    }
    limits.check()?;
    let held = ServerUsage {
        memory,
        memory_bytes_max: limits.memory_bytes_max(memory_bytes)?,
        closed: limits.closed()?,
        evictions: limits.evictions()?,
        waiting_bytes: limits.waiting_bytes_max,
    };
    summary(plan, &load, elapsed, &held, operator.actions)
}

/// The open files of a process, if the system reports them.
fn descriptors_of(process: u32) -> Option<usize> {
    Some(
        std::fs::read_dir(format!("/proc/{process}/fd"))
            .ok()?
            .count(),
    )
}

/// The same, after it had time to close those of clients that are gone.
fn await_descriptors(process: u32, before: Option<usize>) -> Option<usize> {
    let start = Instant::now();
    loop {
        let now = descriptors_of(process);
        if now <= before || start.elapsed() > CLOSE_TIME {
            return now;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// What UCX may take in addition to the memory limit and its usual excess.
#[derive(Clone, Copy, Debug, Default)]
struct Allowance {
    own_bytes: u64,
    shared_bytes: u64,
}

impl Allowance {
    fn over_ucx(connections: u32) -> Allowance {
        let connections = u64::from(connections) + UCX_CLOSED_CONNECTIONS;
        Allowance {
            own_bytes: UCX_BYTES + connections * UCX_BYTES_PER_CONNECTION,
            // The server has two workers: the second finds out whether the first still receives.
            shared_bytes: 2 * UCX_WORKER_BYTES + connections * UCX_SHARED_BYTES_PER_CONNECTION,
        }
    }
}

/// Bytes of the server in RAM.
#[derive(Clone, Copy, Debug, Default)]
struct Memory {
    /// Without those that it may share.
    own_bytes: u64,
    /// UCX's segments, its own and those of its clients, once for each mapping.
    shared_bytes: u64,
}

impl Memory {
    /// The memory now, if the system reports it.
    fn of(server: &Process) -> Option<Memory> {
        let shared_bytes = server.shared_bytes()?;
        Some(Memory {
            own_bytes: server.resident_bytes()?.saturating_sub(shared_bytes),
            shared_bytes,
        })
    }

    fn max(self, other: Memory) -> Memory {
        Memory {
            own_bytes: self.own_bytes.max(other.own_bytes),
            shared_bytes: self.shared_bytes.max(other.shared_bytes),
        }
    }

    /// Why it is too much if the server may take `bytes_max` in addition to UCX, if it is.
    fn fault(self, bytes_max: u64, ucx: Allowance) -> Option<String> {
        let bytes_max = bytes_max + ucx.own_bytes;
        if self.own_bytes > bytes_max {
            let own_bytes = self.own_bytes;
            return Some(format!(
                "{own_bytes} bytes of memory, {bytes_max} are allowed"
            ));
        }
        (self.shared_bytes > ucx.shared_bytes).then(|| {
            format!(
                "{} bytes of shared memory, more than the {} of UCX",
                self.shared_bytes, ucx.shared_bytes
            )
        })
    }
}

/// Memory and evictions of the server.
struct ServerUsage {
    /// Maximum bytes in RAM, if the system reports them.
    memory: Option<Memory>,
    /// The most that it may take.
    memory_bytes_max: u64,
    /// Evicted items; there are none until the memory is full.
    evictions: u64,
    /// Connections that it closed because the memory of connections was short.
    closed: u64,
    /// The most that values took which waited for their readers.
    waiting_bytes: u64,
}

/// Shared by the clients.
struct Load<'a> {
    /// For clients without TLS.
    clients: Target,
    /// Where the server speaks RESP.
    resp: Target,
    ucx: Allowance,
    tls: (SocketAddr, Arc<ClientConfig>),
    expected: &'a ExpectedVersions,
    values: ValueLimits,
    seed: u64,
    stop: AtomicBool,
    counters: Mutex<Counters>,
    faults: Mutex<Vec<String>>,
}

/// Takes a lock that a panicking holder cannot have left half changed.
fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Load<'_> {
    /// Runs all clients. Returns how long they ran, and the maximum memory that the server used.
    fn run(
        &self,
        server: &mut Process,
        operator: &mut Operator,
        limits: &mut Limits,
        time: Duration,
    ) -> anyhow::Result<(Duration, Option<Memory>)> {
        let start = Instant::now();
        let progress = Progress::on_terminal().rate("server", Some(time.as_secs()), "values read");
        let mut max_memory: Option<Memory> = None;
        let ended = std::thread::scope(|scope| -> anyhow::Result<()> {
            // Set on every way out, because the scope waits for the clients.
            let mut watch = || -> anyhow::Result<()> {
                for number in 0..self.expected.clients() {
                    std::thread::Builder::new()
                        .stack_size(256 << 10)
                        .spawn_scoped(scope, move || self.client(number))
                        .context("cannot start a client")?;
                }
                while start.elapsed() < time && locked(&self.faults).len() < FAULTS_MAX {
                    std::thread::sleep(Duration::from_millis(100));
                    server.check()?;
                    let memory = Memory::of(server);
                    max_memory = memory
                        .map(|memory| memory.max(max_memory.unwrap_or_default()))
                        .or(max_memory);
                    if let Err(fault) = operator.work(start.elapsed(), server)? {
                        locked(&self.faults).push(fault);
                    }
                    if let Err(CheckFailed(fault)) = limits.check() {
                        locked(&self.faults).push(fault);
                    }
                    let lower_limit = operator.lower_limit_bytes(start.elapsed());
                    if let (Some(memory), Some(limit)) = (memory, lower_limit)
                        // A server that evicts nothing keeps what it holds.
                        && self.expected.evicts()
                        && let Some(fault) = memory.fault(limits.memory_bytes_max(limit)?, self.ucx)
                    {
                        locked(&self.faults).push(format!(
                            "long after the limit was lowered to {limit}: {fault}"
                        ));
                    }
                    progress.update(start.elapsed().as_secs(), locked(&self.counters).keys_found);
                }
                Ok(())
            };
            let watched = watch();
            // Relaxed: the flag publishes nothing else.
            self.stop.store(true, Ordering::Relaxed);
            watched
        });
        ended?;
        progress.finish();
        Ok((start.elapsed(), max_memory))
    }

    /// One client. It first fills its part of the memory; after a fault of the server it continues
    /// with another connection.
    fn client(&self, number: u32) {
        let mut seed = self.seed;
        let mut fills = true;
        // Relaxed: the flag publishes nothing else.
        while !self.stop.load(Ordering::Relaxed) {
            let target = match number % TLS_CLIENTS {
                0 => Target::Tls(self.tls.0, self.tls.1.clone()),
                _ => self.clients.clone(),
            };
            let servers = (target, self.resp.clone());
            let worked = Client::connect(servers, self.expected, self.values, number, seed)
                .and_then(|mut client| {
                    let filled = if std::mem::take(&mut fills) {
                        client.fill(&self.stop)
                    } else {
                        Ok(())
                    };
                    let worked = filled.and_then(|()| client.work(&self.stop));
                    locked(&self.counters).add(&client.counters);
                    worked
                });
            seed = seed.wrapping_add(1);
            if let Err(fault) = worked {
                let mut faults = locked(&self.faults);
                if faults.len() < FAULTS_MAX {
                    faults.push(fault);
                }
                if faults.len() == FAULTS_MAX {
                    return;
                }
            }
        }
    }
}

/// Prints a summary and all faults. Fails if there was a fault.
fn summary(
    plan: &Plan,
    load: &Load<'_>,
    elapsed: Duration,
    held: &ServerUsage,
    actions: Actions,
) -> anyhow::Result<()> {
    let (counters, faults) = (*locked(&load.counters), locked(&load.faults));
    let mut out = Out::stdout();
    let count = output::count;
    let share = counters.keys_found as f64 / counters.keys_read.max(1) as f64;
    out.line(format_args!(
        "server: seed {}, {} clients over {} for {}",
        plan.seed,
        count(plan.connections.into()),
        plan.transport,
        output::time(elapsed),
    ))?;
    out.line(format_args!(
        "  read       {} keys, {} of them found ({:.0}%), every value checked",
        count(counters.keys_read),
        count(counters.keys_found),
        100.0 * share
    ))?;
    out.line(format_args!(
        "  stored     {}, refused {}, deleted {}",
        count(counters.stored),
        count(counters.refused),
        count(counters.deleted)
    ))?;
    out.line(format_args!(
        "  clients    {} times reconnected, {} killed, {} half closed, {} read slowly, {} slept, \
         {} sent nonsense; {} steps in RESP",
        count(counters.reconnected),
        count(counters.killed),
        count(counters.half_closed),
        count(counters.read_slowly),
        count(counters.slept),
        count(counters.malformed),
        count(counters.resp)
    ))?;
    out.line(format_args!(
        "  meanwhile  {} snapshots, {} new certificates, {} changes of the memory limit",
        count(actions.snapshots),
        count(actions.certificates),
        count(actions.limits)
    ))?;
    match held.memory {
        Some(memory) => {
            out.line(format_args!(
                "  memory     {} at most, {} are allowed with a limit of {}",
                output::bytes(memory.own_bytes),
                output::bytes(held.memory_bytes_max + load.ucx.own_bytes),
                output::bytes(plan.memory_mib << 20)
            ))?;
            if memory.shared_bytes > 0 {
                out.line(format_args!(
                    "  shared     {} at most, with UCX's segments of the clients",
                    output::bytes(memory.shared_bytes)
                ))?;
            }
        }
        None => out.line(format_args!("  memory     not reported by the system"))?,
    }
    let waiting = output::bytes(held.waiting_bytes);
    out.line(format_args!(
        "  waiting    {waiting} of large values at most, {} connections closed",
        count(held.closed)
    ))?;
    match held.evictions + counters.refused {
        0 => out.line(format_args!(
            "  never full: use more time or less memory to test the limit"
        ))?,
        _ => out.line(format_args!(
            "  full       {} evicted",
            count(held.evictions)
        ))?,
    }
    for fault in faults.iter().take(FAULTS_SHOWN) {
        out.line(format_args!("  fault      {fault}"))?;
    }
    out.finish()?;
    if !faults.is_empty() {
        return Err(CheckFailed(format!("the server was at fault {} times", faults.len())).into());
    }
    let memory = held.memory;
    match memory.and_then(|memory| memory.fault(held.memory_bytes_max, load.ucx)) {
        Some(fault) => Err(CheckFailed(fault).into()),
        None => Ok(()),
    }
}
