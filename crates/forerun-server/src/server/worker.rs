//! A worker: one thread, one poll, and the connections assigned to it.
//!
//! ```text
//!   acceptor ── Message ──> inbox ─┐
//!                                  v
//!   a step:  poll ──> one turn for each connection that the poll reports or that has more to do:
//!                       read, answer, write                              (bounded, never blocks)
//! ```

use std::collections::VecDeque;
use std::io;
use std::mem::take;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forerun_core::sync::mpsc::{Receiver, channel};
use slab::Slab;

use crate::address::Protocol;
use crate::auth::UserFile;
use crate::latency::Progress;
use crate::log_limit::log_within;
use crate::net::{TlsFiles, Transport};
use crate::resp::transaction_locks::WorkerLock;
use crate::session::Context;
use crate::shared::Shared;
use crate::system::{Readiness, System, WAKE};
use crate::watch::{WatchKinds, Watchers};
use crate::watch_lines::CloseReason;

use super::buffers::{READER_STALL_S, STALL_S, Spare};
use super::connection::Connection;
use super::connections::{Connections, Ticket};
use super::handshakes::Handshakes;
use super::linger::LINGER;
use super::queued::Queued;
use super::server_handle::ServerHandle;
use super::turn::{TurnContext, TurnResult};
use super::worker_handle::{Message, WorkerHandle};

/// Maximum number of connections that one poll reports. The next poll reports the others.
const EVENTS: usize = 1024;
/// How often the worker checks whether the buffers have room for waiting connections.
const PAUSE: Duration = Duration::from_millis(10);
/// How often the worker checks for idle connections.
const SWEEP: Duration = Duration::from_secs(1);
/// How often the worker sets the cache's clock while the server drains.
const TICK: Duration = Duration::from_secs(1);

/// A connection whose client was refused.
struct Lingering {
    until: Instant,
    key: usize,
    /// The connection's number, because another one may have got the key.
    number: u64,
}

/// State that all workers need.
#[derive(Clone)]
pub(crate) struct Setup<S> {
    pub(crate) system: S,
    pub(crate) shared: Arc<Shared>,
    pub(crate) connections: Arc<Connections>,
    pub(crate) handle: ServerHandle,
    pub(crate) tls: Option<Arc<TlsFiles>>,
    pub(crate) users: Option<Arc<UserFile>>,
    pub(crate) idle_timeout_s: u64,
    pub(crate) handshake_timeout_s: u64,
}

/// A worker's state. [`Worker::run`] is its thread.
pub(crate) struct Worker<S: System> {
    poll: S::Poll,
    inbox: Receiver<Message<S::Socket>>,
    setup: Setup<S>,
    context: Context,
    spare: Spare,
    connections: Slab<Connection<S::Socket>>,
    /// The connections that this step serves. Empty between steps.
    due: Vec<usize>,
    /// Connections that have more to do than one turn allows. The next step serves them.
    again: Vec<usize>,
    /// Connections that are not read until the buffers have room.
    paused: Vec<usize>,
    /// Paused connections that the poll of this step has reported.
    heard: Vec<usize>,
    /// Connections that are watchers.
    watching: Vec<usize>,
    /// Connections whose clients were refused, and when each is closed at the latest, in order. One
    /// that has ended earlier stays in the list until then.
    lingering: VecDeque<Lingering>,
    handshakes: Handshakes,
    /// Set by a drain: at this time the worker closes all connections, even busy ones.
    deadline: Option<Instant>,
    swept: Instant,
    /// When the last poll returned: the requests of this step have waited since then.
    polled: Instant,
    /// When this worker last set the cache's clock.
    ticked: Instant,
}

impl<S: System> Worker<S> {
    /// Creates a worker and the acceptor's handle to it.
    ///
    /// # Errors
    /// The system gives no poll.
    pub(crate) fn new(
        setup: Setup<S>,
        lock: Option<WorkerLock>,
    ) -> io::Result<(Worker<S>, WorkerHandle<S::Socket>)> {
        let (poll, waker) = setup.system.poll(EVENTS)?;
        let (sender, inbox) = channel();
        let mut context = Context::new(setup.shared.clone());
        context.waker = Some(waker.clone());
        context.users = setup.users.clone();
        context.lock = lock;
        let worker = Worker {
            poll,
            inbox,
            swept: setup.system.now(),
            polled: setup.system.now(),
            ticked: setup.system.now(),
            setup,
            context,
            spare: Spare::default(),
            connections: Slab::new(),
            due: Vec::with_capacity(EVENTS),
            again: Vec::new(),
            paused: Vec::new(),
            heard: Vec::new(),
            watching: Vec::new(),
            lingering: VecDeque::new(),
            handshakes: Handshakes::default(),
            deadline: None,
        };
        let handle = WorkerHandle::new(sender, waker);
        Ok((worker, handle))
    }

    /// Serves connections until a requested drain is complete.
    ///
    /// # Errors
    /// The error of the poll. No connection can cause one.
    pub(crate) fn run(mut self) -> io::Result<()> {
        while !self.is_done() {
            self.step()?;
        }
        Ok(())
    }

    /// Polls once and gives a turn to each connection that has something to do.
    ///
    /// # Errors
    /// The error of the poll. No connection can cause one.
    pub(crate) fn step(&mut self) -> io::Result<()> {
        let timeout = self.timeout();
        let mut due = take(&mut self.due);
        due.append(&mut self.again);
        if !self.setup.connections.buffers().is_crowded() {
            due.append(&mut self.paused);
        }
        let mut woken = false;
        let polled = self.poll.poll(timeout, |ready| {
            if ready.token == WAKE {
                woken = true;
            } else if let Some(connection) = self.connections.get_mut(ready.token)
                && connection.note_ready(ready)
            {
                match connection.queued {
                    Queued::No => {
                        connection.queued = Queued::ForTurn;
                        due.push(ready.token);
                    }
                    Queued::ForTurn => {}
                    Queued::Paused => self.heard.push(ready.token),
                }
            }
        });
        match polled {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            polled => polled?,
        }
        self.polled = self.setup.system.now();
        if self.deadline.is_some() {
            self.tick();
        }
        self.recount();
        for key in due.drain(..) {
            if let Some(connection) = self.connections.get_mut(key) {
                connection.queued = Queued::No;
            }
            self.give_turn(key, Connection::turn);
        }
        self.due = due;
        if woken {
            self.take_messages();
            for at in 0..self.watching.len() {
                self.queue(self.watching[at]);
            }
        }
        self.sweep();
        self.close_lingering();
        self.close_at_deadline();
        Ok(())
    }

    /// Whether a requested drain is complete.
    pub(crate) fn is_done(&self) -> bool {
        self.deadline.is_some() && self.connections.is_empty()
    }

    /// Whether it drains.
    #[cfg(feature = "simulation")]
    pub(crate) fn is_draining(&self) -> bool {
        self.deadline.is_some()
    }

    /// Maximum time that the next poll waits.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        if !self.again.is_empty() {
            return Some(Duration::ZERO);
        }
        let now = self.setup.system.now();
        let paused = (!self.paused.is_empty()).then_some(PAUSE);
        let drain = self
            .deadline
            .map(|deadline| deadline.saturating_duration_since(now));
        let linger = self
            .lingering
            .front()
            .map(|one| one.until.saturating_duration_since(now));
        let is_idle_limited = self.setup.idle_timeout_s > 0 && !self.connections.is_empty();
        let sweeps = (is_idle_limited || !self.handshakes.is_empty()).then_some(SWEEP);
        [drain, sweeps, paused, linger].into_iter().flatten().min()
    }

    /// Gives a connection a turn, which is a call of `serve`, and acts on its result.
    fn give_turn(
        &mut self,
        key: usize,
        serve: fn(&mut Connection<S::Socket>, &mut TurnContext<'_>) -> TurnResult,
    ) {
        let now_s = self.now_s();
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        let held_bytes = connection.ticket.held().bytes();
        let mut turn = TurnContext {
            context: &mut self.context,
            users: self.setup.users.as_deref(),
            spare: &mut self.spare,
            now_s,
            is_draining: self.deadline.is_some(),
        };
        let before = Progress::of(turn.context.counters());
        let result = serve(connection, &mut turn);
        let now = Progress::of(self.context.counters());
        if let Some(requests) = now.answered_since(before) {
            let took = self
                .setup
                .system
                .now()
                .saturating_duration_since(self.polled);
            self.setup.shared.latencies.record(requests, took);
        }
        if connection.is_watching() && !self.watching.contains(&key) {
            self.watching.push(key);
        }
        let held = connection.ticket.held();
        if held.bytes() > held_bytes
            && self.deadline.is_none()
            && self.setup.connections.buffers().is_full()
        {
            return self.close_for_memory(key);
        }
        match result {
            TurnResult::Wait => {}
            TurnResult::Again => self.queue(key),
            TurnResult::Pause => self.pause(key),
            TurnResult::OutOfMemory => self.make_room(key),
            TurnResult::Linger => {
                let number = connection.ticket.number();
                let until = self.setup.system.now() + LINGER;
                self.lingering.push_back(Lingering { until, key, number });
                self.queue(key);
            }
            TurnResult::Close => {
                let reason = connection.close_reason();
                self.close(key, reason);
            }
            TurnResult::Shutdown => {
                self.queue(key);
                self.setup.handle.drain();
            }
        }
    }

    /// Gives a connection a turn in the next step, unless it has one already. A busy connection
    /// gets as many turns as any other.
    fn queue(&mut self, key: usize) {
        if let Some(connection) = self.connections.get_mut(key)
            && connection.queued == Queued::No
        {
            connection.queued = Queued::ForTurn;
            self.again.push(key);
        }
    }

    /// Gives a connection its next turn once the buffers have room.
    fn pause(&mut self, key: usize) {
        if let Some(connection) = self.connections.get_mut(key)
            && connection.queued == Queued::No
        {
            connection.queued = Queued::Paused;
            self.paused.push(key);
            self.setup.connections.buffers().paused();
        }
    }

    /// Counts what has arrived for paused connections. At the limit, those that hold more than
    /// before are closed, as after a turn.
    fn recount(&mut self) {
        while let Some(key) = self.heard.pop() {
            if let Some(connection) = self.connections.get_mut(key)
                && connection.recount()
                && self.deadline.is_none()
                && self.setup.connections.buffers().is_full()
            {
                self.close_for_memory(key);
            }
        }
    }

    /// Closes connections that hold memory and have made no progress for a while, until there is
    /// room. Begins with those that have made no progress for the longest time.
    fn close_stalled(&mut self) {
        let now_s = self.now_s();
        let mut stalled: Vec<(u64, usize)> = self
            .connections
            .iter()
            .filter(|(_, connection)| connection.holds_memory())
            .map(|(key, connection)| (connection.progress_s(), key))
            .filter(|(progress_s, _)| now_s.saturating_sub(*progress_s) > STALL_S)
            .collect();
        stalled.sort_unstable();
        for (_, key) in stalled {
            let setup = &self.setup;
            let scarce = setup.connections.buffers().shortage(&setup.shared.cache);
            if !scarce.is_some() {
                break;
            }
            // To close the others would give nothing back that is scarce.
            if self
                .connections
                .get(key)
                .is_some_and(|one| one.holds(scarce))
            {
                self.close_for_memory(key);
            }
        }
    }

    /// Makes room for the large values of a connection that has to wait for its reader: closes the
    /// connection that keeps others from memory for the longest time. Without one, closes this one.
    fn make_room(&mut self, key: usize) {
        let now_s = self.now_s();
        let stalled = |connection: &Connection<S::Socket>| {
            connection.has_full_output()
                && now_s.saturating_sub(connection.progress_s()) > READER_STALL_S
        };
        let longest = self
            .connections
            .iter()
            .filter(|(other, connection)| *other != key && stalled(connection))
            .min_by_key(|(_, connection)| connection.progress_s())
            .map(|(other, _)| other);
        self.close_for_memory(longest.unwrap_or(key));
        self.queue(key);
    }

    /// Closes a connection because memory is short.
    fn close_for_memory(&mut self, key: usize) {
        if let Some(connection) = self.connections.get(key) {
            let connections = &self.setup.connections;
            log_within!(
                warn,
                connections.log_limits.memory,
                self.now_s(),
                peer = %connection.ticket.peer(),
                "closed a connection because the memory of connections is at its limit"
            );
            connections.buffers().closed(connection.has_answers());
        }
        self.close(key, CloseReason::Error);
    }

    fn close(&mut self, key: usize, reason: CloseReason) {
        self.paused.retain(|&paused| paused != key);
        self.watching.retain(|&watching| watching != key);
        if let Some(mut connection) = self.connections.try_remove(key) {
            tracing::debug!(peer = %connection.ticket.peer(), "closes a connection");
            if let Some(watchers) = self.connection_watchers() {
                let ticket = &connection.ticket;
                watchers.log_closed(ticket.number(), ticket.peer(), reason);
            }
            connection.leave();
            // This fails for a socket that is already broken. Dropping the socket also removes it
            // from the poll.
            let _ = self.poll.deregister(connection.socket());
        }
    }

    /// The watchers, if one of them wants to know of connections.
    fn connection_watchers(&self) -> Option<&Watchers> {
        let watchers = &*self.setup.shared.watchers;
        watchers
            .is_watched(WatchKinds::CONNECTIONS)
            .then_some(watchers)
    }

    /// Closes the refused connections that have had their time.
    fn close_lingering(&mut self) {
        while let Some(&Lingering { until, key, number }) = self.lingering.front()
            && self.setup.system.now() >= until
        {
            self.lingering.pop_front();
            let connection = self.connections.get(key);
            if connection.is_some_and(|connection| connection.ticket.number() == number) {
                self.close(key, CloseReason::Error);
            }
        }
    }

    fn take_messages(&mut self) {
        while let Ok(message) = self.inbox.try_recv() {
            match message {
                Message::Adopt {
                    socket,
                    ticket,
                    tls,
                    protocol,
                } => {
                    if let Err(error) = self.adopt(socket, ticket, tls, protocol) {
                        let lost = &self.setup.connections.log_limits.lost;
                        log_within!(warn, lost, self.now_s(), %error, "a new connection was lost");
                    }
                }
                Message::CloseStalled => self.close_stalled(),
                Message::Drain(deadline) => {
                    self.again.append(&mut self.paused);
                    self.deadline = Some(deadline);
                    // The acceptor may have set the clock long ago if the process was stopped.
                    self.tick();
                    let keys: Vec<usize> = self.connections.iter().map(|(key, _)| key).collect();
                    for key in keys {
                        self.give_turn(key, Connection::drain);
                    }
                }
            }
        }
    }

    /// Takes over a connection that the acceptor has accepted.
    fn adopt(
        &mut self,
        socket: S::Socket,
        mut ticket: Ticket,
        tls: bool,
        protocol: Protocol,
    ) -> io::Result<()> {
        if self.deadline.is_some() {
            return Ok(());
        }
        let mut transport = match &self.setup.tls {
            Some(files) if tls => {
                Transport::tls(socket, files.config()).map_err(io::Error::other)?
            }
            _ => Transport::plain(socket),
        };
        ticket.occupy(size_of::<Connection<S::Socket>>() + transport.tls_bytes());
        let opened_s = self.now_s();
        let entry = self.connections.vacant_entry();
        let key = entry.key();
        self.poll.register(transport.socket(), key)?;
        let authenticates = self.setup.users.is_some();
        tracing::debug!(peer = %ticket.peer(), tls, "opened a connection");
        let connection = Connection::new(transport, ticket, protocol, authenticates);
        if self.setup.handshake_timeout_s > 0 && connection.is_handshaking() {
            self.handshakes
                .add(key, connection.ticket.number(), opened_s);
        }
        entry.insert(connection);
        if let Some(watchers) = self.connection_watchers() {
            let ticket = &self.connections[key].ticket;
            watchers.log_opened(ticket.number(), ticket.peer());
        }
        Ok(())
    }

    /// What each client speaks, and the memory of its connection's own buffers.
    #[cfg(feature = "simulation")]
    pub(crate) fn buffer_bytes(&self) -> impl Iterator<Item = (Protocol, usize)> {
        self.connections
            .iter()
            .map(|(_, connection)| connection.buffer_bytes())
    }

    /// Sets the cache's clock. No other thread does so while the server drains.
    fn tick(&mut self) {
        let now = self.setup.system.now();
        if now.saturating_duration_since(self.ticked) >= TICK {
            self.ticked = now;
            self.setup.system.tick(&self.setup.shared.cache);
        }
    }

    /// Seconds on the server's clock, as of the last poll. A step is short, and reading the clock
    /// for each of its turns would cost more than it tells.
    fn now_s(&self) -> u64 {
        self.setup.connections.seconds(self.polled)
    }

    /// Closes the remaining connections when the drain timeout has passed.
    fn close_at_deadline(&mut self) {
        let Some(deadline) = self.deadline else {
            return;
        };
        if self.setup.system.now() >= deadline {
            let keys: Vec<usize> = self.connections.iter().map(|(key, _)| key).collect();
            for key in keys {
                self.close(key, CloseReason::Shutdown);
            }
        }
    }

    /// Closes the connections whose handshake has taken too long, and forgets those that have
    /// completed it.
    fn close_late_handshakes(&mut self) {
        let now_s = self.now_s();
        let opened_by_s = now_s.checked_sub(self.setup.handshake_timeout_s);
        let open = &self.connections;
        let late = self.handshakes.take_late(opened_by_s, |key, number| {
            let connection = open.get(key);
            connection.is_some_and(|one| one.ticket.number() == number && one.is_handshaking())
        });
        for key in late {
            let connections = &self.setup.connections;
            connections.handshake_timed_out();
            log_within!(
                warn,
                connections.log_limits.handshake_timeout,
                now_s,
                peer = %self.connections[key].ticket.peer(),
                "closed a connection that did not complete TLS or authentication in time"
            );
            self.close(key, CloseReason::Idle);
        }
    }

    /// Closes the connections that have been idle, or in their handshake, for too long.
    fn sweep(&mut self) {
        let limit_s = self.setup.idle_timeout_s;
        if limit_s == 0 && self.handshakes.is_empty() {
            return;
        }
        let now = self.setup.system.now();
        if now.saturating_duration_since(self.swept) < SWEEP {
            return;
        }
        self.swept = now;
        self.close_late_handshakes();
        if limit_s == 0 {
            return;
        }
        let now_s = self.now_s();
        let silent: Vec<usize> = self
            .connections
            .iter()
            .filter(|(_, connection)| {
                now_s.saturating_sub(connection.ticket.last_heard_s()) > limit_s
                    && !connection.is_watching()
            })
            .map(|(key, _)| key)
            .collect();
        for key in silent {
            self.setup.connections.kicked();
            self.close(key, CloseReason::Idle);
        }
    }
}

#[cfg(test)]
#[path = "worker_tests.rs"]
mod tests;
