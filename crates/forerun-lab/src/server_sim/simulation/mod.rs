//! The run of one plan: the server's threads, its clients, its disk and its clocks, one step at a
//! time.
//!
//! ```text
//!   runnable:   acceptor, worker, client, snapshot ──> one of them, drawn ──> checks
//!   none        ──> a client that is owed an answer is stuck; otherwise time advances
//! ```

mod runnable;
mod shutdown;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use forerun_cache::{Cache, CacheOptions, Clock};
use forerun_server::simulation::SteppedServer;
use forerun_server::{Listen, Protocol, ServerOptions, SnapshotOptions};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::checks::{Checks, Drain, Failure};
use super::client::{Client, ClientStage, ClientView, CloseSocket, ConnectionEnd};
use super::copies::Copies;
use super::counts::Counts;
use super::model::{Model, Moment};
use super::net::{ClientSocket, Net};
use super::plan::{CrashMoment, Event, Plan};
use super::system::SimSystem;
use super::wire::{Certificates, Wire};

/// The wall clock when a simulation begins.
const UNIX_S: u64 = 1_800_000_000;
/// Where the snapshot is on the simulated disk.
pub const SNAPSHOT: &str = "/disk/snapshot";
/// Where the copies of a running server are.
const LIVE_SNAPSHOT: &str = "/disk/snapshot.live";
/// Simulated time after which a drain cuts off clients that are still active.
const SERVING_TIME_MAX: Duration = Duration::from_secs(90);
/// Steps after which the same happens.
const STEPS_MAX: u64 = 8_000;
/// Lines of history to keep.
const TRACE_LINES: usize = 60;

impl CloseSocket for ClientSocket {
    fn end(&self) {
        ClientSocket::end(self);
    }

    fn reset(&self) {
        ClientSocket::reset(self);
    }
}

/// Why a server stopped serving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServingEnd {
    Drained,
    Crashed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Actor {
    Acceptor,
    Worker(usize),
    Client(usize),
    Task,
}

/// The deadline of the poll in which a thread of the server waits.
#[derive(Clone, Copy, Debug, Default)]
struct PollWait {
    until: Option<Duration>,
}

pub struct Simulation<'p> {
    plan: &'p Plan,
    certificates: &'p Certificates,
    rng: SmallRng,
    sim: SimSystem,
    server: Option<SteppedServer<SimSystem>>,
    cache: Arc<Cache>,
    model: Model,
    clients: Vec<Client<ClientSocket>>,
    checks: Checks,
    copies: Copies,
    acceptor: PollWait,
    workers: Vec<PollWait>,
    events: VecDeque<(Duration, Event)>,
    step: u64,
    incarnation: usize,
    /// The server has crashed while it served.
    is_crashed: bool,
    /// The number of the snapshot that the next server must load with all entries of the model.
    saved: Option<u64>,
    life_start: Duration,
    evictions_before: u64,
    drain_requested: Option<Duration>,
    /// How long no thread ran since then.
    paused_in_drain: Duration,
    workers_ended: Option<Duration>,
    /// The cache's clock and the wall clock when the server was stopped.
    stopped_at: (i64, i64),
    /// The cache's clock when the last snapshot was written.
    written_s: i64,
    pub counts: Counts,
    pub trace: VecDeque<String>,
}

impl<'p> Simulation<'p> {
    pub fn new(plan: &'p Plan, certificates: &'p Certificates) -> Result<Simulation<'p>, Failure> {
        let net = Net::new(plan.seed, plan.interrupts);
        let sim = SimSystem::new(net, UNIX_S);
        let cache = new_cache(plan)?;
        let mut events = plan.events.clone();
        events.sort_by_key(|(at, _)| *at);
        Ok(Simulation {
            plan,
            certificates,
            rng: SmallRng::seed_from_u64(plan.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            sim,
            server: None,
            cache,
            model: Model::new(plan.memory_mib),
            clients: plan
                .clients
                .iter()
                .map(|client| Client::new(client.clone(), plan.seed))
                .collect(),
            checks: Checks::new(plan),
            copies: Copies::default(),
            acceptor: PollWait::default(),
            workers: Vec::new(),
            events: events.into(),
            step: 0,
            incarnation: 0,
            is_crashed: false,
            saved: None,
            life_start: Duration::ZERO,
            evictions_before: 0,
            drain_requested: None,
            paused_in_drain: Duration::ZERO,
            workers_ended: None,
            stopped_at: (0, 0),
            written_s: 0,
            counts: Counts::default(),
            trace: VecDeque::new(),
        })
    }

    /// Runs the plan to its end.
    ///
    /// # Errors
    /// What the server did wrong.
    pub fn run(&mut self) -> Result<(), Failure> {
        loop {
            if self.start()? {
                match self.serve()? {
                    ServingEnd::Drained => self.stop()?,
                    ServingEnd::Crashed => self.kill_server()?,
                }
            }
            if self.incarnation + 1 == self.plan.incarnations.len() {
                return Ok(());
            }
            self.begin_next_incarnation()?;
        }
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        if self.trace.len() == TRACE_LINES {
            self.trace.pop_front();
        }
        let at = self.sim.time();
        self.trace
            .push_back(format!("{:>9.3} s  {}", at.as_secs_f64(), line()));
    }

    /// Starts a server. Returns false if it crashed before it served a client.
    fn start(&mut self) -> Result<bool, Failure> {
        let listeners = self.plan.listeners;
        let listen = listeners.tls().iter().map(|&tls| {
            let mut listen = Listen::unix(if tls { "/tls" } else { "/plain" }, 0o700);
            listen.tls = tls;
            listen
        });
        let resp = Listen::unix("/resp", 0o700).with_protocol(Protocol::Resp);
        let listen = listen.chain(self.plan.has_resp().then_some(resp));
        let mut options = ServerOptions::new(listen.collect());
        options.threads = self.plan.threads;
        options.connection_limit = self.plan.connection_limit;
        options.idle_timeout = Duration::from_secs(self.plan.idle_timeout_s);
        // A client may take any time for its handshake.
        options.handshake_timeout = Duration::ZERO;
        options.drain_timeout = Duration::from_secs(self.plan.drain_timeout_s);
        let certificates = &self.certificates.server;
        options.tls = listeners.have_tls().then(|| certificates.clone());
        options.snapshot = self.plan.snapshot.then(|| {
            SnapshotOptions::new(SNAPSHOT)
                .ignore_bad(false)
                .live_bytes_per_s(None)
        });
        self.sim.begin_cache();
        if self.plan.incarnations.len() == 1 || self.incarnation == 1 {
            self.sim.set_disk(self.plan.start_disk);
        }
        self.copies = Copies::default();
        let crash = self.crash_moment();
        if let Some(CrashMoment::Start { calls }) = crash {
            self.sim.die_after(calls);
        }
        let started = SteppedServer::start(self.sim.clone(), &options, self.cache.clone());
        if self.sim.is_crashed() {
            self.sim.set_disk(Default::default());
            self.kill_starting_server(started.ok());
            return Ok(false);
        }
        self.sim.live_on();
        let server = started.map_err(|error| Failure::new("start", format!("{error}")))?;
        self.sim.set_disk(Default::default());
        self.model.unix_zero = (
            forerun_server::simulation::System::unix_s(&self.sim),
            self.sim.cache_second(),
        );
        self.server = Some(server);
        self.acceptor = PollWait {
            until: Some(self.sim.time()),
        };
        self.workers = vec![self.acceptor; self.plan.threads];
        self.life_start = self.sim.time();
        self.is_crashed = false;
        self.drain_requested = None;
        self.paused_in_drain = Duration::ZERO;
        self.workers_ended = None;
        self.restore_model();
        self.note(|| "the server starts".to_owned());
        Ok(true)
    }

    /// Runs until the server has drained or has crashed.
    fn serve(&mut self) -> Result<ServingEnd, Failure> {
        loop {
            if self.is_drained() {
                return Ok(ServingEnd::Drained);
            }
            if self.is_crashed {
                return Ok(ServingEnd::Crashed);
            }
            self.step += 1;
            self.counts.steps += 1;
            self.apply_events()?;
            self.check_clock()?;
            let at_rest = self.is_idle();
            let age = self.sim.time() - self.life_start;
            if self.drain_requested.is_none()
                && (at_rest
                    || age > SERVING_TIME_MAX
                    || self.counts.steps > STEPS_MAX * (1 + self.incarnation as u64))
            {
                self.drain();
            }
            let ready = self.runnable();
            if ready.is_empty() {
                self.check_stuck()?;
                self.advance_time()?;
                continue;
            }
            let actor = ready[self.rng.random_range(0..ready.len())];
            self.act(actor)?;
            if self.rng.random_range(0..8) == 0 {
                let passed = self.rng.random_range(0..500);
                self.sim.advance(Duration::from_micros(passed));
            }
        }
    }

    fn is_idle(&self) -> bool {
        let incarnation = self.incarnation;
        self.events.is_empty()
            && self
                .clients
                .iter()
                .filter(|client| client.plan.incarnation == incarnation)
                .all(|client| {
                    // A server that is idle long enough closes clients that stay.
                    client.is_idle()
                        && !(self.plan.idle_timeout_s > 0 && client.stage == ClientStage::Open)
                })
            && self.sim.task_count() == 0
    }

    fn is_drained(&self) -> bool {
        let Some(server) = &self.server else {
            return true;
        };
        self.drain_requested.is_some()
            && (0..self.plan.threads).all(|number| server.has_ended(number))
            && server.acceptor_timeout().is_none()
            && self.sim.task_count() == 0
            && !self.clients.iter().any(|client| {
                client.plan.incarnation == self.incarnation
                    && client.stage == ClientStage::Open
                    && client
                        .wire
                        .as_ref()
                        .is_some_and(|wire| wire.socket.is_readable())
            })
    }

    fn drain(&mut self) {
        if self.drain_requested.is_some() {
            return;
        }
        if self.crash_moment() == Some(CrashMoment::Serving) {
            self.is_crashed = true;
            return;
        }
        self.note(|| "drain".to_owned());
        if let Some(server) = &self.server {
            server.drain();
        }
        self.drain_requested = Some(self.sim.time());
        self.copies.forget_request();
        self.checks.begin_drain(&self.clients);
    }

    /// Applies outside events that are due.
    fn apply_events(&mut self) -> Result<(), Failure> {
        while let Some(&(at, event)) = self.events.front()
            && at <= self.sim.time()
        {
            self.events.pop_front();
            self.note(|| format!("{event:?}"));
            self.counts.faults += 1;
            match event {
                Event::Snapshot => {
                    if let Some(server) = &self.server {
                        server.snapshot();
                    }
                    if self.plan.snapshot && self.drain_requested.is_none() {
                        self.copies.note_request();
                    }
                }
                Event::Disk(plan) => {
                    self.sim.set_disk(plan);
                }
                Event::WallClock(by_s) => self.sim.jump_wall_clock(by_s),
                Event::Pause(time) => {
                    self.sim.advance(time);
                    if self.drain_requested.is_some() {
                        self.paused_in_drain += time;
                    }
                }
                Event::RefuseAccepts(count) => self.sim.net.refuse_accepts(count),
                Event::Drain => self.drain(),
            }
        }
        Ok(())
    }

    fn moment(&self) -> Moment {
        Moment {
            step: self.step,
            cache_s: self.cache.now(),
            evictions: self.evictions_before + self.cache.stats().evictions,
        }
    }

    fn env(&self) -> ClientView {
        let moment = self.moment();
        let (unix_zero, cache_zero) = self.model.unix_zero;
        ClientView {
            now: self.sim.time(),
            moment,
            unix_s: unix_zero + u64::from(moment.cache_s.saturating_sub(cache_zero)),
        }
    }

    fn act(&mut self, actor: Actor) -> Result<(), Failure> {
        let poll_failed = |error| Failure::new("poll", format!("{error}"));
        match actor {
            Actor::Client(number) => return self.step_client(number),
            Actor::Task => {
                if let Some(name) = self.sim.step_task() {
                    self.note(|| format!("{name} ended"));
                    if name.ends_with("panicked") {
                        return Err(Failure::new("panic", name));
                    }
                }
            }
            Actor::Acceptor => {
                let before = self.sim.task_count();
                let copy = self.sim.file_number(LIVE_SNAPSHOT.as_ref());
                if let Some(server) = &mut self.server {
                    server.step_acceptor().map_err(poll_failed)?;
                    self.acceptor.until =
                        server.acceptor_timeout().map(|wait| self.sim.time() + wait);
                }
                let drains = self.drain_requested.is_some();
                self.checks
                    .after_acceptor(&self.sim, &self.cache, &self.clients, drains)?;
                let moment = self.moment();
                let has_begun = self.sim.task_count() > before;
                self.copies.after_acceptor(has_begun, moment, copy)?;
            }
            Actor::Worker(number) => {
                self.checks.before_worker(number, &self.clients);
                if let Some(server) = &mut self.server {
                    server.step_worker(number).map_err(poll_failed)?;
                    let wait = server.worker_timeout(number);
                    self.workers[number].until = wait.map(|wait| self.sim.time() + wait);
                    let buffers = server.buffer_bytes(number);
                    let ended = (0..self.plan.threads).all(|number| server.has_ended(number));
                    let (now, drains) = (self.sim.time(), self.drain_requested.is_some());
                    if ended {
                        self.workers_ended.get_or_insert(now);
                    }
                    self.checks
                        .after_worker(number, &self.clients, &buffers, now, drains)?;
                    // The acceptor sets the clock until the workers drain, and then they do.
                    if server.is_draining(number) {
                        self.checks.check_clock(&self.sim, &self.cache)?;
                    }
                }
                self.checks.check_memory(&self.cache, self.sim.time())?;
            }
        }
        self.check_copies()
    }

    fn check_copies(&mut self) -> Result<(), Failure> {
        let moment = self.moment();
        let checked =
            self.copies
                .check(&self.sim, LIVE_SNAPSHOT.as_ref(), moment, &mut self.model)?;
        self.counts.snapshots += u64::from(checked);
        Ok(())
    }

    fn step_client(&mut self, number: usize) -> Result<(), Failure> {
        let env = self.env();
        let certificates = self.certificates;
        let client = &mut self.clients[number];
        let id = client.plan.id;
        let failed = |message| Failure::new("answer", format!("client {id}: {message}"));
        if client.stage == ClientStage::Before {
            let (plan, net) = (&client.plan, &self.sim.net);
            let tls = plan.tls;
            let socket = net.connect(tls, plan.protocol(), plan.capacities, plan.style);
            match socket {
                Some(socket) => {
                    let config = if client.plan.tls12 {
                        &certificates.client_tls12
                    } else {
                        &certificates.client
                    };
                    let wire = Wire::new(socket, tls.then(|| config.clone()));
                    client.connect(wire.map_err(|error| failed(error.to_string()))?);
                }
                None if self.drain_requested.is_none() => {
                    return Err(Failure::new(
                        "refused",
                        format!("no server listens for client {id}"),
                    ));
                }
                None => client.refused(),
            }
            return Ok(());
        }
        let sends = client.sends_at().is_some_and(|at| at <= env.now);
        let reads = client.reads_at() <= env.now;
        let readable = client
            .wire
            .as_ref()
            .is_some_and(|wire| wire.socket.is_readable());
        let answered = client.answered;
        if sends {
            client.send(env, &mut self.model).map_err(failed)?;
        }
        if reads && readable && client.stage == ClientStage::Open {
            client.receive(env, &mut self.model).map_err(failed)?;
        }
        let (answers, stage) = (client.answered - answered, client.stage);
        self.counts.requests += answers;
        if let ClientStage::Ended(how) = stage {
            self.note(|| format!("client {id}: {how:?}"));
            let client = &self.clients[number];
            self.checks
                .connection_ended(client, how, self.drain_requested)?;
            if how == ConnectionEnd::Reset || client.has_sent_raw() {
                self.counts.faults += 1;
            }
        }
        Ok(())
    }
}

fn new_cache(plan: &Plan) -> Result<Arc<Cache>, Failure> {
    let cache = Cache::new(
        CacheOptions::default()
            .clock(Clock::Manual)
            .memory_limit_bytes(plan.memory_mib << 20)
            .memory_limit_max_bytes(plan.memory_max_mib() << 20)
            .max_item_bytes(plan.max_item_bytes)
            .seed(plan.seed),
    );
    cache
        .map(Arc::new)
        .map_err(|error| Failure::new("cache", error.to_string()))
}
