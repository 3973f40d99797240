//! The acceptor accepts connections, hands them to the workers, sets the cache's clock, and ends
//! the server.
//!
//! ```text
//!   listeners ──> accept ──> a ticket, or "too many" ──> the workers in turn
//!   each second ──> set the cache's clock; return memory to the system if the limit was lowered
//!               ──> write a copy of the cache if one is due
//!               ──> close connections that make no progress and hold memory that others need
//!   now and then ──> prefault memory before the workers need it
//!   drain requested ──> drain delay ──> close listeners ──> workers finish ──> snapshot ──> end
//! ```

use std::io::{self, ErrorKind, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forerun_cache::Cache;
use forerun_core::sync::thread::JoinHandle;

use crate::address::Protocol;
use crate::auth::UserFile;
use crate::health::Phase;
use crate::log_limit::log_within;
use crate::net::{TlsFiles, retry};
use crate::system::{Listening, Readiness, System, after};

use super::connections::Connections;
use super::linger::RefusedSockets;
use super::server_handle::ServerHandle;
use super::snapshot_writer::SnapshotWriter;
use super::worker_handle::{Message, WorkerHandle};

/// Maximum number of listener events that one poll reports.
pub(crate) const EVENTS: usize = 64;
/// Resolution of the cache's clock.
const TICK: Duration = Duration::from_secs(1);
/// Memory that is returned to the system between two polls.
const SHRINK_BYTES: usize = 8 << 20;
/// The pause after each piece of prefaulted memory. While there is nothing to prefault, it doubles,
/// up to the maximum, within which writers rarely use all that is ready.
const PREFAULT_INTERVAL_MIN: Duration = Duration::from_millis(2);
const PREFAULT_INTERVAL_MAX: Duration = Duration::from_millis(125);
/// How long accepting pauses when the system has no descriptors left.
const PAUSE: Duration = Duration::from_millis(20);
/// Connections accepted from one listener before the next one gets its turn.
const ACCEPTS_PER_TURN: usize = 64;
/// The answer to a connection beyond the limit, in memcached's words.
const TOO_MANY: &[u8] = b"ERROR Too many open connections\r\n";
/// The same for RESP, in the words of Redis.
const TOO_MANY_RESP: &[u8] = b"-ERR max number of clients reached\r\n";

/// The acceptor's state. [`Acceptor::run`] is its thread.
pub(crate) struct Acceptor<S: System> {
    pub(crate) system: S,
    pub(crate) poll: S::Poll,
    pub(crate) listeners: Vec<ListenerState<S::Listener>>,
    pub(crate) workers: Vec<WorkerHandle<S::Socket>>,
    pub(crate) threads: Vec<JoinHandle<io::Result<()>>>,
    pub(crate) connections: Arc<Connections>,
    pub(crate) handle: ServerHandle,
    pub(crate) cache: Arc<Cache>,
    pub(crate) snapshot_writer: Option<SnapshotWriter<S>>,
    pub(crate) tls: Option<Arc<TlsFiles>>,
    pub(crate) users: Option<Arc<UserFile>>,
    /// How long the listeners stay open after a drain was requested.
    pub(crate) drain_delay: Duration,
    /// When that time is over, once a drain was requested.
    pub(crate) drain_at: Option<Instant>,
    pub(crate) drain_timeout: Duration,
    pub(crate) next_worker: usize,
    pub(crate) maintenance: Maintenance,
    /// Connections beyond the limit, which may still read the reason.
    pub(crate) refused: RefusedSockets<S::Socket>,
}

/// Periodic work and its due times.
pub(crate) struct Maintenance {
    next_tick: Instant,
    /// When the next periodic copy of the cache is due.
    next_copy: Option<Instant>,
    /// Whether accepting pauses because the system refuses connections.
    paused: bool,
    /// Whether more memory must be returned to the system.
    shrinks: bool,
    /// The time until memory is prefaulted again.
    prefault_interval: Duration,
}

impl Maintenance {
    /// Creates the schedule. `next_copy` is the time of the first periodic copy.
    pub(crate) fn new(now: Instant, next_copy: Option<Instant>) -> Maintenance {
        Maintenance {
            next_tick: now + TICK,
            next_copy,
            paused: false,
            shrinks: false,
            prefault_interval: PREFAULT_INTERVAL_MAX,
        }
    }
}

/// A listener, its address as text, and whether connections may wait to be accepted.
pub(crate) struct ListenerState<L> {
    pub(crate) listener: L,
    pub(crate) name: Arc<str>,
    pub(crate) ready: bool,
}

impl<S: System> Acceptor<S> {
    /// Accepts connections until a drain is requested, then shuts the server down.
    ///
    /// # Errors
    /// The poll's or a worker's error, or the error of the last snapshot.
    pub(crate) fn run(mut self) -> Result<(), super::ServerError> {
        let served = self.serve();
        self.begin_drain();
        let mut ended = served.map_err(super::ServerError::Io);
        for thread in std::mem::take(&mut self.threads) {
            ended = match thread.join() {
                Ok(done) => ended.and(done.map_err(super::ServerError::Io)),
                Err(_) => Err(super::ServerError::Panic),
            };
        }
        ended.and(self.write_snapshot())
    }

    /// Closes the listeners and tells the workers to drain.
    pub(crate) fn begin_drain(&mut self) {
        self.listeners.clear();
        self.refused.close_all();
        self.connections.closed();
        let deadline = after(self.system.now(), self.drain_timeout);
        for worker in &self.workers {
            worker.send(Message::Drain(deadline));
        }
        let open = self.connections.count();
        tracing::info!(connections = open, "draining");
    }

    /// Writes the snapshot after the workers have ended.
    pub(crate) fn write_snapshot(&self) -> Result<(), super::ServerError> {
        let written = match &self.snapshot_writer {
            Some(snapshot_writer) => snapshot_writer
                .write_final(&self.cache)
                .map_err(super::ServerError::Snapshot),
            None => Ok(()),
        };
        tracing::info!("ended");
        written
    }

    /// Ends the workers of a server that fails to start.
    pub(crate) fn abandon(self) {
        for worker in &self.workers {
            worker.send(Message::Drain(self.system.now()));
        }
        for thread in self.threads {
            // The workers have done nothing yet, so none can have failed.
            let _ = thread.join();
        }
    }

    fn serve(&mut self) -> io::Result<()> {
        while !self.is_drain_due() {
            self.step()?;
        }
        Ok(())
    }

    /// Whether a drain was requested and the drain delay is over.
    pub(crate) fn is_drain_due(&mut self) -> bool {
        if !self.handle.is_drain_requested() {
            return false;
        }
        let now = self.system.now();
        let due = *self.drain_at.get_or_insert_with(|| {
            self.connections.health().enter(Phase::DrainDelay);
            if !self.drain_delay.is_zero() {
                let s = self.drain_delay.as_secs();
                tracing::info!(s, "waits for the drain delay");
            }
            after(now, self.drain_delay)
        });
        now >= due
    }

    /// Polls once, accepts connections, and does the work that is due.
    ///
    /// # Errors
    /// The error of the poll.
    pub(crate) fn step(&mut self) -> io::Result<()> {
        let wait = self.timeout();
        let polled = self.poll.poll(Some(wait), |ready| {
            if let Some(state) = self.listeners.get_mut(ready.token) {
                state.ready = true;
            }
        });
        match polled {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            polled => polled?,
        }
        self.maintenance.paused = self.accept();
        self.refused.close_due(self.system.now());
        self.maintain();
        // Evaluate both: if a copy is requested and another is due, write only one.
        if self.handle.take_snapshot() | self.is_copy_due()
            && let Some(snapshot_writer) = &self.snapshot_writer
        {
            snapshot_writer.write_live(&self.cache);
        }
        if self.handle.take_reload_files() {
            self.reload_files();
        }
        Ok(())
    }

    /// Whether a periodic copy of the cache is due. If so, schedules the next one.
    fn is_copy_due(&mut self) -> bool {
        let now = self.system.now();
        let is_due = self.maintenance.next_copy.is_some_and(|due| now >= due);
        if is_due {
            let snapshot_writer = self.snapshot_writer.as_ref();
            self.maintenance.next_copy = snapshot_writer.and_then(|one| one.next_live(now));
        }
        is_due
    }

    /// Reads the files of users and certificates again. A file that cannot be used changes nothing.
    fn reload_files(&self) {
        if let Some(users) = &self.users {
            match users.reload() {
                Ok(()) => tracing::info!("reloaded the file of users"),
                Err(error) => tracing::error!(%error, "cannot reload the file of users"),
            }
        }
        if let Some(tls) = &self.tls {
            match tls.reload(self.system.now()) {
                Ok(()) => tracing::info!("reloaded the certificates"),
                Err(error) => tracing::error!(%error, "cannot reload the certificates"),
            }
        }
    }

    /// Maximum time that the next poll waits.
    pub(crate) fn timeout(&self) -> Duration {
        let busy = self.listeners.iter().any(|state| state.ready);
        let maintenance = &self.maintenance;
        let until_tick = maintenance
            .next_tick
            .saturating_duration_since(self.system.now());
        let wait = match (busy, maintenance.paused) {
            (true, false) => Duration::ZERO,
            _ if maintenance.paused || maintenance.shrinks => PAUSE.min(until_tick),
            _ => maintenance.prefault_interval.min(until_tick),
        };
        let now = self.system.now();
        let drain = match self.drain_at {
            None => self.handle.is_drain_requested().then_some(Duration::ZERO),
            Some(due) => Some(due.saturating_duration_since(now)),
        };
        let refused = self.refused.timeout(now);
        [Some(wait), drain, refused]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(wait)
    }

    /// Sets the cache's clock, and returns memory to the system or prefaults it.
    fn maintain(&mut self) {
        let now = self.system.now();
        let maintenance = &mut self.maintenance;
        let ticks = now >= maintenance.next_tick;
        if ticks {
            self.system.tick(&self.cache);
            maintenance.next_tick = now + TICK;
        }
        if ticks && self.connections.buffers().shortage(&self.cache).is_some() {
            for worker in &self.workers {
                worker.send(Message::CloseStalled);
            }
        }
        if ticks || maintenance.shrinks {
            maintenance.shrinks = self.cache.shrink(SHRINK_BYTES);
        }
        maintenance.prefault_interval = if !maintenance.shrinks && self.cache.prefault() {
            PREFAULT_INTERVAL_MIN
        } else {
            (2 * maintenance.prefault_interval).min(PREFAULT_INTERVAL_MAX)
        };
    }

    /// Accepts connections from each listener that may have some. Returns true if the system
    /// refuses more for now.
    fn accept(&mut self) -> bool {
        let mut refused = false;
        let now_s = self.connections.seconds(self.system.now());
        for state in &mut self.listeners {
            for _ in 0..ACCEPTS_PER_TURN {
                if !state.ready {
                    break;
                }
                match state.listener.accept() {
                    Ok((mut socket, peer)) => {
                        let protocol = state.listener.protocol();
                        match self.connections.admit(peer, &state.name, now_s) {
                            Some(ticket) => {
                                let worker = self.next_worker % self.workers.len();
                                self.next_worker = worker + 1;
                                let tls = state.listener.speaks_tls();
                                self.workers[worker].send(Message::Adopt {
                                    socket,
                                    ticket,
                                    tls,
                                    protocol,
                                });
                            }
                            None => {
                                // The peer learns the reason only if the socket accepts the text at
                                // once.
                                let text = match protocol {
                                    Protocol::Memcached => TOO_MANY,
                                    Protocol::Resp => TOO_MANY_RESP,
                                };
                                let _ = retry(|| socket.write(text));
                                self.refused.add(socket, self.system.now());
                            }
                        }
                    }
                    Err(error) => match error.kind() {
                        ErrorKind::WouldBlock => state.ready = false,
                        // The client left before it was accepted.
                        ErrorKind::Interrupted | ErrorKind::ConnectionAborted => {}
                        _ => {
                            // Log this only once per pause, even if the pause is extended.
                            if !self.maintenance.paused && !refused {
                                self.connections.paused();
                                log_within!(
                                    warn,
                                    self.connections.log_limits.accept,
                                    now_s,
                                    listener = %state.name,
                                    %error,
                                    "cannot accept connections for now"
                                );
                            }
                            refused = true;
                            break;
                        }
                    },
                }
            }
        }
        refused
    }
}
