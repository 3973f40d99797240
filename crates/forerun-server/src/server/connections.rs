//! The open connections: counts for `stats` and metrics, and a list for `stats conns`.
//!
//! ```text
//!   acceptor ── admit ──> Ticket ── travels with the connection to its worker; dropped with it
//!                           └ Arc<ConnectionInfo>  peer, since, last command: readable from any thread
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use forerun_core::sync::{Mutex, MutexGuard, PoisonError};

use crate::address::Peer;
use crate::health::{Health, Phase};
use crate::log_limit::LogLimit;
use crate::shared::ConnectionStats;

use super::buffers::{BufferMemory, Buffers};

/// The part of a connection's state that other threads can read.
#[derive(Debug)]
struct ConnectionInfo {
    peer: Peer,
    listener: Arc<str>,
    /// When it was admitted, in seconds on the server's clock.
    since_s: u64,
    /// The memory of its buffers.
    input_bytes: AtomicUsize,
    output_bytes: AtomicUsize,
    /// Time of the last input from the client, in seconds on the server's clock.
    last_heard_s: AtomicU64,
    /// A [`ConnectionState`].
    state: AtomicU8,
}

/// What a connection is waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ConnectionState {
    /// The next command.
    Idle,
    /// The rest of a data block or of a long line.
    ReceivesCommand,
    /// The client, which has yet to read its answers.
    WaitsForReader,
}

/// Memcached's names of the [`ConnectionState`]s, in their order.
const STATE_NAMES: [&str; 3] = ["conn_read", "conn_nread", "conn_mwrite"];

/// Limits on lines of the log that clients can cause.
#[derive(Debug, Default)]
pub(crate) struct LogLimits {
    /// Clients that speak the binary protocol.
    pub(crate) binary: LogLimit,
    /// Handshakes of TLS that were refused.
    pub(crate) tls: LogLimit,
    /// Connections that were closed because their handshake took too long.
    pub(crate) handshake_timeout: LogLimit,
    /// Connections that were closed for lack of memory.
    pub(crate) memory: LogLimit,
    /// Connections that could not be set up.
    pub(crate) lost: LogLimit,
    /// Pauses in accepting.
    pub(crate) accept: LogLimit,
    /// The command `refresh_certs`.
    pub(crate) certificates: LogLimit,
    /// The command `lru_crawler crawl`.
    pub(crate) crawl: LogLimit,
}

/// All connections of a server.
#[derive(Debug)]
pub(crate) struct Connections {
    started: Instant,
    limit: usize,
    now: AtomicUsize,
    bytes: AtomicU64,
    total: AtomicU64,
    rejected: AtomicU64,
    idle_kicks: AtomicU64,
    yields: AtomicU64,
    accept_pauses: AtomicU64,
    handshake_timeouts: AtomicU64,
    tls_handshake_errors: AtomicU64,
    health: Arc<Health>,
    buffers: Buffers,
    /// Limits on lines of the log.
    pub(crate) log_limits: LogLimits,
    infos: Mutex<BTreeMap<u64, Arc<ConnectionInfo>>>,
    /// The addresses of the listeners while they are open.
    listeners: Mutex<Vec<Arc<str>>>,
    /// The number of the first connection. The listeners have the numbers before it.
    first: AtomicU64,
}

/// A slot for one connection. Dropping the ticket frees the slot.
#[derive(Debug)]
pub(crate) struct Ticket {
    id: u64,
    info: Arc<ConnectionInfo>,
    held: BufferMemory,
    /// Memory of the connection itself.
    own_bytes: u64,
    connections: Arc<Connections>,
}

// All counts here are statistics, and only one thread admits connections and compares with the
// limit. The counts order nothing, so every access is relaxed.
const RELAXED: Ordering = Ordering::Relaxed;

impl Connections {
    pub(crate) fn new(
        limit: usize,
        buffers: Buffers,
        health: Arc<Health>,
        now: Instant,
    ) -> Connections {
        Connections {
            started: now,
            limit,
            now: AtomicUsize::new(0),
            bytes: AtomicU64::new(0),
            total: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            idle_kicks: AtomicU64::new(0),
            yields: AtomicU64::new(0),
            accept_pauses: AtomicU64::new(0),
            handshake_timeouts: AtomicU64::new(0),
            tls_handshake_errors: AtomicU64::new(0),
            health,
            buffers,
            log_limits: LogLimits::default(),
            infos: Mutex::default(),
            listeners: Mutex::default(),
            first: AtomicU64::new(0),
        }
    }

    /// Admits a new connection unless the limit is reached.
    pub(crate) fn admit(
        self: &Arc<Self>,
        peer: Peer,
        listener: &Arc<str>,
        now_s: u64,
    ) -> Option<Ticket> {
        if self.now.load(RELAXED) >= self.limit {
            self.rejected.fetch_add(1, RELAXED);
            return None;
        }
        self.now.fetch_add(1, RELAXED);
        let id = self.first.load(RELAXED) + self.total.fetch_add(1, RELAXED);
        let info = Arc::new(ConnectionInfo {
            peer,
            listener: listener.clone(),
            since_s: now_s,
            input_bytes: AtomicUsize::new(0),
            output_bytes: AtomicUsize::new(0),
            last_heard_s: AtomicU64::new(now_s),
            state: AtomicU8::new(ConnectionState::Idle as u8),
        });
        self.infos().insert(id, info.clone());
        Some(Ticket {
            id,
            info,
            held: BufferMemory::default(),
            own_bytes: 0,
            connections: self.clone(),
        })
    }

    /// Seconds since the server started.
    pub(crate) fn seconds(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.started).as_secs()
    }

    /// The number of open connections.
    pub(crate) fn count(&self) -> usize {
        self.now.load(RELAXED)
    }

    /// Counts a pause in accepting because the system had no descriptors left.
    pub(crate) fn paused(&self) {
        self.accept_pauses.fetch_add(1, RELAXED);
    }

    /// Records the addresses of the listeners.
    pub(crate) fn opened(&self, listeners: Vec<Arc<str>>) {
        self.first.store(listeners.len() as u64, RELAXED);
        *self.listeners() = listeners;
    }

    /// Records that the listeners are closed.
    pub(crate) fn closed(&self) {
        self.listeners().clear();
        self.health.enter(Phase::Draining);
    }

    /// The phase of the server.
    pub(crate) fn health(&self) -> &Health {
        &self.health
    }

    /// Counts a turn that ended with more to do, so that other connections could go first.
    pub(crate) fn yielded(&self) {
        self.yields.fetch_add(1, RELAXED);
    }

    /// Counts a connection that was closed because it was idle.
    pub(crate) fn kicked(&self) {
        self.idle_kicks.fetch_add(1, RELAXED);
    }

    /// Counts a connection that was closed because its handshake took too long.
    pub(crate) fn handshake_timed_out(&self) {
        self.handshake_timeouts.fetch_add(1, RELAXED);
    }

    /// Counts a TLS handshake that was refused.
    pub(crate) fn tls_refused(&self) {
        self.tls_handshake_errors.fetch_add(1, RELAXED);
    }

    pub(crate) fn stats(&self) -> ConnectionStats {
        let now = self.now.load(RELAXED) as u64;
        let mut stats = ConnectionStats {
            curr_connections: now,
            total_connections: self.total.load(RELAXED),
            rejected_connections: self.rejected.load(RELAXED),
            connection_structures: now,
            connection_bytes: self.bytes.load(RELAXED),
            conn_yields: self.yields.load(RELAXED),
            idle_kicks: self.idle_kicks.load(RELAXED),
            listen_disabled_num: self.accept_pauses.load(RELAXED),
            handshake_timeouts: self.handshake_timeouts.load(RELAXED),
            ssl_handshake_errors: self.tls_handshake_errors.load(RELAXED),
            accepting_conns: self.health.is_accepting(),
            ..ConnectionStats::default()
        };
        self.buffers.describe(&mut stats);
        stats
    }

    /// The memory of the connections' own buffers.
    pub(crate) fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// Calls `line` with each connection's number, field and value, as `stats conns` and `CLIENT
    /// LIST` show them. The listeners come first and have numbers of their own.
    pub(crate) fn describe(&self, now_s: u64, line: &mut dyn FnMut(u64, &str, &str)) {
        let listeners = self.listeners().clone();
        for (id, name) in listeners.iter().enumerate() {
            let id = id as u64;
            line(id, "addr", &with_kind(name));
            line(id, "state", "conn_listening");
            line(id, "secs_since_last_cmd", &now_s.to_string());
        }
        // Copy the list, so that new connections can be admitted while the lines are written.
        let infos: Vec<(u64, Arc<ConnectionInfo>)> = self
            .infos()
            .iter()
            .map(|(id, info)| (*id, info.clone()))
            .collect();
        for (id, info) in infos {
            let state = STATE_NAMES[usize::from(info.state.load(RELAXED))];
            let silent_s = now_s.saturating_sub(info.last_heard_s.load(RELAXED));
            line(id, "addr", &info.peer.to_string());
            line(id, "listen_addr", &with_kind(&info.listener));
            line(id, "state", state);
            line(id, "secs_since_last_cmd", &silent_s.to_string());
            let age_s = now_s.saturating_sub(info.since_s);
            line(id, "age_s", &age_s.to_string());
            for (name, bytes) in [
                ("input_bytes", &info.input_bytes),
                ("output_bytes", &info.output_bytes),
            ] {
                line(id, name, &bytes.load(RELAXED).to_string());
            }
        }
    }

    fn listeners(&self) -> MutexGuard<'_, Vec<Arc<str>>> {
        // The reason is the same as below.
        self.listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn infos(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<ConnectionInfo>>> {
        // Insertions and removals are complete even if a thread panics between them.
        self.infos.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A listener's address with its kind, as memcached shows it.
fn with_kind(name: &str) -> String {
    let kind = match name {
        // The name already begins with its kind.
        _ if name.starts_with("unix:") || name.starts_with("ucx:") => "",
        _ if name.starts_with('[') => "tcp6:",
        _ => "tcp:",
    };
    format!("{kind}{name}")
}

impl Ticket {
    /// Records the memory of the connection itself: the worker's state and this ticket's part.
    /// Called once.
    pub(crate) fn occupy(&mut self, connection_bytes: usize) {
        let entry_bytes = size_of::<ConnectionInfo>() + size_of::<(u64, Arc<ConnectionInfo>)>();
        self.own_bytes = (connection_bytes + entry_bytes) as u64;
        self.connections.bytes.fetch_add(self.own_bytes, RELAXED);
    }

    /// Records the memory of the connection's own buffers.
    pub(crate) fn hold(&mut self, held: BufferMemory) {
        if held != self.held {
            self.connections.buffers.change(self.held, held);
            self.info.input_bytes.store(held.input_bytes, RELAXED);
            self.info.output_bytes.store(held.output_bytes, RELAXED);
            self.held = held;
        }
    }

    /// The memory of the connection's own buffers.
    pub(crate) fn held(&self) -> BufferMemory {
        self.held
    }

    /// Records input from the client at `now_s`.
    pub(crate) fn heard(&self, now_s: u64) {
        self.info.last_heard_s.store(now_s, RELAXED);
    }

    /// The time of the last input.
    pub(crate) fn last_heard_s(&self) -> u64 {
        self.info.last_heard_s.load(RELAXED)
    }

    /// Records what the connection is waiting for.
    pub(crate) fn note_state(&self, state: ConnectionState) {
        self.info.state.store(state as u8, RELAXED);
    }

    /// The connection's number.
    pub(crate) fn number(&self) -> u64 {
        self.id
    }

    pub(crate) fn peer(&self) -> Peer {
        self.info.peer
    }

    pub(crate) fn connections(&self) -> &Arc<Connections> {
        &self.connections
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.hold(BufferMemory::default());
        self.connections.bytes.fetch_sub(self.own_bytes, RELAXED);
        self.connections.infos().remove(&self.id);
        self.connections.now.fetch_sub(1, RELAXED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun_core::sync::time;

    #[test]
    fn closing_a_connection_frees_its_slot() {
        let health = Arc::new(Health::starting());
        let buffers = Buffers::new(1 << 20);
        let connections = Arc::new(Connections::new(2, buffers, health, time::now()));
        let listener: Arc<str> = "unix:/s".into();
        let first = connections
            .admit(Peer::Unix, &listener, 0)
            .expect("a free slot");
        let second = connections
            .admit(Peer::Unix, &listener, 0)
            .expect("a free slot");
        assert!(connections.admit(Peer::Unix, &listener, 0).is_none());
        drop(first);
        let third = connections
            .admit(Peer::Unix, &listener, 0)
            .expect("a free slot");
        let stats = connections.stats();
        assert_eq!(
            (
                stats.curr_connections,
                stats.total_connections,
                stats.rejected_connections
            ),
            (2, 3, 1)
        );
        let mut ids = Vec::new();
        connections.describe(0, &mut |id, name, value| {
            if name == "listen_addr" {
                assert_eq!(value, "unix:/s");
                ids.push(id);
            }
        });
        assert_eq!(ids, [1, 2]);
        assert_eq!(stats.connection_bytes, 0);
        let mut third = third;
        let held = BufferMemory {
            input_bytes: 7,
            output_bytes: 8,
        };
        third.hold(held);
        let mut shown = Vec::new();
        connections.describe(5, &mut |id, name, value| {
            let is_new = matches!(name, "age_s" | "input_bytes" | "output_bytes");
            if id == third.number() && is_new {
                shown.push(format!("{name} {value}"));
            }
        });
        assert_eq!(shown, ["age_s 5", "input_bytes 7", "output_bytes 8"]);
        third.occupy(1000);
        assert!(connections.stats().connection_bytes > 1000);
        drop((second, third));
        assert_eq!(connections.stats().connection_bytes, 0);
        assert_eq!(connections.count(), 0);
    }
}
