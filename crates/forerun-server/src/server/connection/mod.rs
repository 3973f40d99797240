//! One connection in its worker: connects a transport to a session. `steps.rs` holds what a turn
//! does.
//!
//! ```text
//!   transport ── read ──> Input ──> Session ──> Output ── write ──> transport
//!                  ^                                |
//!                  └── nothing is read while answers wait: a slow reader delays only itself
//! ```

mod steps;

use std::mem::take;

use forerun_cache::SharedValue;

use crate::address::Protocol;
use crate::auth::Authentication;
use crate::input::Input;
use crate::net::{TLS_BUFFER_BYTES, Transport};
use crate::output::Output;
use crate::system::{Carrier, Ready};
use crate::watch::Watcher;
use crate::watch_lines::CloseReason;

use super::buffers::{BufferMemory, PROGRESS_BYTES, Shortage};
use super::client_session::ClientSession;
use super::connections::{ConnectionState, Ticket};
use super::queued::Queued;
use super::turn::{Phase, TurnContext, TurnResult};

/// Maximum number of bytes sent per turn, about as many as a turn reads. A client that reads large
/// values as fast as they are sent would otherwise keep the worker for as long as it likes.
const SENT_BYTES_PER_TURN: usize = 512 << 10;
/// Maximum number of turns in which a draining server still reads the last requests of a
/// connection. The limit keeps a client that never stops sending from preventing the shutdown.
const DRAIN_TURNS_MAX: u32 = 64;
/// A connection and its state.
pub(crate) struct Connection<K> {
    transport: Transport<K>,
    pub(crate) ticket: Ticket,
    session: ClientSession,
    input: Input,
    output: Output,
    /// The state of authentication, until a client that must authenticate has done so.
    authentication: Option<Authentication>,
    /// The state that the poll last reported: bytes may be available, no more bytes will come,
    /// bytes may be written.
    readable: bool,
    read_closed: bool,
    writable: bool,
    /// Bytes that may still be sent in this turn.
    turn_bytes_left: usize,
    /// Whether the session stopped at a full output. It continues before anything more is read.
    unfinished: bool,
    phase: Phase,
    /// Whether answers ever had to wait for the client to read them.
    has_waited: bool,
    /// Bytes sent to or received from the client since the connection last made progress.
    moved_bytes: u64,
    /// When it last made progress (see [`PROGRESS_BYTES`]), or began to hold memory, in seconds on
    /// the server's clock.
    progress_s: u64,
    /// Set once the client watches.
    watcher: Option<Watcher>,
    /// Whether a call on the socket failed, or the client did not authenticate properly.
    has_failed: bool,
    /// What the connection waits for in its worker.
    pub(crate) queued: Queued,
}

impl<K: Carrier> Connection<K> {
    pub(crate) fn new(
        transport: Transport<K>,
        ticket: Ticket,
        protocol: Protocol,
        authenticates: bool,
    ) -> Connection<K> {
        Connection {
            transport,
            ticket,
            session: ClientSession::new(protocol, authenticates),
            input: Input::new(),
            output: Output::new(),
            authentication: (authenticates && protocol == Protocol::Memcached)
                .then(Authentication::default),
            readable: false,
            read_closed: false,
            writable: true,
            turn_bytes_left: 0,
            unfinished: false,
            phase: Phase::Serving,
            has_waited: false,
            moved_bytes: 0,
            progress_s: 0,
            watcher: None,
            has_failed: false,
            queued: Queued::No,
        }
    }

    pub(crate) fn socket(&mut self) -> &mut K {
        self.transport.socket()
    }

    /// Whether the connection holds memory that others may need.
    pub(crate) fn holds_memory(&self) -> bool {
        self.holds(Shortage {
            buffers: true,
            uploads: true,
            values: true,
        })
    }

    /// Whether the connection holds memory of a kind that is scarce.
    pub(crate) fn holds(&self, scarce: Shortage) -> bool {
        (scarce.buffers && self.ticket.held().is_some())
            || (scarce.uploads && self.session.is_receiving_value())
            || (scarce.values && self.output.has_values())
    }

    /// Whether so many bytes wait for their reader that no more answers are composed.
    pub(crate) fn has_full_output(&self) -> bool {
        self.output.is_full()
    }

    /// Whether answers wait for their reader.
    pub(crate) fn has_answers(&self) -> bool {
        self.ticket.held().output_bytes > 0 || self.output.has_values()
    }

    /// Whether the client has yet to complete the handshake of TLS or UCX, or to authenticate.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.authentication.is_some()
            || self.session.must_authenticate()
            || self.transport.is_handshaking()
    }

    /// When it last made progress, in seconds on the server's clock.
    pub(crate) fn progress_s(&self) -> u64 {
        self.progress_s
    }

    /// Whether the client was refused and may still read why.
    fn is_lingering(&self) -> bool {
        matches!(self.phase, Phase::Lingering(_))
    }

    /// Whether the client watches.
    pub(crate) fn is_watching(&self) -> bool {
        self.watcher.is_some()
    }

    /// Why the connection closes after a turn.
    pub(crate) fn close_reason(&self) -> CloseReason {
        if self.has_failed || self.session.error().is_some() {
            CloseReason::Error
        } else {
            CloseReason::Normal
        }
    }

    /// What the client speaks, and the memory of the connection's own buffers.
    #[cfg(feature = "simulation")]
    pub(crate) fn buffer_bytes(&self) -> (Protocol, usize) {
        let bytes = self.input.memory_bytes() + self.output.memory_bytes();
        (self.session.protocol(), bytes)
    }

    /// Records what the poll reported. Returns false if the report changes nothing for the
    /// connection.
    pub(crate) fn note_ready(&mut self, ready: Ready) -> bool {
        self.readable |= ready.readable;
        self.read_closed |= ready.read_closed;
        self.writable |= ready.writable;
        ready.readable || !self.is_sent()
    }

    /// Starts to drain: the connection answers the requests that have arrived, then closes. If only
    /// a part of a command has arrived, it waits for the rest.
    pub(crate) fn drain(&mut self, turn: &mut TurnContext<'_>) -> TurnResult {
        self.watcher = None;
        // The system reports bytes only when they arrive, and it may have reported these already.
        self.readable = true;
        if self.is_lingering() {
            return TurnResult::Close;
        }
        if self.phase != Phase::Closing {
            self.phase = Phase::Draining {
                turns_left: DRAIN_TURNS_MAX,
            };
        }
        self.turn(turn)
    }

    /// Does everything that is possible now.
    pub(crate) fn turn(&mut self, turn: &mut TurnContext<'_>) -> TurnResult {
        if !self.holds_memory() {
            self.progress_s = turn.now_s;
        }
        if self.input.is_empty() {
            self.input = take(&mut turn.spare.input);
        } else if self.input.is_parked() {
            self.input.unpark(take(&mut turn.spare.input));
        }
        if self.output.is_empty() {
            self.output = take(&mut turn.spare.output);
        }
        // The turn of a draining server may be the last one.
        self.turn_bytes_left = if turn.is_draining {
            usize::MAX
        } else {
            SENT_BYTES_PER_TURN
        };
        let mut failed = false;
        let mut result = self.take_steps(turn).unwrap_or_else(|error| {
            // A vanishing peer is normal, so this is not worth a warning.
            tracing::debug!(peer = %self.ticket.peer(), %error, "a connection failed");
            failed = true;
            TurnResult::Close
        });
        self.has_failed |= failed;
        if self.transport.take_moved() {
            self.ticket.heard(turn.now_s);
        }
        if self.input.is_empty() {
            turn.spare.input = take(&mut self.input);
        } else if let Some(large) = self.input.park() {
            turn.spare.input = large;
        }
        if result == TurnResult::Wait && !self.keep_values(turn) {
            result = TurnResult::OutOfMemory;
        }
        if self.output.is_empty() {
            turn.spare.output = take(&mut self.output);
        } else {
            self.output.park();
        }
        let held = self.memory();
        self.ticket.hold(held);
        self.ticket
            .note_state(match (self.is_sent(), self.is_within_command()) {
                (false, _) => ConnectionState::WaitsForReader,
                (true, true) => ConnectionState::ReceivesCommand,
                (true, false) => ConnectionState::Idle,
            });
        self.has_waited |= held.output_bytes > 0 && !self.writable;
        if !self.holds_memory() || self.moved_bytes >= PROGRESS_BYTES {
            self.moved_bytes = 0;
            self.progress_s = turn.now_s;
        }
        result
    }

    /// Counts the large values of answers that wait for their reader. Copies those for which the
    /// limit leaves no room. Returns false if there is no room for the copies either.
    fn keep_values(&mut self, turn: &TurnContext<'_>) -> bool {
        if !self.output.has_values() || turn.is_draining {
            return true;
        }
        let buffers = self.ticket.connections().buffers();
        let limit_bytes = turn.context.shared.cache.value_buffer_limit_bytes();
        let add = |value: &SharedValue| buffers.values().add(value, limit_bytes);
        let refused_bytes = self.output.count_values(add);
        if refused_bytes > 0 {
            if !buffers.has_room(refused_bytes) {
                return false;
            }
            self.output.copy_uncounted_values();
        }
        true
    }

    /// Memory of the connection's own buffers, between turn.
    fn memory(&self) -> BufferMemory {
        let (received_bytes, unsent_bytes) = self.transport.buffered_bytes();
        let tls_bytes = if self.transport.pending() {
            TLS_BUFFER_BYTES
        } else {
            0
        };
        BufferMemory {
            input_bytes: self.input.memory_bytes() + self.session.memory_bytes() + received_bytes,
            output_bytes: self.output.memory_bytes() + tls_bytes + unsent_bytes,
        }
    }

    /// Counts what has arrived since the last turn, in a carrier that keeps it in this process.
    /// Returns whether the connection holds more memory.
    pub(crate) fn recount(&mut self) -> bool {
        let held = self.memory();
        let is_more = held.bytes() > self.ticket.held().bytes();
        self.ticket.hold(held);
        is_more
    }

    /// Closes the connection for any reason. If every answer was sent in full, a TLS peer also gets
    /// close_notify, provided that the socket accepts it.
    pub(crate) fn leave(&mut self) {
        if self.is_sent() && !self.unfinished {
            self.transport.close_notify();
            // Ignore errors: the peer may already have disconnected.
            let _ = self.transport.flush();
        }
    }

    /// Whether only part of a command has arrived.
    fn is_within_command(&self) -> bool {
        !self.input.is_empty() || self.session.is_within_command()
    }

    fn is_sent(&self) -> bool {
        self.output.is_empty() && !self.transport.pending()
    }
}
