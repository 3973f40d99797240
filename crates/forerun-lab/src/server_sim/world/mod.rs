//! The world of one plan: the server's threads, its clients, its disk and its clocks, one step at a
//! time.
//!
//! ```text
//!   who can do something now?  acceptor, worker, client, snapshot ──> one of them, drawn ──> checks
//!   nobody                     ──> a client that is owed something and could have it is stuck; else time advances
//! ```

mod ends;
mod schedule;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use forerun_cache::{Cache, CacheOptions};
use forerun_server::simulation::Stepped;
use forerun_server::{Listen, ServerOptions, SnapshotOptions};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::checks::{Failure, Watch};
use super::client::{Client, Ends, Env, Over, Stage};
use super::copies::Copies;
use super::counts::Counts;
use super::model::{Model, Stamp};
use super::net::{ClientSocket, Net};
use super::plan::{Event, Plan};
use super::system::Sim;
use super::wire::{Papers, Wire};

/// The wall clock when a simulation begins.
const UNIX_S: u64 = 1_800_000_000;
/// Where the snapshot is on the simulated disk.
pub const SNAPSHOT: &str = "/disk/snapshot";
/// Where the copies of a running server are.
const LIVE_SNAPSHOT: &str = "/disk/snapshot.live";
/// Simulated time after which a drain cuts off clients that are still active.
const LIFE: Duration = Duration::from_secs(90);
/// Steps after which the same happens.
const STEPS_MAX: u64 = 8_000;
/// Lines of history to keep.
const TRACE_LINES: usize = 60;

impl Ends for ClientSocket {
    fn end(&self) {
        ClientSocket::end(self);
    }

    fn cut(&self) {
        self.reset();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Actor {
    Acceptor,
    Worker(usize),
    Client(usize),
    Task,
}

/// When a thread of the server last began to wait, and at which deadline of its polls it continues.
#[derive(Clone, Copy, Debug, Default)]
struct Waits {
    until: Option<Duration>,
}

pub struct World<'p> {
    plan: &'p Plan,
    papers: &'p Papers,
    rng: SmallRng,
    sim: Sim,
    server: Option<Stepped<Sim>>,
    cache: Arc<Cache>,
    model: Model,
    clients: Vec<Client<ClientSocket>>,
    watch: Watch,
    copies: Copies,
    acceptor: Waits,
    workers: Vec<Waits>,
    events: VecDeque<(Duration, Event)>,
    turn: u64,
    life: u32,
    life_start: Duration,
    evictions_before: u64,
    drain_asked: Option<Duration>,
    /// How long no thread ran since then.
    paused_in_drain: Duration,
    workers_ended: Option<Duration>,
    /// The cache's clock and the wall clock when the server was stopped.
    stopped_at: (i64, i64),
    pub counts: Counts,
    pub trace: VecDeque<String>,
}

impl<'p> World<'p> {
    pub fn new(plan: &'p Plan, papers: &'p Papers) -> Result<World<'p>, Failure> {
        let net = Net::new(plan.seed, plan.interrupts);
        let sim = Sim::new(net, UNIX_S);
        let cache = new_cache(plan)?;
        let mut events = plan.events.clone();
        events.sort_by_key(|(at, _)| *at);
        Ok(World {
            plan,
            papers,
            rng: SmallRng::seed_from_u64(plan.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            sim,
            server: None,
            cache,
            model: Model::default(),
            clients: plan
                .clients
                .iter()
                .map(|client| Client::new(client.clone(), plan.seed))
                .collect(),
            watch: Watch::new(plan),
            copies: Copies::default(),
            acceptor: Waits::default(),
            workers: Vec::new(),
            events: events.into(),
            turn: 0,
            life: 0,
            life_start: Duration::ZERO,
            evictions_before: 0,
            drain_asked: None,
            paused_in_drain: Duration::ZERO,
            workers_ended: None,
            stopped_at: (0, 0),
            counts: Counts::default(),
            trace: VecDeque::new(),
        })
    }

    /// Plays the plan to its end.
    ///
    /// # Errors
    /// What the server did wrong.
    pub fn run(&mut self) -> Result<(), Failure> {
        self.start()?;
        self.live()?;
        let kept = self.stop()?;
        if let Some(after_s) = self.plan.restart_after_s {
            self.sim.advance(Duration::from_secs(after_s));
            self.restart(kept)?;
            self.live()?;
            self.stop()?;
        }
        Ok(())
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        if self.trace.len() == TRACE_LINES {
            self.trace.pop_front();
        }
        let at = self.sim.time();
        self.trace
            .push_back(format!("{:>9.3} s  {}", at.as_secs_f64(), line()));
    }

    fn start(&mut self) -> Result<(), Failure> {
        let mut listen = Listen::unix("/simulated", 0o700);
        listen.tls = self.plan.tls;
        let mut options = ServerOptions::new(vec![listen]);
        options.threads = self.plan.threads;
        options.connection_limit = self.plan.connection_limit;
        options.idle_timeout = Duration::from_secs(self.plan.idle_timeout_s);
        options.drain_timeout = Duration::from_secs(self.plan.drain_timeout_s);
        options.tls = self.plan.tls.then(|| self.papers.server.clone());
        options.snapshot = self.plan.snapshot.then(|| {
            SnapshotOptions::new(SNAPSHOT)
                .ignore_bad(false)
                .live_bytes_per_s(None)
        });
        self.sim.begin_cache();
        if self.plan.restart_after_s.is_none() || self.life == 1 {
            self.sim.set_disk(self.plan.start_disk);
        }
        let started = Stepped::start(self.sim.clone(), &options, self.cache.clone());
        let server = started.map_err(|error| Failure::new("start", format!("{error}")))?;
        self.sim.set_disk(Default::default());
        self.model.unix_zero = (
            forerun_server::simulation::System::unix_s(&self.sim),
            self.sim.cache_second(),
        );
        self.server = Some(server);
        self.acceptor = Waits {
            until: Some(self.sim.time()),
        };
        self.workers = vec![self.acceptor; self.plan.threads];
        self.life_start = self.sim.time();
        self.drain_asked = None;
        self.paused_in_drain = Duration::ZERO;
        self.workers_ended = None;
        self.note(|| "the server starts".to_owned());
        Ok(())
    }

    /// Runs until all clients of this life are done, or the server was drained.
    fn live(&mut self) -> Result<(), Failure> {
        loop {
            let done = self.is_drained();
            if done {
                return Ok(());
            }
            self.turn += 1;
            self.counts.steps += 1;
            self.happen()?;
            self.check_clock()?;
            let at_rest = self.is_at_rest();
            let age = self.sim.time() - self.life_start;
            if self.drain_asked.is_none()
                && (at_rest
                    || age > LIFE
                    || self.counts.steps > STEPS_MAX * u64::from(1 + self.life))
            {
                self.drain();
            }
            let ready = self.ready();
            if ready.is_empty() {
                self.check_stuck()?;
                self.go_on_in_time()?;
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

    fn is_at_rest(&self) -> bool {
        let life = self.life;
        self.events.is_empty()
            && self
                .clients
                .iter()
                .filter(|client| client.plan.life == life)
                .all(|client| {
                    // A server that is idle long enough closes clients that stay.
                    client.is_at_rest()
                        && !(self.plan.idle_timeout_s > 0 && client.stage == Stage::Open)
                })
            && self.sim.task_count() == 0
    }

    fn is_drained(&self) -> bool {
        let Some(server) = &self.server else {
            return true;
        };
        self.drain_asked.is_some()
            && (0..self.plan.threads).all(|number| server.has_ended(number))
            && server.acceptor_timeout().is_none()
            && self.sim.task_count() == 0
            && !self.clients.iter().any(|client| {
                client.plan.life == self.life
                    && client.stage == Stage::Open
                    && client
                        .wire
                        .as_ref()
                        .is_some_and(|wire| wire.socket.is_readable())
            })
    }

    fn drain(&mut self) {
        if self.drain_asked.is_some() {
            return;
        }
        self.note(|| "drain".to_owned());
        if let Some(server) = &self.server {
            server.drain();
        }
        self.drain_asked = Some(self.sim.time());
        self.copies.forget_request();
        self.watch.drain(&self.clients);
    }

    /// Applies outside events that are due.
    fn happen(&mut self) -> Result<(), Failure> {
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
                    if self.plan.snapshot && self.drain_asked.is_none() {
                        self.copies.asked();
                    }
                }
                Event::Disk(plan) => {
                    self.sim.set_disk(plan);
                }
                Event::WallClock(by_s) => self.sim.jump_wall_clock(by_s),
                Event::Pause(time) => {
                    self.sim.advance(time);
                    if self.drain_asked.is_some() {
                        self.paused_in_drain += time;
                    }
                }
                Event::RefuseAccepts(count) => self.sim.net.refuse_accepts(count),
                Event::Drain => self.drain(),
            }
        }
        Ok(())
    }

    fn stamp(&self) -> Stamp {
        Stamp {
            turn: self.turn,
            cache_s: self.cache.now(),
            evictions: self.evictions_before + self.cache.stats().evictions,
        }
    }

    fn env(&self) -> Env {
        let stamp = self.stamp();
        let (unix_zero, cache_zero) = self.model.unix_zero;
        Env {
            now: self.sim.time(),
            stamp,
            unix_s: unix_zero + u64::from(stamp.cache_s.saturating_sub(cache_zero)),
        }
    }

    fn act(&mut self, actor: Actor) -> Result<(), Failure> {
        let poll_failed = |error| Failure::new("poll", format!("{error}"));
        match actor {
            Actor::Client(number) => return self.act_client(number),
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
                let drains = self.drain_asked.is_some();
                self.watch
                    .acceptor(&self.sim, &self.cache, &self.clients, drains)?;
                let stamp = self.stamp();
                let has_begun = self.sim.task_count() > before;
                self.copies.acceptor(has_begun, stamp, copy)?;
            }
            Actor::Worker(number) => {
                self.watch.before_worker(number, &self.clients);
                if let Some(server) = &mut self.server {
                    server.step_worker(number).map_err(poll_failed)?;
                    let wait = server.worker_timeout(number);
                    self.workers[number].until = wait.map(|wait| self.sim.time() + wait);
                    let buffers = server.buffer_bytes(number);
                    let ended = (0..self.plan.threads).all(|number| server.has_ended(number));
                    let (now, drains) = (self.sim.time(), self.drain_asked.is_some());
                    if ended {
                        self.workers_ended.get_or_insert(now);
                    }
                    self.watch
                        .after_worker(number, &self.clients, &buffers, now, drains)?;
                    // The acceptor sets the clock until the workers drain, and then they do.
                    if server.is_draining(number) {
                        self.watch.clock(&self.sim, &self.cache)?;
                    }
                }
                self.watch.memory(&self.cache, self.sim.time())?;
            }
        }
        self.check_copies()
    }

    fn check_copies(&mut self) -> Result<(), Failure> {
        let stamp = self.stamp();
        let checked =
            self.copies
                .check(&self.sim, LIVE_SNAPSHOT.as_ref(), stamp, &mut self.model)?;
        self.counts.snapshots += u64::from(checked);
        Ok(())
    }

    fn act_client(&mut self, number: usize) -> Result<(), Failure> {
        let env = self.env();
        let (papers, tls) = (self.papers, self.plan.tls);
        let client = &mut self.clients[number];
        let id = client.plan.id;
        let failed = |what| Failure::new("answer", format!("client {id}: {what}"));
        if client.stage == Stage::Before {
            let socket = self
                .sim
                .net
                .connect(client.plan.capacities, client.plan.style);
            match socket {
                Some(socket) => {
                    let config = match client.plan.tls12 {
                        true => &papers.client_tls12,
                        false => &papers.client,
                    };
                    let wire = Wire::new(socket, tls.then(|| config.clone()));
                    client.connect(wire.map_err(|error| failed(error.to_string()))?);
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
        if reads && readable && client.stage == Stage::Open {
            client.receive(env, &mut self.model).map_err(failed)?;
        }
        let (answers, stage) = (client.answered - answered, client.stage);
        self.counts.requests += answers;
        if let Stage::Over(how) = stage {
            self.note(|| format!("client {id}: {how:?}"));
            let client = &self.clients[number];
            self.watch.over(client, how, self.drain_asked)?;
            if how == Over::Cut || client.is_spoilt() {
                self.counts.faults += 1;
            }
        }
        Ok(())
    }
}

fn new_cache(plan: &Plan) -> Result<Arc<Cache>, Failure> {
    let cache = Cache::new(
        CacheOptions::default()
            .memory_limit_bytes(plan.memory_mib << 20)
            .max_item_bytes(plan.max_item_bytes)
            .seed(plan.seed),
    );
    cache
        .map(Arc::new)
        .map_err(|error| Failure::new("cache", error.to_string()))
}
