//! The steps of a connection's turn: each sends what waits, then reads at most once and answers.

use std::io::{self, ErrorKind, IoSlice};

use crate::log_limit::log_within;
use crate::session::{SessionError, SessionState};
use crate::system::Carrier;

use super::super::authenticate::{Login, authenticate};
use super::super::linger::Linger;
use super::super::turn::{Arrived, Phase, TurnContext, TurnResult};
use super::Connection;

/// Maximum number of steps per turn, each of which reads at most an input buffer. Then other
/// connections get their turn.
const STEPS_PER_TURN: u32 = 8;
/// Maximum number of slices per write call.
const SLICES: usize = 16;

impl<K: Carrier> Connection<K> {
    /// Takes steps until one ends the turn, or the connection has had its share.
    pub(super) fn take_steps(&mut self, turn: &mut TurnContext<'_>) -> io::Result<TurnResult> {
        for _ in 0..STEPS_PER_TURN {
            if let Some(result) = self.step(turn)? {
                return Ok(result);
            }
        }
        if !self.is_lingering() {
            self.send(turn)?;
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

    /// Sends what waits, then reads at most once and answers. Returns the turn's result if there is
    /// nothing more to do in this turn. So do the functions for each kind of step.
    fn step(&mut self, turn: &mut TurnContext<'_>) -> io::Result<Option<TurnResult>> {
        if self.is_lingering() {
            return self.linger_step();
        }
        self.send(turn)?;
        if !self.is_sent() {
            return Ok(Some(self.unsent()));
        }
        if self.watcher.is_some() {
            return self.watch_step(turn);
        }
        // A session that stopped at a full output still has input to answer.
        if self.unfinished {
            return Ok(self.answer_step(turn));
        }
        if self.phase == Phase::Closing {
            return self.close_notify(turn).map(Some);
        }
        self.read_step(turn)
    }

    /// Discards what a refused client still sends.
    fn linger_step(&mut self) -> io::Result<Option<TurnResult>> {
        if !self.readable {
            return Ok(Some(TurnResult::Wait));
        }
        if let Phase::Lingering(linger) = &mut self.phase {
            match linger.discard(&mut self.transport, self.input.space()) {
                Ok(true) => return Ok(Some(TurnResult::Close)),
                Ok(false) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.readable = false,
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Moves a watcher's lines to the output. Reads only to learn that the watcher has left.
    fn watch_step(&mut self, turn: &mut TurnContext<'_>) -> io::Result<Option<TurnResult>> {
        if let Some(watcher) = &self.watcher
            && watcher.take_lines(self.output.bytes_mut())
        {
            return Ok(None);
        }
        match self.receive(turn)? {
            // As in memcached, the server ignores what a watcher sends.
            Arrived::Bytes => self.input.consume(self.input.bytes().len()),
            Arrived::Nothing => return Ok(Some(TurnResult::Wait)),
            Arrived::End | Arrived::Refused => {
                self.watcher = None;
                self.phase = Phase::Closing;
            }
        }
        Ok(None)
    }

    /// Reads requests and answers them.
    fn read_step(&mut self, turn: &mut TurnContext<'_>) -> io::Result<Option<TurnResult>> {
        // The answers of a slow reader take memory. While all buffers together are near the limit,
        // do not read from a client that has been slow before: its requests would need answers.
        // Read from the others: most answers fit into the socket.
        if self.readable
            && self.phase == Phase::Serving
            && self.has_waited
            && self.ticket.connections().buffers().is_crowded()
        {
            return Ok(Some(TurnResult::Pause));
        }
        match (self.receive(turn)?, self.phase) {
            (Arrived::Bytes, _) => Ok(self.answer_step(turn)),
            (Arrived::Refused, _) => {
                self.phase = Phase::Closing;
                Ok(None)
            }
            (Arrived::Nothing, Phase::Draining { .. }) if !self.is_within_command() => {
                self.close_notify(turn).map(Some)
            }
            (Arrived::Nothing, phase) => {
                if let Phase::Draining { .. } = phase {
                    self.phase = Phase::LastCommand;
                }
                Ok(Some(TurnResult::Wait))
            }
            (Arrived::End, _) => {
                // Send the session's last answer first.
                self.session.end(&mut self.input, &mut self.output);
                self.log_binary(turn.now_s);
                self.phase = Phase::Closing;
                Ok(None)
            }
        }
    }

    /// Answers what has been read.
    fn answer_step(&mut self, turn: &mut TurnContext<'_>) -> Option<TurnResult> {
        let next = self.answer(turn);
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
                return Some(TurnResult::Shutdown);
            }
        }
        None
    }

    /// Ends a connection whose answers are all sent. Waits until close_notify is sent too, so that
    /// a TLS client can distinguish a clean end from a broken connection.
    fn close_notify(&mut self, turn: &mut TurnContext<'_>) -> io::Result<TurnResult> {
        self.phase = Phase::Closing;
        self.transport.close_notify();
        self.send(turn)?;
        if !self.is_sent() {
            return Ok(self.unsent());
        }
        let is_refused = match self.session.error() {
            // It got no answer, so there is nothing that it must be able to read.
            Some(SessionError::Http) => false,
            Some(_) => true,
            None => self.has_failed,
        };
        if !is_refused || turn.is_draining || !self.transport.end_writes()? {
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
    fn receive(&mut self, turn: &mut TurnContext<'_>) -> io::Result<Arrived> {
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
                turn.context.counters().bytes_read.add(count as u64);
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
                    turn.now_s,
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
    fn answer(&mut self, turn: &mut TurnContext<'_>) -> SessionState {
        if let (Some(authentication), Some(users)) = (&mut self.authentication, turn.users) {
            let (input, output) = (&mut self.input, &mut self.output);
            let counters = turn.context.counters();
            match authenticate(authentication, users, input, output, counters) {
                Login::Waits(next) => {
                    self.has_failed |= next == SessionState::Closed;
                    return next;
                }
                Login::Done => self.session.begin_text(),
                Login::Binary => {}
            }
        }
        turn.context.connection = self.ticket.number();
        let next = self
            .session
            .receive(&mut self.input, &mut self.output, turn.context);
        // While a session that refuses the binary protocol waits for the rest of the first header,
        // the time limit of authentication still applies.
        if self.authentication.is_some() && self.session.has_begun() {
            self.authentication = None;
        }
        if next == SessionState::Closed {
            self.log_binary(turn.now_s);
        }
        next
    }

    /// Logs that the client was refused, if it speaks the binary protocol and that is off.
    fn log_binary(&self, now_s: u64) {
        if self.session.error() == Some(SessionError::Binary) {
            log_within!(
                warn,
                self.ticket.connections().log_limits.binary,
                now_s,
                peer = %self.ticket.peer(),
                "closed a connection that speaks the binary protocol, which is off"
            );
        }
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
    fn send(&mut self, turn: &mut TurnContext<'_>) -> io::Result<()> {
        while self.writable && !self.output.is_empty() && self.turn_bytes_left > 0 {
            match self.send_once() {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(sent) => {
                    self.turn_bytes_left -= sent;
                    self.output.advance(sent);
                    self.moved_bytes += sent as u64;
                    turn.context.counters().bytes_written.add(sent as u64);
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
