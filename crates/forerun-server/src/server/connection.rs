//! One connection in its worker: a transport, a session, and what lies between them.
//!
//! ```text
//!   transport ── read ──> Input ──> Session ──> Output ── write ──> transport
//!                  ^                                |
//!                  └── nothing is read while answers wait: a slow reader holds back itself alone
//! ```

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::mem::take;

use crate::auth::{Entry, Gate, UserFile};
use crate::context::Context;
use crate::input::Input;
use crate::net::Transport;
use crate::output::{FULL_BYTES, Output};
use crate::planted::{self, Defect};
use crate::session::{Next, Session};
use crate::system::Ready;

use super::connections::Ticket;

/// Reads (of up to an input's size) that a connection gets before others have their turn.
const READS_A_TURN: u32 = 8;
/// Turns in which a connection's last requests are read when the server drains. A client that sends
/// without a pause is not listened to for ever.
const DRAIN_TURNS_MAX: u32 = 64;
/// Parts of an output that one call writes.
const SLICES: usize = 16;

/// A connection and all that is its own.
pub(crate) struct Connection<K> {
    transport: Transport<K>,
    pub(crate) ticket: Ticket,
    session: Session,
    input: Input,
    output: Output,
    /// Before a connection has said who it is, where it must.
    gate: Option<Gate>,
    /// What the poll last reported: bytes may be there, no more bytes will come, bytes may be
    /// written.
    readable: bool,
    read_closed: bool,
    writable: bool,
    /// The session stopped at a full output: it goes on before more is read.
    unfinished: bool,
    phase: Phase,
    /// Its worker has a turn for it already.
    pub(crate) is_queued: bool,
}

/// How far a connection is from its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Requests are read as they come.
    Serving,
    /// The server drains: what has arrived is still answered, also behind answers that wait for a
    /// slow reader.
    Draining { turns_left: u32 },
    /// The server drains, and one more command is answered, of which a part has arrived.
    LastCommand,
    /// The output is written, then the connection closes.
    Closing,
}

/// How a connection's turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It waits until the poll reports it.
    Wait,
    /// It has more to do, after the other connections.
    Again,
    /// It is over.
    Close,
    /// The client said `shutdown`: the server is to end. The connection itself has more to do.
    Shutdown,
}

/// What a read brought.
enum Arrived {
    Bytes,
    Nothing,
    /// There will be no more.
    End,
}

/// What a worker lends a connection for a turn.
pub(crate) struct Turns<'a> {
    pub(crate) context: &'a mut Context,
    pub(crate) users: Option<&'a UserFile>,
    pub(crate) spare: &'a mut Spare,
    pub(crate) now_s: u64,
}

/// Buffers that a worker's connections use in turn: one that waits with nothing in its own has no
/// memory for them, and the next finds them in the CPU's cache.
#[derive(Default)]
pub(crate) struct Spare {
    input: Input,
    output: Output,
}

impl<K: Read + Write> Connection<K> {
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
            gate: authenticates.then(Gate::default),
            readable: false,
            read_closed: false,
            writable: true,
            unfinished: false,
            phase: Phase::Serving,
            is_queued: false,
        }
    }

    pub(crate) fn socket(&mut self) -> &mut K {
        self.transport.socket()
    }

    /// Memory of the buffers that are its own.
    #[cfg(feature = "simulation")]
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.input.memory_bytes() + self.output.memory_bytes()
    }

    /// Notes what the poll reports. False if that changes nothing for the connection.
    pub(crate) fn note_ready(&mut self, ready: Ready) -> bool {
        self.readable |= ready.readable;
        self.read_closed |= ready.read_closed;
        self.writable |= ready.writable;
        ready.readable || !self.is_sent()
    }

    /// The server drains: the connection closes once it has answered what has arrived. A command of
    /// which only a part has arrived is waited for.
    pub(crate) fn drain(&mut self, turns: &mut Turns<'_>) -> Turn {
        // The system reports bytes only when they arrive, and these may have been reported before.
        self.readable = true;
        if self.phase != Phase::Closing {
            self.phase = Phase::Draining {
                turns_left: DRAIN_TURNS_MAX,
            };
        }
        match self.turn(turns) {
            Turn::Wait | Turn::Again if planted::is(Defect::DrainCutsAnswers) => Turn::Close,
            turn => turn,
        }
    }

    /// Does what can be done now.
    pub(crate) fn turn(&mut self, turns: &mut Turns<'_>) -> Turn {
        if self.input.is_empty() {
            self.input = take(&mut turns.spare.input);
        }
        if self.output.is_empty() {
            self.output = take(&mut turns.spare.output);
        }
        let turn = self.go_on(turns).unwrap_or_else(|error| {
            // That a peer is gone is an everyday matter.
            tracing::debug!(peer = %self.ticket.peer(), %error, "a connection ended by a fault");
            Turn::Close
        });
        if self.transport.take_moved() {
            self.ticket.heard(turns.now_s);
        }
        if self.input.is_empty() {
            turns.spare.input = take(&mut self.input);
        }
        if self.output.is_empty() {
            turns.spare.output = take(&mut self.output);
        }
        turn
    }

    fn go_on(&mut self, turns: &mut Turns<'_>) -> io::Result<Turn> {
        let reads = match planted::is(Defect::TurnUnbounded) {
            true => u32::MAX,
            false => READS_A_TURN,
        };
        for _ in 0..reads {
            self.send(turns)?;
            if !self.is_sent() {
                self.ticket.waits_for_reader(true);
                return Ok(Turn::Wait);
            }
            self.ticket.waits_for_reader(false);
            if !self.unfinished {
                if self.phase == Phase::Closing {
                    return self.close_notify(turns);
                }
                match (self.receive(turns)?, self.phase) {
                    (Arrived::Bytes, _) => {}
                    (Arrived::Nothing, Phase::Draining { .. }) if !self.is_within_command() => {
                        return self.close_notify(turns);
                    }
                    (Arrived::Nothing, Phase::Draining { .. }) => {
                        self.phase = Phase::LastCommand;
                        return Ok(Turn::Wait);
                    }
                    (Arrived::Nothing, _) => return Ok(Turn::Wait),
                    (Arrived::End, _) => {
                        // The session's last answer is sent first.
                        self.session.end(&mut self.input, &mut self.output);
                        self.phase = Phase::Closing;
                        continue;
                    }
                }
            }
            let next = self.answer(turns);
            self.unfinished = next == Next::Full
                && !(planted::is(Defect::FullAnswerForgotten) && self.output.len() == FULL_BYTES);
            match next {
                Next::More if self.phase == Phase::LastCommand && !self.is_within_command() => {
                    self.phase = Phase::Closing;
                }
                Next::More | Next::Full => {}
                Next::Close => self.phase = Phase::Closing,
                Next::Shutdown { .. } => {
                    self.phase = Phase::Closing;
                    return Ok(Turn::Shutdown);
                }
            }
        }
        self.send(turns)?;
        if let Phase::Draining { turns_left } = &mut self.phase {
            *turns_left -= 1;
            if *turns_left == 0 {
                self.phase = Phase::Closing;
            }
        }
        self.ticket.connections().yielded();
        Ok(Turn::Again)
    }

    /// The connection is closed now, for whatever reason. If nothing is missing behind what was
    /// sent, the peer is told that this is the end, as far as the socket takes that.
    pub(crate) fn leave(&mut self) {
        if self.is_sent() && !self.unfinished {
            self.transport.close_notify();
            // A courtesy: a peer that is gone misses nothing.
            let _ = self.transport.flush();
        }
    }

    /// Ends a connection whose answers are all sent: waits until close_notify is as well, so that a
    /// TLS client can tell the end from a connection that was cut.
    fn close_notify(&mut self, turns: &mut Turns<'_>) -> io::Result<Turn> {
        self.phase = Phase::Closing;
        self.transport.close_notify();
        self.send(turns)?;
        Ok(match self.is_sent() {
            true => Turn::Close,
            false => Turn::Wait,
        })
    }

    /// Reads once.
    fn receive(&mut self, turns: &mut Turns<'_>) -> io::Result<Arrived> {
        if !self.readable {
            return Ok(Arrived::Nothing);
        }
        let space = self.input.space();
        let room = space.len();
        match self.transport.read(space) {
            // Half a command stays one.
            Ok(0) => Ok(Arrived::End),
            Ok(count) => {
                self.input.filled(count);
                turns.context.counters().bytes_read.add(count as u64);
                // A short read has emptied a plain socket, and what comes later is told anew: one
                // call saved.
                let more = self.read_closed && !planted::is(Defect::EndForgotten);
                if count < room && !more && self.transport.is_plain() {
                    self.readable = false;
                }
                Ok(Arrived::Bytes)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.readable = false;
                Ok(Arrived::Nothing)
            }
            Err(error) => Err(error),
        }
    }

    /// Takes commands from the input.
    fn answer(&mut self, turns: &mut Turns<'_>) -> Next {
        if let (Some(gate), Some(users)) = (&mut self.gate, turns.users) {
            loop {
                match gate.read(self.input.bytes(), users) {
                    Entry::More => return Next::More,
                    // Nothing of the session's was read yet: it sees the connection's first byte,
                    // and closes.
                    Entry::Binary => break,
                    Entry::Close => return Next::Close,
                    Entry::Answered {
                        consumed,
                        answer,
                        open,
                        tried,
                    } => {
                        self.input.consume(consumed);
                        self.output.bytes_mut().extend_from_slice(answer.as_bytes());
                        let counters = turns.context.counters();
                        counters.auth_cmds.add(u64::from(tried));
                        counters.auth_errors.add(u64::from(tried && !open));
                        if open {
                            break;
                        }
                        if self.output.is_full() {
                            return Next::Full;
                        }
                    }
                }
            }
            self.gate = None;
        }
        self.session
            .receive(&mut self.input, &mut self.output, turns.context)
    }

    /// Whether a part of a command has come, and the rest has not.
    fn is_within_command(&self) -> bool {
        !self.input.is_empty() || self.session.is_within_command()
    }

    fn is_sent(&self) -> bool {
        self.output.is_empty() && !self.transport.pending()
    }

    /// Writes until all is sent or the socket takes no more.
    fn send(&mut self, turns: &mut Turns<'_>) -> io::Result<()> {
        while self.writable && !self.output.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = self.output.slices(&mut slices);
            match self.transport.write(&slices[..count]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(sent) => {
                    self.output.advance(sent);
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
        // Whoever waits with bytes to send waits for an event, which comes only after the socket
        // has refused a write.
        debug_assert!(self.is_sent() || !self.writable);
        Ok(())
    }
}
