//! A client sends its plan's requests and reads the answers, each at its own pace, and compares
//! every answer with the model.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::answers::{Parsed, Request, Sender};
use super::frames::CREDITS;
use super::model::{Model, Moment};
use super::plan::{ClientPlan, End, Op, Rate};
use super::wire::{Received, Wire};

/// A form of multi-get frames that does not exist.
const BAD_FORM: u8 = 9;

/// Bytes that a client composes ahead of its socket.
const QUEUE_BYTES: usize = 256 << 10;

/// The bytes of a client that uses a TLS port as a plain one.
const NO_TLS: &[u8] = b"get the weather of Bern\r\n";
/// A record whose content is not encrypted.
const BAD_RECORD: &[u8] = b"\x17\x03\x03\x00\x20this is not what TLS would make ";
/// Bytes that are not a record: the length exceeds any record's.
const NO_RECORD: &[u8] = b"\x17\x03\x03\xff\xff and so on";

/// The answer to a connection beyond the limit, and that in RESP.
const LIMIT_REACHED_ANSWER: &[u8] = b"ERROR Too many open connections\r\n";
const LIMIT_REACHED_RESP: &[u8] = b"-ERR max number of clients reached\r\n";

/// The first part of a request, and that in RESP.
const TRUNCATED: &[u8] = b"set truncated 0 0 9000\r\nhalf a va";
const TRUNCATED_RESP: &[u8] = b"*3\r\n$3\r\nSET\r\n$9\r\ntruncated\r\n$9000\r\nhalf a va";

/// The environment that a client sees in its turn.
#[derive(Clone, Copy, Debug)]
pub struct ClientView {
    pub now: Duration,
    pub moment: Moment,
    /// The server's time of day.
    pub unix_s: u64,
}

/// The stage of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientStage {
    /// Not connected yet.
    Before,
    Open,
    /// The connection has ended, by the client's plan or by the server. The simulation judges
    /// whether the server was right.
    Ended(ConnectionEnd),
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionEnd {
    /// The client reset it.
    Reset,
    /// The server closed it, or sent bytes that are not TLS.
    Closed,
    /// The server answered that there are too many connections.
    LimitReached,
    /// The server no longer listens.
    Refused,
}

pub struct Client<T> {
    pub plan: ClientPlan,
    pub wire: Option<Wire<T>>,
    pub stage: ClientStage,
    pending: VecDeque<Request>,
    next_op: usize,
    version: u64,
    /// Whether multi-get frames are switched on.
    has_frames: bool,
    /// The number of frames that were answered, modulo 2^16.
    frames_received: u16,
    queued: u64,
    input: Vec<u8>,
    next_send: Duration,
    next_read: Duration,
    rng: SmallRng,
    has_sent_end: bool,
    ended: bool,
    /// The server accepts no more bytes.
    is_broken: bool,
    /// Requests answered.
    pub answered: u64,
    /// Requests that the server had received when the connection ended and that have no answer.
    pub unanswered: usize,
    /// Whether the client had sent everything when the connection ended.
    pub was_finished: bool,
}

/// The two ways to end a connection, which `Read` and `Write` do not have.
pub trait CloseSocket {
    /// Announces that nothing more will be sent.
    fn end(&self);
    /// Resets the connection.
    fn reset(&self);
}

impl<T: Read + Write + CloseSocket> Client<T> {
    pub fn new(plan: ClientPlan, seed: u64) -> Client<T> {
        Client {
            rng: SmallRng::seed_from_u64(seed ^ ((plan.id as u64) << 32)),
            next_send: plan.start,
            next_read: plan.start,
            plan,
            wire: None,
            stage: ClientStage::Before,
            pending: VecDeque::new(),
            next_op: 0,
            version: 0,
            has_frames: false,
            frames_received: 0,
            queued: 0,
            input: Vec::new(),
            has_sent_end: false,
            ended: false,
            is_broken: false,
            answered: 0,
            unanswered: 0,
            was_finished: false,
        }
    }

    pub fn connect(&mut self, mut wire: Wire<T>) {
        if self.plan.end == End::NoTls {
            wire.send_raw(NO_TLS);
            self.has_sent_end = true;
        }
        self.wire = Some(wire);
        self.stage = ClientStage::Open;
    }

    /// When it next wants to send, if it does.
    pub fn sends_at(&self) -> Option<Duration> {
        let wire = self.wire.as_ref()?;
        let more = self.may_compose();
        let says = self.has_composed_all() && (!self.has_sent_end || !self.ended && self.ends());
        let wants = wire.wants_send()
            || (!wire.is_handshaking() && (more || says && self.plan.end != End::Stay));
        (self.stage == ClientStage::Open && wants && !self.is_broken).then_some(self.next_send)
    }

    /// When it next reads, if there is something to read.
    pub fn reads_at(&self) -> Duration {
        self.next_read
    }

    /// Whether it composes its next request now.
    fn may_compose(&self) -> bool {
        let Some(op) = self.plan.ops.get(self.next_op) else {
            return false;
        };
        self.pending.len() < self.plan.window
            && self
                .wire
                .as_ref()
                .is_some_and(|wire| wire.queued() < QUEUE_BYTES)
            && (!op.is_frame() || self.unanswered_frames() < CREDITS)
    }

    fn unanswered_frames(&self) -> usize {
        let frames = self.pending.iter().filter(|request| request.op.is_frame());
        frames.count()
    }

    fn has_composed_all(&self) -> bool {
        self.next_op == self.plan.ops.len()
    }

    fn ends(&self) -> bool {
        matches!(self.plan.end, End::HalfClose | End::Truncate | End::Reset)
    }

    /// Requests that the server has and that have no answer.
    pub fn owed(&self) -> usize {
        let Some(wire) = &self.wire else { return 0 };
        let delivered = wire.delivered();
        self.pending
            .partition_point(|pending| pending.end <= delivered)
    }

    /// Whether the server has something to do for this client: answer a request, continue a
    /// handshake, or close.
    pub fn is_owed(&self) -> bool {
        let Some(wire) = &self.wire else { return false };
        if self.stage != ClientStage::Open || wire.wants_send() {
            return self.stage == ClientStage::Open && self.owed() > 0;
        }
        self.owed() > 0 || wire.is_handshaking() || self.waits_for_end()
    }

    /// Whether it has sent everything and waits only for the end.
    pub fn waits_for_end(&self) -> bool {
        let said = match self.plan.end {
            End::Quit => self.has_sent_end,
            End::HalfClose | End::Truncate => self.ended,
            End::BadFrame => self.has_sent_end,
            End::NoTls | End::BadRecord | End::NoRecord => self.has_sent_raw(),
            End::Reset | End::Stay => false,
        };
        let sent = self.wire.as_ref().is_some_and(|wire| !wire.wants_send());
        // The server does not have to answer requests that arrived with bytes that are not TLS.
        said && sent && (self.pending.is_empty() || self.has_sent_raw())
    }

    /// Whether it has begun to send bytes that are not TLS.
    pub fn has_sent_raw(&self) -> bool {
        self.wire.as_ref().is_some_and(Wire::has_sent_raw)
    }

    /// Whether its plan is done, although it stays connected.
    pub fn is_idle(&self) -> bool {
        match self.stage {
            ClientStage::Before => false,
            ClientStage::Ended(_) => true,
            ClientStage::Open => {
                self.plan.end == End::Stay
                    && self.has_composed_all()
                    && self.pending.is_empty()
                    && self.wire.as_ref().is_some_and(|wire| !wire.wants_send())
            }
        }
    }

    pub fn send(&mut self, env: ClientView, model: &mut Model) -> Result<(), String> {
        self.compose(env, model);
        let (max_bytes, next) = self.draw(self.plan.send, env.now);
        self.next_send = next;
        let Some(wire) = &mut self.wire else {
            return Ok(());
        };
        if wire.wants_send() {
            match wire.send(max_bytes) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // The server has closed. Bytes that it sent earlier can still be read.
                Err(_) => {
                    self.is_broken = true;
                    return Ok(());
                }
            }
        }
        let sent = !wire.wants_send() && wire.queued() == 0 && !wire.is_handshaking();
        if self.has_sent_end && sent && !self.ended {
            match self.plan.end {
                End::HalfClose | End::Truncate => {
                    wire.socket.end();
                    self.ended = true;
                }
                End::Reset => {
                    wire.socket.reset();
                    self.finish(ConnectionEnd::Reset, model);
                }
                End::Quit
                | End::BadFrame
                | End::Stay
                | End::NoTls
                | End::BadRecord
                | End::NoRecord => {}
            }
        }
        Ok(())
    }

    /// Composes a request and queues its bytes.
    fn queue(&mut self, op: Op, env: ClientView, model: &mut Model) {
        let Some(wire) = &mut self.wire else { return };
        self.version += 1;
        let sender = Sender {
            id: self.plan.id,
            version: self.version,
            frames_received: self.frames_received,
            has_frames: self.has_frames,
            is_resp: self.plan.resp,
        };
        self.has_frames |= op.is_frame();
        let (mut pending, bytes) = Request::new(sender, op, env.moment, env.unix_s, model);
        wire.queue(&bytes);
        self.queued += bytes.len() as u64;
        pending.end = self.queued;
        self.pending.push_back(pending);
    }

    fn compose(&mut self, env: ClientView, model: &mut Model) {
        while self.may_compose() {
            let op = self.plan.ops[self.next_op].clone();
            self.next_op += 1;
            self.queue(op, env, model);
        }
        let Some(wire) = &mut self.wire else { return };
        if self.next_op < self.plan.ops.len() || self.has_sent_end || wire.is_handshaking() {
            return;
        }
        self.has_sent_end = true;
        let is_sent = wire.queued() == 0 && !wire.wants_send();
        match self.plan.end {
            End::Quit => wire.queue(b"quit\r\n"),
            // The form is checked before the credits.
            End::BadFrame => self.queue(Op::BadFrame { form: BAD_FORM }, env, model),
            End::Truncate if self.plan.resp => wire.queue(TRUNCATED_RESP),
            End::Truncate => wire.queue(TRUNCATED),
            End::HalfClose if wire.queued() == 0 => wire.close_notify(),
            End::BadRecord if is_sent => wire.send_raw(BAD_RECORD),
            End::NoRecord if is_sent => wire.send_raw(NO_RECORD),
            End::HalfClose | End::BadRecord | End::NoRecord => self.has_sent_end = false,
            End::Reset | End::Stay | End::NoTls => {}
        }
    }

    /// Reads once, and checks the received bytes.
    ///
    /// # Errors
    /// What is wrong with an answer.
    pub fn receive(&mut self, env: ClientView, model: &mut Model) -> Result<(), String> {
        let (max_bytes, next) = self.draw(self.plan.read, env.now);
        self.next_read = next;
        let Some(wire) = &mut self.wire else {
            return Ok(());
        };
        let (handshaking, raw) = (wire.is_handshaking(), wire.has_sent_raw());
        let received = match wire.receive(max_bytes, &mut self.input) {
            Ok(received) => received,
            // The server's alert.
            Err(error) if error.kind() == ErrorKind::InvalidData && raw => Received::End,
            Err(error) if error.kind() == ErrorKind::InvalidData && handshaking => {
                self.finish(ConnectionEnd::LimitReached, model);
                return Ok(());
            }
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                return Err(format!("the received bytes are not TLS: {error}"));
            }
            Err(_) => Received::End,
        };
        self.parse(env.moment, model)?;
        if received == Received::End {
            // Some clients close as soon as they see the end, and some never do.
            if self.plan.id.is_multiple_of(2)
                && let Some(wire) = &self.wire
            {
                wire.socket.end();
            }
            self.finish(ConnectionEnd::Closed, model);
        }
        Ok(())
    }

    fn parse(&mut self, now: Moment, model: &mut Model) -> Result<(), String> {
        let mut at = 0;
        let id = self.plan.id;
        while at < self.input.len() {
            let rest = &self.input[at..];
            let limit_reached = if self.plan.resp {
                LIMIT_REACHED_RESP
            } else {
                LIMIT_REACHED_ANSWER
            };
            let refusal = limit_reached.len().min(rest.len());
            if self.answered == 0 && rest[..refusal] == limit_reached[..refusal] {
                if refusal < limit_reached.len() {
                    break;
                }
                self.finish(ConnectionEnd::LimitReached, model);
                return Ok(());
            }
            let Some(pending) = self.pending.front_mut() else {
                let head = &rest[..rest.len().min(80)];
                return Err(format!(
                    "unrequested bytes: {:?}",
                    head.escape_ascii().to_string()
                ));
            };
            match pending.parse(id, rest, now, model)? {
                Parsed::More => break,
                Parsed::Part(count) => at += count,
                Parsed::Whole(count) => {
                    at += count;
                    self.answered += 1;
                    if let Some(answered) = self.pending.pop_front() {
                        let is_frame = answered.op.is_frame();
                        self.frames_received =
                            self.frames_received.wrapping_add(u16::from(is_frame));
                    }
                }
            }
        }
        self.input.drain(..at);
        Ok(())
    }

    /// The connection has ended.
    fn finish(&mut self, how: ConnectionEnd, model: &mut Model) {
        if self.stage == ClientStage::Open {
            self.unanswered = self.owed();
            self.was_finished = self.waits_for_end();
            self.stage = ClientStage::Ended(how);
        }
        for pending in std::mem::take(&mut self.pending) {
            pending.lose(self.plan.id, model);
        }
    }

    /// Records that the server is gone, so pending requests get no answer.
    pub fn abandon(&mut self, model: &mut Model) {
        self.finish(ConnectionEnd::Closed, model);
    }

    /// Records that the server no longer listens.
    pub fn refused(&mut self) {
        self.stage = ClientStage::Ended(ConnectionEnd::Refused);
    }

    fn draw(&mut self, rate: Rate, now: Duration) -> (usize, Duration) {
        let max_bytes = match rate.bytes_max {
            // A fast client takes everything that is available.
            1048576.. => rate.bytes_max,
            bytes_max => self.rng.random_range(1..=bytes_max),
        };
        let pause = rate.pause_max.mul_f64(self.rng.random::<f64>());
        (max_bytes, now + pause)
    }
}
