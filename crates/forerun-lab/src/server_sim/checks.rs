//! Checks at every step, in addition to the answers: no client waits for long, limits hold, and the
//! clock advances.

use std::fmt;
use std::time::Duration;

use forerun_cache::Cache;
use forerun_server::Protocol;

use super::client::{Client, ClientStage, ConnectionEnd};
use super::net::ClientSocket;
use super::plan::Plan;
use super::system::SimSystem;

/// Turns of its worker within which a connection with pending work must make progress. One would
/// suffice, but up to one poll in ten is interrupted.
const TURNS_MAX: u32 = 12;
/// Memory of a connection's buffers: its input, and a full output plus the largest copied item.
const BUFFER_BYTES_MAX: usize = 640 << 10;
/// An `MGET` passes the mark of a full output by so many bytes, and by the value that it ends with.
const MGET_BYTES: usize = 1 << 20;
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
/// How much longer than the idle timeout a silent connection may stay. The server counts whole
/// seconds, and looks for silent connections once a second.
const IDLE_SLACK: Duration = Duration::from_secs(3);

/// A violation by the server.
#[derive(Clone, Debug)]
pub struct Failure {
    /// One word for the kind of violation. A smaller plan must fail with the same kind.
    pub kind: &'static str,
    pub message: String,
}

impl Failure {
    pub fn new(kind: &'static str, message: impl Into<String>) -> Failure {
        Failure {
            kind,
            message: message.into(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.message)
    }
}

/// The end of a server's service.
#[derive(Clone, Copy, Debug)]
pub struct Drain {
    /// When the server was asked to end.
    pub requested: Duration,
    /// When its last thread ended.
    pub ended: Duration,
    /// How long the process was stopped in between.
    pub paused: Duration,
}

/// The state of one connection.
#[derive(Clone, Copy, Debug, Default)]
struct ConnectionState {
    transferred_bytes: u64,
    last_transfer: Duration,
    /// When the turn began, the server owed the client an answer or had not read everything from
    /// it, and no answer waited for the client to read.
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
pub struct Checks {
    /// The clients' numbers, in the order of `connections`.
    ids: Vec<usize>,
    connections: Vec<ConnectionState>,
    idle_timeout: Duration,
    drain_timeout: Duration,
    turn_bytes_max: u64,
    resp_buffer_bytes_max: usize,
    connection_limit: usize,
    over_limit_since: Option<Duration>,
}

impl Checks {
    pub fn new(plan: &Plan) -> Checks {
        // An output is full at 64 KiB, and the answer that fills it may be long.
        let output = READ_BYTES + plan.max_item_bytes + 1024;
        // Each answer is read and sent in parts; the last one is sent twice in part. TLS records
        // need 2% more.
        let turn = TURN_READS * (READ_BYTES + output) + output;
        let with_tls = turn + turn / 50 + 2 * TLS_BUFFER_BYTES;
        // As many sent bytes as a full output has may still be in front of it. All of it is in one
        // vector, which doubles as it grows.
        let resp_output = 2 * (READ_BYTES + output + MGET_BYTES);
        Checks {
            ids: plan.clients.iter().map(|client| client.id).collect(),
            connections: vec![ConnectionState::default(); plan.clients.len()],
            idle_timeout: Duration::from_secs(plan.idle_timeout_s),
            drain_timeout: Duration::from_secs(plan.drain_timeout_s),
            turn_bytes_max: if plan.listeners.have_tls() {
                with_tls
            } else {
                turn
            } as u64,
            resp_buffer_bytes_max: READ_BYTES + resp_output,
            connection_limit: plan.connection_limit,
            over_limit_since: None,
        }
    }

    /// Called after a turn of the acceptor: the cache's clock must be right, and clients that
    /// connected must be accepted soon.
    pub fn after_acceptor(
        &mut self,
        sim: &SimSystem,
        cache: &Cache,
        clients: &[Client<ClientSocket>],
        drains: bool,
    ) -> Result<(), Failure> {
        if drains {
            return Ok(());
        }
        self.check_clock(sim, cache)?;
        for (connection, client) in self.connections.iter_mut().zip(clients) {
            let waits = client.stage == ClientStage::Open
                && client
                    .wire
                    .as_ref()
                    .is_some_and(|wire| wire.socket.waits_to_be_accepted());
            connection.acceptor_turns = if waits {
                connection.acceptor_turns + 1
            } else {
                0
            };
            if connection.acceptor_turns > ACCEPTOR_TURNS_MAX {
                let id = client.plan.id;
                let message =
                    format!("client {id} waits to be accepted, but the server does not accept it");
                return Err(Failure::new("accept", message));
            }
        }
        Ok(())
    }

    /// The cache's clock must be right.
    pub fn check_clock(&self, sim: &SimSystem, cache: &Cache) -> Result<(), Failure> {
        let (is, should) = (cache.now(), sim.cache_second());
        if is > should || is + 2 < should {
            let message = format!("the cache's clock is at {is} instead of {should}");
            return Err(Failure::new("clock", message));
        }
        Ok(())
    }

    pub fn before_worker(&mut self, number: usize, clients: &[Client<ClientSocket>]) {
        for (connection, client) in self.connections.iter_mut().zip(clients) {
            let Some(wire) = client.wire.as_ref().filter(|_| is_on(client, number)) else {
                continue;
            };
            connection.transferred_bytes = wire.socket.transferred_bytes();
            let has_work = client.is_owed() || wire.socket.unread() > 0;
            connection.waited = has_work && wire.socket.is_read();
        }
    }

    pub fn after_worker(
        &mut self,
        number: usize,
        clients: &[Client<ClientSocket>],
        buffers: &[(Protocol, usize)],
        now: Duration,
        drains: bool,
    ) -> Result<(), Failure> {
        // A worker that learns of the drain in its turn gets another one.
        let turn_bytes_max = self.turn_bytes_max * if drains { 2 } else { 1 };
        for (connection, client) in self.connections.iter_mut().zip(clients) {
            let Some(wire) = &client.wire else { continue };
            if wire.socket.is_dropped() {
                connection.dropped_at.get_or_insert(now);
                continue;
            }
            if !is_on(client, number) {
                continue;
            }
            let id = client.plan.id;
            let transferred_bytes = wire.socket.transferred_bytes() - connection.transferred_bytes;
            if transferred_bytes > 0 || connection.last_transfer.is_zero() {
                connection.last_transfer = now;
            }
            connection.waits = if connection.waited && transferred_bytes == 0 {
                connection.waits + 1
            } else {
                0
            };
            if connection.waits > TURNS_MAX {
                let message = format!("client {id} was passed over {} times", connection.waits);
                return Err(Failure::new("starved", message));
            }
            if transferred_bytes > turn_bytes_max {
                let message = format!("client {id} moved {transferred_bytes} bytes in one turn");
                return Err(Failure::new("turn", message));
            }
        }
        for &(protocol, bytes) in buffers {
            let bytes_max = match protocol {
                Protocol::Resp => self.resp_buffer_bytes_max,
                _ => BUFFER_BYTES_MAX,
            };
            if bytes > bytes_max {
                let message = format!("a connection's buffers take {bytes} of {bytes_max} bytes");
                return Err(Failure::new("buffers", message));
            }
        }
        Ok(())
    }

    pub fn check_memory(&mut self, cache: &Cache, now: Duration) -> Result<(), Failure> {
        let stats = cache.stats();
        if stats.memory_bytes <= stats.limit_bytes {
            self.over_limit_since = None;
            return Ok(());
        }
        let since = *self.over_limit_since.get_or_insert(now);
        if now > since + SHRINK_TIME {
            let (held, limit) = (stats.memory_bytes, stats.limit_bytes);
            let message = format!("the cache holds {held} bytes of {limit}");
            return Err(Failure::new("memory", message));
        }
        Ok(())
    }

    /// Called when no thread can do anything.
    pub fn check_stuck<'c>(
        &mut self,
        clients: impl Iterator<Item = &'c Client<ClientSocket>>,
        now: Duration,
    ) -> Result<(), Failure> {
        for client in clients {
            let Some(wire) = client.wire.as_ref() else {
                continue;
            };
            let id = client.plan.id;
            let Some(index) = self.index_of(id) else {
                continue;
            };
            let connection = &mut self.connections[index];
            if wire.socket.is_dropped() {
                continue;
            }
            if wire.socket.poll().is_none() {
                continue;
            }
            if client.stage == ClientStage::Ended(ConnectionEnd::Reset) {
                return Err(Failure::new(
                    "kept",
                    format!("client {id} is gone, but its connection is kept"),
                ));
            }
            if client.is_owed() && wire.socket.is_read() {
                let message = format!(
                    "client {id} waits for {} answers{}, but the server waits for an event that \
                     never comes",
                    client.owed(),
                    if client.waits_for_end() {
                        " and the end"
                    } else {
                        ""
                    },
                );
                return Err(Failure::new("stuck", message));
            }
            let unread = wire.socket.unread();
            if unread > 0 && wire.socket.is_read() {
                let message = format!(
                    "the server has left {unread} bytes of client {id} unread and waits for an \
                     event that never comes"
                );
                return Err(Failure::new("unread", message));
            }
            let silent = now.saturating_sub(connection.last_transfer);
            if !self.idle_timeout.is_zero()
                && silent > self.idle_timeout + Duration::from_secs(4)
                && connection.quiet > 4
            {
                let message =
                    format!("client {id} has been silent for {silent:?} and is still there");
                return Err(Failure::new("idle", message));
            }
            connection.quiet = if silent > self.idle_timeout + Duration::from_secs(2) {
                connection.quiet + 1
            } else {
                0
            };
        }
        Ok(())
    }

    pub fn begin_drain(&mut self, clients: &[Client<ClientSocket>]) {
        for (connection, client) in self.connections.iter_mut().zip(clients) {
            let accepted = client
                .wire
                .as_ref()
                .is_some_and(|wire| wire.socket.poll().is_some());
            connection.owed_at_drain = if accepted { client.owed() } else { 0 };
            connection.answered_at_drain = client.answered;
        }
    }

    fn index_of(&self, id: usize) -> Option<usize> {
        self.ids.iter().position(|&one| one == id)
    }

    /// Called when a connection has ended.
    pub fn connection_ended(
        &mut self,
        client: &Client<ClientSocket>,
        how: ConnectionEnd,
        drain_requested: Option<Duration>,
    ) -> Result<(), Failure> {
        let id = client.plan.id;
        let Some(index) = self.index_of(id) else {
            return Ok(());
        };
        let connection = self.connections[index];
        match how {
            ConnectionEnd::Reset | ConnectionEnd::Refused => Ok(()),
            // The socket does not always have space for the text of the refusal.
            ConnectionEnd::LimitReached | ConnectionEnd::Closed
                if others_when_refused(client) >= Some(self.connection_limit) =>
            {
                Ok(())
            }
            ConnectionEnd::LimitReached => Err(Failure::new(
                "refused",
                format!("client {id} was refused below the limit"),
            )),
            ConnectionEnd::Closed if client.was_finished || client.has_sent_raw() => Ok(()),
            ConnectionEnd::Closed => {
                let dropped_at = connection.dropped_at.unwrap_or(connection.last_transfer);
                let silent = dropped_at.saturating_sub(connection.last_transfer);
                if !self.idle_timeout.is_zero() && silent > self.idle_timeout {
                    return Ok(());
                }
                let Some(drain_requested) = drain_requested else {
                    let message = format!(
                        "client {id} was closed with {} answers missing",
                        client.unanswered
                    );
                    return Err(Failure::new("closed", message));
                };
                let answered = client.answered - connection.answered_at_drain;
                let in_time = dropped_at < drain_requested + self.drain_timeout;
                if in_time && answered < connection.owed_at_drain as u64 {
                    let message = format!(
                        "client {id} was owed {} answers when the server was asked to end, but got \
                         {answered}",
                        connection.owed_at_drain
                    );
                    return Err(Failure::new("cut off", message));
                }
                Ok(())
            }
        }
    }

    /// Called when all threads of the server have ended. A drain ends at its timeout, and earlier
    /// if all connections have been silent for the idle timeout.
    pub fn check_drained(&self, drain: Drain, open: usize) -> Result<(), Failure> {
        let Drain {
            requested,
            ended,
            paused,
        } = drain;
        let took = (ended - requested).saturating_sub(paused);
        if took > self.drain_timeout + DRAIN_SLACK {
            let message = format!("the server took {took:?} to end");
            return Err(Failure::new("drain", message));
        }
        let last_moved = self
            .connections
            .iter()
            .map(|connection| connection.last_transfer)
            .max();
        let silent_since = last_moved.unwrap_or_default().max(requested);
        let silent = (ended - silent_since).saturating_sub(paused);
        if !self.idle_timeout.is_zero() && silent > self.idle_timeout + IDLE_SLACK {
            let message = format!("every client was silent for {silent:?} before the server ended");
            return Err(Failure::new("drain", message));
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

fn others_when_refused(client: &Client<ClientSocket>) -> Option<usize> {
    let wire = client.wire.as_ref();
    wire.and_then(|wire| wire.socket.others_when_refused())
}

fn is_on(client: &Client<ClientSocket>, worker: usize) -> bool {
    let wire = client.wire.as_ref();
    wire.and_then(|wire| wire.socket.poll()) == Some(worker + 1)
}

#[cfg(test)]
mod tests {
    use forerun_server::Listen;
    use forerun_server::simulation::{Listening, Readiness};

    use super::super::client::ClientView;
    use super::super::model::{Model, Moment};
    use super::super::net::{Net, SimSocket};
    use super::super::plan::{End, Op};
    use super::super::wire::Wire;
    use super::*;

    /// A worker with one connection, whose client has sent a request. The socket is the worker's.
    fn one_request() -> (Checks, Vec<Client<ClientSocket>>, SimSocket) {
        let mut plan = Plan::draw(0);
        plan.clients.truncate(1);
        let client = &mut plan.clients[0];
        client.ops = vec![Op::Noop];
        client.end = End::Stay;
        client.capacities = (1000, 1000);
        let net = Net::new(0, 0);
        let (acceptor, _) = net.poll();
        let (worker, _) = net.poll();
        let mut listener = net.listener(&Listen::unix("/plain", 0o700));
        acceptor
            .register_listener(&mut listener, 0)
            .expect("it is simulated");
        let socket = net
            .connect(false, Protocol::Memcached, client.capacities, client.style)
            .expect("a listener");
        let (mut accepted, _) = listener.accept().expect("a client waits");
        worker.register(&mut accepted, 0).expect("it is simulated");
        let mut client = Client::new(client.clone(), 0);
        client.connect(Wire::new(socket, None).expect("no TLS"));
        let env = ClientView {
            now: Duration::ZERO,
            moment: Moment::default(),
            unix_s: 0,
        };
        while client.owed() == 0 {
            client
                .send(env, &mut Model::default())
                .expect("there is space");
        }
        (Checks::new(&plan), vec![client], accepted)
    }

    fn step(checks: &mut Checks, clients: &[Client<ClientSocket>]) -> Result<(), Failure> {
        checks.before_worker(0, clients);
        checks.after_worker(0, clients, &[], Duration::from_secs(1), false)
    }

    #[test]
    fn a_connection_that_is_passed_over_is_found_after_twelve_steps_of_its_worker() {
        let (mut checks, clients, _socket) = one_request();
        for _ in 0..TURNS_MAX {
            step(&mut checks, &clients).expect("it may wait for so long");
        }
        let failure = step(&mut checks, &clients).expect_err("it waits for too long");
        assert_eq!(failure.kind, "starved");
    }

    #[test]
    fn a_connection_that_makes_progress_does_not_wait() {
        use std::io::Read;
        let (mut checks, clients, mut socket) = one_request();
        for _ in 0..3 * TURNS_MAX {
            checks.before_worker(0, &clients);
            // The worker reads one byte of the request at a time and sends nothing.
            let read = socket.read(&mut [0]).is_ok_and(|count| count == 1);
            let after = checks.after_worker(0, &clients, &[], Duration::from_secs(1), false);
            after.expect("it makes progress, or it did so a moment ago");
            if !read {
                break;
            }
        }
    }

    #[test]
    fn the_buffers_of_a_client_of_resp_may_hold_an_mget_more() {
        let plan = Plan::draw(0);
        let mut checks = Checks::new(&plan);
        let mut check = |protocol, bytes| {
            let after = checks.after_worker(0, &[], &[(protocol, bytes)], Duration::ZERO, false);
            after.map_err(|failure| failure.kind)
        };
        // The input; then twice what was sent, what waits, the answer, its last value and heads.
        let resp_max = (64 << 10) + 2 * ((128 << 10) + (1 << 20) + plan.max_item_bytes + 1024);
        for (protocol, bytes_max) in [
            (Protocol::Memcached, BUFFER_BYTES_MAX),
            (Protocol::Resp, resp_max),
        ] {
            assert_eq!(check(protocol, bytes_max), Ok(()));
            assert_eq!(check(protocol, bytes_max + 1), Err("buffers"));
        }
    }

    #[test]
    fn a_request_that_nobody_will_answer_is_found_when_no_thread_is_busy() {
        let (mut checks, clients, mut socket) = one_request();
        let stuck = checks.check_stuck(clients.iter(), Duration::from_secs(1));
        assert_eq!(stuck.expect_err("a request is unanswered").kind, "stuck");
        use std::io::Write;
        socket.write_all(b"MN\r\n").expect("there is space");
        let stuck = checks.check_stuck(clients.iter(), Duration::from_secs(1));
        stuck.expect("the client has not read its answer yet");
    }
}
