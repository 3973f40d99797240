//! One connection in its worker: connects a transport to a session.
//!
//! ```text
//!   transport ── read ──> Input ──> Session ──> Output ── write ──> transport
//!                  ^                                |
//!                  └── nothing is read while answers wait: a slow reader delays only itself
//! ```

use std::io::{self, ErrorKind, IoSlice};
use std::mem::take;

use forerun_cache::SharedValue;

use crate::auth::Authentication;
use crate::input::Input;
use crate::log_limit::log_within;
use crate::net::{TLS_BUFFER_BYTES, Transport};
use crate::output::Output;
use crate::session::{Session, SessionError, SessionState};
use crate::system::{Carrier, Ready};
use crate::watch::Watcher;
use crate::watch_lines::CloseReason;

use super::authenticate::authenticate;
use super::buffers::{BufferMemory, PROGRESS_BYTES, Shortage};
use super::connections::{ConnectionState, Ticket};
use super::linger::Linger;
use super::queued::Queued;
use super::turn::{Arrived, Phase, TurnResult, Turns};

/// Maximum number of reads per turn, each of up to the size of an input buffer. Then other
/// connections get their turn.
const READS_PER_TURN: u32 = 8;
/// Maximum number of bytes sent per turn, about as many as a turn reads. A client that reads large
/// values as fast as they are sent would otherwise keep the worker for as long as it likes.
const SENT_BYTES_PER_TURN: usize = 512 << 10;
/// Maximum number of turns in which a draining server still reads the last requests of a
/// connection. The limit keeps a client that never stops sending from preventing the shutdown.
const DRAIN_TURNS_MAX: u32 = 64;
/// Maximum number of slices per write call.
const SLICES: usize = 16;

/// A connection and its state.
pub(crate) struct Connection<K> {
    transport: Transport<K>,
    pub(crate) ticket: Ticket,
    session: Session,
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
        authenticates: bool,
    ) -> Connection<K> {
        Connection {
            transport,
            ticket,
            session: Session::new(),
            input: Input::new(),
            output: Output::new(),
            authentication: authenticates.then(Authentication::default),
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
        self.authentication.is_some() || self.transport.is_handshaking()
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

    /// Memory of the connection's own buffers.
    #[cfg(feature = "simulation")]
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.input.memory_bytes() + self.output.memory_bytes()
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
    pub(crate) fn drain(&mut self, turns: &mut Turns<'_>) -> TurnResult {
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
        self.turn(turns)
    }

    /// Does everything that is possible now.
    pub(crate) fn turn(&mut self, turns: &mut Turns<'_>) -> TurnResult {
        if !self.holds_memory() {
            self.progress_s = turns.now_s;
        }
        if self.input.is_empty() {
            self.input = take(&mut turns.spare.input);
        } else if self.input.is_parked() {
            self.input.unpark(take(&mut turns.spare.input));
        }
        if self.output.is_empty() {
            self.output = take(&mut turns.spare.output);
        }
        // The turn of a draining server may be the last one.
        self.turn_bytes_left = if turns.is_draining {
            usize::MAX
        } else {
            SENT_BYTES_PER_TURN
        };
        let mut failed = false;
        let mut turn = self.try_turn(turns).unwrap_or_else(|error| {
            // A vanishing peer is normal, so this is not worth a warning.
            tracing::debug!(peer = %self.ticket.peer(), %error, "a connection failed");
            failed = true;
            TurnResult::Close
        });
        self.has_failed |= failed;
        if self.transport.take_moved() {
            self.ticket.heard(turns.now_s);
        }
        if self.input.is_empty() {
            turns.spare.input = take(&mut self.input);
        } else if let Some(large) = self.input.park() {
            turns.spare.input = large;
        }
        if turn == TurnResult::Wait && !self.keep_values(turns) {
            turn = TurnResult::OutOfMemory;
        }
        if self.output.is_empty() {
            turns.spare.output = take(&mut self.output);
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
            self.progress_s = turns.now_s;
        }
        turn
    }

    /// Counts the large values of answers that wait for their reader. Copies those for which the
    /// limit leaves no room. Returns false if there is no room for the copies either.
    fn keep_values(&mut self, turns: &Turns<'_>) -> bool {
        if !self.output.has_values() || turns.is_draining {
            return true;
        }
        let buffers = self.ticket.connections().buffers();
        let limit_bytes = turns.context.shared.cache.value_buffer_limit_bytes();
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

    /// Memory of the connection's own buffers, between turns.
    fn memory(&self) -> BufferMemory {
        let (received_bytes, unsent_bytes) = self.transport.buffered_bytes();
        let tls_bytes = if self.transport.pending() {
            TLS_BUFFER_BYTES
        } else {
            0
        };
        BufferMemory {
            input_bytes: self.input.memory_bytes() + received_bytes,
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

    fn try_turn(&mut self, turns: &mut Turns<'_>) -> io::Result<TurnResult> {
        for _ in 0..READS_PER_TURN {
            if let Phase::Lingering(linger) = &mut self.phase {
                if !self.readable {
                    return Ok(TurnResult::Wait);
                }
                match linger.discard(&mut self.transport, self.input.space()) {
                    Ok(true) => return Ok(TurnResult::Close),
                    Ok(false) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => self.readable = false,
                    Err(error) => return Err(error),
                }
                continue;
            }
            self.send(turns)?;
            if !self.is_sent() {
                return Ok(self.unsent());
            }
            if let Some(watcher) = &self.watcher {
                if watcher.take_lines(self.output.bytes_mut()) {
                    continue;
                }
                match self.receive(turns)? {
                    // As in memcached, the server ignores what a watcher sends.
                    Arrived::Bytes => self.input.consume(self.input.bytes().len()),
                    Arrived::Nothing => return Ok(TurnResult::Wait),
                    Arrived::End | Arrived::Refused => {
                        self.watcher = None;
                        self.phase = Phase::Closing;
                    }
                }
                continue;
            }
            if !self.unfinished {
                if self.phase == Phase::Closing {
                    return self.close_notify(turns);
                }
                // The answers of a slow reader take memory. While all buffers together are near the
                // limit, do not read from a client that has been slow before: its requests would
                // need answers. Read from the others: most answers fit into the socket.
                if self.readable
                    && self.phase == Phase::Serving
                    && self.has_waited
                    && self.ticket.connections().buffers().is_crowded()
                {
                    return Ok(TurnResult::Pause);
                }
                match (self.receive(turns)?, self.phase) {
                    (Arrived::Bytes, _) => {}
                    (Arrived::Refused, _) => {
                        self.phase = Phase::Closing;
                        continue;
                    }
                    (Arrived::Nothing, Phase::Draining { .. }) if !self.is_within_command() => {
                        return self.close_notify(turns);
                    }
                    (Arrived::Nothing, Phase::Draining { .. }) => {
                        self.phase = Phase::LastCommand;
                        return Ok(TurnResult::Wait);
                    }
                    (Arrived::Nothing, _) => return Ok(TurnResult::Wait),
                    (Arrived::End, _) => {
                        // Send the session's last answer first.
                        self.session.end(&mut self.input, &mut self.output);
                        self.log_binary(turns.now_s);
                        self.phase = Phase::Closing;
                        continue;
                    }
                }
            }
            let next = self.answer(turns);
            self.unfinished = next == SessionState::OutputFull;
            match next {
                SessionState::NeedsInput
                    if self.phase == Phase::LastCommand && !self.is_within_command() =>
                {
                    self.phase = Phase::Closing;
                }
                SessionState::NeedsInput | SessionState::OutputFull => {}
                SessionState::Closed => self.phase = Phase::Closing,
                // A draining server closes a new watcher: it logs no more events.
                SessionState::Watching if self.phase != Phase::Serving => {
                    self.phase = Phase::Closing;
                }
                SessionState::Watching => self.watcher = self.session.take_watcher(),
                SessionState::Shutdown => {
                    self.phase = Phase::Closing;
                    return Ok(TurnResult::Shutdown);
                }
            }
        }
        if !self.is_lingering() {
            self.send(turns)?;
        }
        if let Phase::Draining { turns_left } = &mut self.phase {
            *turns_left -= 1;
            if *turns_left == 0 {
                self.phase = Phase::Closing;
            }
        }
        self.ticket.connections().yielded();
        Ok(TurnResult::Again)
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

    /// Ends a connection whose answers are all sent. Waits until close_notify is sent too, so that
    /// a TLS client can distinguish a clean end from a broken connection.
    fn close_notify(&mut self, turns: &mut Turns<'_>) -> io::Result<TurnResult> {
        self.phase = Phase::Closing;
        self.transport.close_notify();
        self.send(turns)?;
        if !self.is_sent() {
            return Ok(self.unsent());
        }
        let is_refused = match self.session.error() {
            // It got no answer, so there is nothing that it must be able to read.
            Some(SessionError::Http) => false,
            Some(_) => true,
            None => self.has_failed,
        };
        if !is_refused || turns.is_draining || !self.transport.end_writes()? {
            return Ok(TurnResult::Close);
        }
        self.input.consume(self.input.bytes().len());
        self.readable = true;
        self.phase = Phase::Lingering(Linger::new());
        Ok(TurnResult::Linger)
    }

    /// The result of a turn that leaves bytes to send. If the socket would take more, there is no
    /// event to wait for.
    fn unsent(&self) -> TurnResult {
        if self.writable {
            self.ticket.connections().yielded();
            TurnResult::Again
        } else {
            TurnResult::Wait
        }
    }

    /// Reads once.
    fn receive(&mut self, turns: &mut Turns<'_>) -> io::Result<Arrived> {
        if !self.readable {
            return Ok(Arrived::Nothing);
        }
        let space = self.input.space();
        let space_bytes = space.len();
        match self.transport.read(space) {
            // The incomplete command will never be completed.
            Ok(0) => Ok(Arrived::End),
            Ok(count) => {
                self.input.filled(count);
                self.moved_bytes += count as u64;
                turns.context.counters().bytes_read.add(count as u64);
                // A short read has emptied a plain socket, and the poll will report later bytes.
                // Stopping here saves a system call.
                if count < space_bytes
                    && !self.read_closed
                    && self.transport.is_emptied_by_short_read()
                {
                    self.readable = false;
                }
                Ok(Arrived::Bytes)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.readable = false;
                Ok(Arrived::Nothing)
            }
            Err(error) if self.transport.has_refused() => {
                let connections = self.ticket.connections();
                if self.transport.is_handshaking() {
                    connections.tls_refused();
                }
                log_within!(
                    warn,
                    connections.log_limits.tls,
                    turns.now_s,
                    peer = %self.ticket.peer(),
                    %error,
                    "refused a client of TLS"
                );
                self.has_failed = true;
                Ok(Arrived::Refused)
            }
            Err(error) => Err(error),
        }
    }

    /// Passes the input to the session.
    fn answer(&mut self, turns: &mut Turns<'_>) -> SessionState {
        if let (Some(authentication), Some(users)) = (&mut self.authentication, turns.users) {
            let (input, output) = (&mut self.input, &mut self.output);
            let counters = turns.context.counters();
            if let Some(next) = authenticate(authentication, users, input, output, counters) {
                self.has_failed |= next == SessionState::Closed;
                return next;
            }
            self.authentication = None;
        }
        turns.context.connection = self.ticket.number();
        let next = self
            .session
            .receive(&mut self.input, &mut self.output, turns.context);
        if next == SessionState::Closed {
            self.log_binary(turns.now_s);
        }
        next
    }

    /// Logs that the client was refused, if it speaks the binary protocol.
    fn log_binary(&self, now_s: u64) {
        if self.session.error() == Some(SessionError::Binary) {
            log_within!(
                warn,
                self.ticket.connections().log_limits.binary,
                now_s,
                peer = %self.ticket.peer(),
                "closed a connection that speaks the binary protocol, which is not supported"
            );
        }
    }

    /// Whether only part of a command has arrived.
    fn is_within_command(&self) -> bool {
        !self.input.is_empty() || self.session.is_within_command()
    }

    fn is_sent(&self) -> bool {
        self.output.is_empty() && !self.transport.pending()
    }

    /// Writes once, and returns the number of bytes.
    fn send_once(&mut self) -> io::Result<usize> {
        let mut bytes_max = self.turn_bytes_left;
        if self.transport.shares_values() {
            if let Some((value, range)) = self.output.next_value(bytes_max) {
                return self.transport.write_value(value, range);
            }
            bytes_max = bytes_max.min(self.output.bytes_before_value());
        }
        let mut slices = [IoSlice::new(&[]); SLICES];
        let count = self.output.slices_up_to(bytes_max, &mut slices);
        self.transport.write(&slices[..count])
    }

    /// Writes until everything is sent, the socket takes no more, or the turn has sent its share.
    fn send(&mut self, turns: &mut Turns<'_>) -> io::Result<()> {
        while self.writable && !self.output.is_empty() && self.turn_bytes_left > 0 {
            match self.send_once() {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(sent) => {
                    self.turn_bytes_left -= sent;
                    self.output.advance(sent);
                    self.moved_bytes += sent as u64;
                    turns.context.counters().bytes_written.add(sent as u64);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.writable = false,
                Err(error) => return Err(error),
            }
        }
        if self.writable {
            match self.transport.flush() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.writable = false,
                flushed => flushed?,
            }
        }
        // A connection with unsent bytes waits for an event, which comes only if the socket has
        // refused a write, or it gets another turn.
        debug_assert!(self.is_sent() || !self.writable || self.turn_bytes_left == 0);
        Ok(())
    }
}
