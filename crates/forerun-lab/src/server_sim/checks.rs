//! What must hold at every step, besides the answers: nobody waits forever or for long, limits are
//! kept, the clock advances.

use std::fmt;
use std::time::Duration;

use forerun_cache::Cache;

use super::client::{Client, Over, Stage};
use super::net::ClientSocket;
use super::plan::Plan;
use super::system::Sim;

/// Turns of its worker within which a connection with something to do must make progress. One would
/// do, but polls are interrupted, up to one in ten.
const TURNS_MAX: u32 = 12;
/// Memory of a connection's buffers: its input, and a full output with the largest copied item in
/// addition.
const BUFFER_BYTES_MAX: usize = 640 << 10;
/// Reads of a connection in one turn, and their size.
const TURN_READS: usize = 8;
const READ_BYTES: usize = 64 << 10;
/// Bytes that rustls buffers, which the next turn sends.
const TLS_BUFFER_BYTES: usize = 64 << 10;
/// How long the cache may exceed a limit that was lowered.
const SHRINK_TIME: Duration = Duration::from_secs(5);
/// Turns of the acceptor within which a connection must be accepted and passed to its worker; the
/// system may refuse a few times.
const ACCEPTOR_TURNS_MAX: u32 = 100;

/// How much longer than its timeout a drain may take, until each worker has had its turn.
const DRAIN_SLACK: Duration = Duration::from_secs(1);

/// What the server did wrong.
#[derive(Clone, Debug)]
pub struct Failure {
    /// One word for its kind: a smaller plan must fail in the same way.
    pub kind: &'static str,
    pub what: String,
}

impl Failure {
    pub fn new(kind: &'static str, what: impl Into<String>) -> Failure {
        Failure {
            kind,
            what: what.into(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.what)
    }
}

/// The state of one connection.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    moved: u64,
    moved_at: Duration,
    /// When the turn began, the server owed it something or had not read all that it sent, and no
    /// answer waited for its reader.
    waited: bool,
    waits: u32,
    quiet: u32,
    /// Turns of the acceptor since the client connected, until a worker has the connection.
    acceptor_turns: u32,
    dropped_at: Option<Duration>,
    owed_at_drain: usize,
    answered_at_drain: u64,
}

#[derive(Debug)]
pub struct Watch {
    /// The clients' numbers, in the order of `seen`.
    ids: Vec<usize>,
    seen: Vec<Seen>,
    idle_timeout: Duration,
    drain_timeout: Duration,
    turn_bytes_max: u64,
    has_limit: bool,
    over_limit_since: Option<Duration>,
}

impl Watch {
    pub fn new(plan: &Plan) -> Watch {
        // An output is full at 64 KiB, and the answer that fills it may be long.
        let output = READ_BYTES + plan.max_item_bytes + 1024;
        // Each answer is read and sent in parts; the last one is sent twice in part. TLS records
        // need 2% more.
        let turn = TURN_READS * (READ_BYTES + output) + output;
        let with_tls = turn + turn / 50 + 2 * TLS_BUFFER_BYTES;
        Watch {
            ids: plan.clients.iter().map(|client| client.id).collect(),
            seen: vec![Seen::default(); plan.clients.len()],
            idle_timeout: Duration::from_secs(plan.idle_timeout_s),
            drain_timeout: Duration::from_secs(plan.drain_timeout_s),
            turn_bytes_max: if plan.tls { with_tls } else { turn } as u64,
            has_limit: plan.connection_limit < plan.clients.len(),
            over_limit_since: None,
        }
    }

    /// The acceptor had a turn: the cache's clock must be right, and clients that connected must be
    /// accepted soon.
    pub fn acceptor(
        &mut self,
        sim: &Sim,
        cache: &Cache,
        clients: &[Client<ClientSocket>],
        drains: bool,
    ) -> Result<(), Failure> {
        if drains {
            return Ok(());
        }
        self.clock(sim, cache)?;
        for (seen, client) in self.seen.iter_mut().zip(clients) {
            let waits = client.stage == Stage::Open
                && client
                    .wire
                    .as_ref()
                    .is_some_and(|wire| wire.socket.poll().is_none() && !wire.socket.is_dropped());
            seen.acceptor_turns = if waits { seen.acceptor_turns + 1 } else { 0 };
            if seen.acceptor_turns > ACCEPTOR_TURNS_MAX {
                let id = client.plan.id;
                let what = format!("client {id} waits to be accepted, but nobody accepts it");
                return Err(Failure::new("accept", what));
            }
        }
        Ok(())
    }

    /// The cache's clock must be right.
    pub fn clock(&self, sim: &Sim, cache: &Cache) -> Result<(), Failure> {
        let (is, should) = (cache.now(), sim.cache_second());
        if is > should || is + 2 < should {
            let what = format!("the cache's clock is at {is} instead of {should}");
            return Err(Failure::new("clock", what));
        }
        Ok(())
    }

    pub fn before_worker(&mut self, number: usize, clients: &[Client<ClientSocket>]) {
        for (seen, client) in self.seen.iter_mut().zip(clients) {
            let Some(wire) = client.wire.as_ref().filter(|_| is_on(client, number)) else {
                continue;
            };
            seen.moved = wire.socket.moved();
            let has_work = client.is_owed() || wire.socket.unread() > 0;
            seen.waited = has_work && wire.socket.is_read();
        }
    }

    pub fn after_worker(
        &mut self,
        number: usize,
        clients: &[Client<ClientSocket>],
        buffers: &[usize],
        now: Duration,
        drains: bool,
    ) -> Result<(), Failure> {
        // A worker that learns of the drain in its turn gets another one.
        let turn_bytes_max = self.turn_bytes_max * if drains { 2 } else { 1 };
        for (seen, client) in self.seen.iter_mut().zip(clients) {
            let Some(wire) = &client.wire else { continue };
            if wire.socket.is_dropped() {
                seen.dropped_at.get_or_insert(now);
                continue;
            }
            if !is_on(client, number) {
                continue;
            }
            let id = client.plan.id;
            let moved = wire.socket.moved() - seen.moved;
            if moved > 0 || seen.moved_at.is_zero() {
                seen.moved_at = now;
            }
            seen.waits = match seen.waited && moved == 0 {
                true => seen.waits + 1,
                false => 0,
            };
            if seen.waits > TURNS_MAX {
                let what = format!("client {id} was passed over {} times", seen.waits);
                return Err(Failure::new("starved", what));
            }
            if moved > turn_bytes_max {
                let what = format!("client {id} moved {moved} bytes in one turn");
                return Err(Failure::new("turn", what));
            }
        }
        if let Some(most) = buffers.iter().max()
            && *most > BUFFER_BYTES_MAX
        {
            let what = format!("a connection's buffers take {most} bytes");
            return Err(Failure::new("buffers", what));
        }
        Ok(())
    }

    pub fn memory(&mut self, cache: &Cache, now: Duration) -> Result<(), Failure> {
        let stats = cache.stats();
        if stats.memory_bytes <= stats.limit_bytes {
            self.over_limit_since = None;
            return Ok(());
        }
        let since = *self.over_limit_since.get_or_insert(now);
        if now > since + SHRINK_TIME {
            let (held, limit) = (stats.memory_bytes, stats.limit_bytes);
            let what = format!("the cache holds {held} bytes of {limit}");
            return Err(Failure::new("memory", what));
        }
        Ok(())
    }

    /// Called when no thread can do anything.
    pub fn stuck<'c>(
        &mut self,
        clients: impl Iterator<Item = &'c Client<ClientSocket>>,
        now: Duration,
    ) -> Result<(), Failure> {
        for client in clients {
            let Some(wire) = client.wire.as_ref() else {
                continue;
            };
            let id = client.plan.id;
            let Some(place) = self.place(id) else {
                continue;
            };
            let seen = &mut self.seen[place];
            if wire.socket.is_dropped() {
                continue;
            }
            if wire.socket.poll().is_none() {
                continue;
            }
            if client.stage == Stage::Over(Over::Cut) {
                return Err(Failure::new(
                    "kept",
                    format!("client {id} is gone, but its connection is kept"),
                ));
            }
            if client.is_owed() && wire.socket.is_read() {
                let what = format!(
                    "client {id} waits for {} answers{}, but the server waits for an event that \
                     never comes",
                    client.owed(),
                    if client.waits_for_end() {
                        " and the end"
                    } else {
                        ""
                    },
                );
                return Err(Failure::new("stuck", what));
            }
            let unread = wire.socket.unread();
            if unread > 0 && wire.socket.is_read() {
                let what = format!(
                    "the server has left {unread} bytes of client {id} unread and waits for an \
                     event that never comes"
                );
                return Err(Failure::new("unread", what));
            }
            let silent = now.saturating_sub(seen.moved_at);
            if !self.idle_timeout.is_zero()
                && silent > self.idle_timeout + Duration::from_secs(4)
                && seen.quiet > 4
            {
                let what = format!("client {id} has been silent for {silent:?} and is still there");
                return Err(Failure::new("idle", what));
            }
            seen.quiet = match silent > self.idle_timeout + Duration::from_secs(2) {
                true => seen.quiet + 1,
                false => 0,
            };
        }
        Ok(())
    }

    pub fn drain(&mut self, clients: &[Client<ClientSocket>]) {
        for (seen, client) in self.seen.iter_mut().zip(clients) {
            let accepted = client
                .wire
                .as_ref()
                .is_some_and(|wire| wire.socket.poll().is_some());
            seen.owed_at_drain = if accepted { client.owed() } else { 0 };
            seen.answered_at_drain = client.answered;
        }
    }

    fn place(&self, id: usize) -> Option<usize> {
        self.ids.iter().position(|&one| one == id)
    }

    /// A connection has ended.
    pub fn over(
        &mut self,
        client: &Client<ClientSocket>,
        how: Over,
        drain_asked: Option<Duration>,
    ) -> Result<(), Failure> {
        let id = client.plan.id;
        let Some(place) = self.place(id) else {
            return Ok(());
        };
        let seen = self.seen[place];
        match how {
            Over::Cut | Over::NobodyListens => Ok(()),
            Over::TooMany if self.has_limit => Ok(()),
            // The text of the refusal does not always fit.
            Over::Closed if self.has_limit && !was_let_in(client) => Ok(()),
            Over::TooMany => Err(Failure::new(
                "refused",
                format!("client {id} was refused below the limit"),
            )),
            Over::Closed if client.was_finished || client.is_spoilt() => Ok(()),
            Over::Closed => {
                let dropped_at = seen.dropped_at.unwrap_or(seen.moved_at);
                let silent = dropped_at.saturating_sub(seen.moved_at);
                if !self.idle_timeout.is_zero() && silent > self.idle_timeout {
                    return Ok(());
                }
                let Some(drain_asked) = drain_asked else {
                    let what = format!(
                        "client {id} was closed with {} answers missing",
                        client.unanswered
                    );
                    return Err(Failure::new("closed", what));
                };
                let answered = client.answered - seen.answered_at_drain;
                let in_time = dropped_at < drain_asked + self.drain_timeout;
                if in_time && answered < seen.owed_at_drain as u64 {
                    let what = format!(
                        "client {id} was owed {} answers when the server was asked to end, but got \
                         {answered}",
                        seen.owed_at_drain
                    );
                    return Err(Failure::new("cut off", what));
                }
                Ok(())
            }
        }
    }

    /// All threads of the server have ended, this long after they were asked to; they had their
    /// turns all that time.
    pub fn drained(&self, took: Duration, open: usize) -> Result<(), Failure> {
        if took > self.drain_timeout + DRAIN_SLACK {
            let what = format!("the server took {took:?} to end");
            return Err(Failure::new("drain", what));
        }
        if open > 0 {
            return Err(Failure::new(
                "drain",
                format!("{open} connections outlive the server"),
            ));
        }
        Ok(())
    }
}

fn was_let_in(client: &Client<ClientSocket>) -> bool {
    let wire = client.wire.as_ref();
    wire.is_some_and(|wire| wire.socket.was_let_in())
}

fn is_on(client: &Client<ClientSocket>, worker: usize) -> bool {
    let wire = client.wire.as_ref();
    wire.and_then(|wire| wire.socket.poll()) == Some(worker + 1)
}
