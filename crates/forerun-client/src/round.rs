//! One round trip to several servers at once.
//!
//! ```text
//!   server 0   send ──────────────┐        receive
//!   server 1        send ─────────┼─ poll            receive
//!   server 2             send ────┘           receive
//! ```
//!
//! A round sends all requests before it waits for any answer, and reads answers as they arrive. A
//! server may stop reading its requests until the client reads its answers. It does not delay the
//! others.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use forerun_core::sync::{Arc, time};

use crate::conversation::{self, Conversation, Progress, shown};
use crate::error::Failure;
use crate::interrupt::Interrupt;
use crate::net::ucx_poll::{self, Polled};
use crate::net::{Connection, Interest, Peer, Resolver, Tls};
use crate::protocol::reply::{Line, Parsed, Reply, TOO_MANY_CONNECTIONS};
use crate::wait::{Readiness, Wait};

/// Maximum number of reads from a connection before the others have their turn.
const READS_PER_TURN: usize = 8;

/// One server's part of a round.
#[derive(Debug)]
pub(crate) struct Turn<C> {
    pub(crate) server: usize,
    pub(crate) connection: Connection,
    pub(crate) conversation: C,
    /// Further addresses of the server, to try if connecting fails.
    pub(crate) peers: Vec<Peer>,
    pub(crate) result: Option<Result<(), Failure>>,
}

impl<C> Turn<C> {
    pub(crate) fn new(
        server: usize,
        connection: Connection,
        conversation: C,
        peers: Vec<Peer>,
    ) -> Turn<C> {
        Turn {
            server,
            connection,
            conversation,
            peers,
            result: None,
        }
    }

    /// Sends as much of the request as the socket accepts.
    pub(crate) fn send(&mut self) {
        // After an error, the socket becomes ready. The round then reports the error, unless the
        // server answered before it closed the connection.
        let _ = self.connection.send();
    }
}

/// The parameters of a round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoundOptions<'a> {
    pub(crate) deadline: Instant,
    pub(crate) timeout: Duration,
    pub(crate) max_value_bytes: usize,
    pub(crate) interrupt: &'a Interrupt,
    pub(crate) tls: Option<&'a Tls>,
    /// The addresses of each server.
    pub(crate) resolvers: &'a [Arc<Resolver>],
}

/// Drives all turns to their results. Every turn has a result afterwards.
pub(crate) async fn run<C: Conversation, W: Wait>(
    turns: &mut [Turn<C>],
    shared: &mut C::Shared,
    options: &RoundOptions<'_>,
    wait: &W,
) {
    let mut check = if W::ASKS {
        options.interrupt.first_check(time::now())
    } else {
        None
    };
    loop {
        let mut waiting = Vec::with_capacity(turns.len());
        let mut sockets = Vec::with_capacity(turns.len());
        for (at, turn) in turns.iter().enumerate() {
            if turn.result.is_none() {
                waiting.push(at);
                sockets.push((turn.connection.as_fd(), turn.connection.wanted()));
            }
        }
        if waiting.is_empty() {
            return;
        }
        let now = time::now();
        if options.interrupt.is_raised(&mut check, now) {
            return fail(turns, &waiting, || Failure::Interrupted);
        }
        if now >= options.deadline {
            return fail(turns, &waiting, || Failure::TimedOut(options.timeout));
        }
        let until = check.map_or(options.deadline, |check| check.min(options.deadline));
        let connections = waiting.iter().map(|at| &turns[*at].connection);
        let ready = match ucx_poll::poll(connections, until) {
            Polled::Ready(ready) => Ok(ready),
            Polled::Wait(until) => wait.wait(&sockets, until).await,
        };
        let ready = match ready {
            Ok(ready) => ready,
            Err(error) => {
                let again = || io::Error::new(error.kind(), error.to_string());
                return fail(turns, &waiting, || Failure::Io(again()));
            }
        };
        for (at, ready) in waiting.into_iter().zip(ready) {
            if ready != Readiness::default() {
                let turn = &mut turns[at];
                turn.result = advance(turn, ready, shared, options).transpose();
            }
        }
    }
}

/// Ends the waiting turns.
fn fail<C>(turns: &mut [Turn<C>], waiting: &[usize], why: impl Fn() -> Failure) {
    for at in waiting {
        turns[*at].result = Some(Err(why()));
    }
}

/// Continues a turn whose socket is ready. Returns `Some` at its end.
fn advance<C: Conversation>(
    turn: &mut Turn<C>,
    ready: Readiness,
    shared: &mut C::Shared,
    options: &RoundOptions<'_>,
) -> Result<Option<()>, Failure> {
    if turn.connection.is_resolving() {
        let addresses = options.resolvers[turn.server].known();
        let addresses = addresses.map_err(Failure::Connect)?;
        turn.peers = addresses.peers;
        turn.connection.addresses_version = addresses.version;
        // The name has an address, so this is not the error.
        let error = io::ErrorKind::NotFound.into();
        return try_next_peer(turn, error, options).map(|()| None);
    }
    if turn.connection.is_connecting()
        && let Err(error) = turn.connection.finish_connecting()
    {
        return try_next_peer(turn, error, options).map(|()| None);
    }
    let sent = match turn.connection.interest() {
        Interest::Read => Ok(()),
        _ => turn.connection.send(),
    };
    // The read reports errors and hang-ups.
    if !ready.read && sent.is_ok() {
        return Ok(None);
    }
    // A server may refuse a request and close the connection before it has read all of it. Then
    // its answer says more than the error.
    for _ in 0..READS_PER_TURN {
        let Some(is_full) = turn.connection.receive()? else {
            break;
        };
        if read_replies(turn, shared, options.max_value_bytes)? == Progress::Done {
            return Ok(Some(()));
        }
        if !is_full {
            break;
        }
    }
    // A reply may have allowed more of the request to be sent.
    if turn.connection.interest() != Interest::Read && sent.is_ok() {
        turn.connection.send().map_err(send_failure)?;
    }
    sent.map(|()| None).map_err(send_failure)
}

fn read_replies<C: Conversation>(
    turn: &mut Turn<C>,
    shared: &mut C::Shared,
    max_value_bytes: usize,
) -> Result<Progress, Failure> {
    let (connection, conversation) = (&mut turn.connection, &mut turn.conversation);
    loop {
        let authenticates = connection.authenticates;
        let repeats = !authenticates && connection.repeated.is_waiting();
        let asks_for_frames = connection.asks_for_frames() && !authenticates && !repeats;
        let mut answer = None;
        let mut credits = None;
        let (step, consumed, skip) = match connection.reply(max_value_bytes)? {
            None | Some(Parsed::Partial { .. }) => return Ok(Progress::More),
            Some(Parsed::Complete { reply, consumed }) => match (authenticates, reply) {
                (_, Reply::Error { line, .. }) if line == TOO_MANY_CONNECTIONS => {
                    return Err(Failure::TooManyConnections);
                }
                (false, reply) if repeats => {
                    answer = Some(conversation::repeated_delete(&reply)?);
                    (Progress::More, consumed, 0)
                }
                (false, Reply::MultiGet { credits: granted }) if asks_for_frames => {
                    credits = Some(granted);
                    (Progress::More, consumed, 0)
                }
                (false, Reply::Error { line, .. }) if asks_for_frames => {
                    return Err(Failure::NoMultiGet(shown(line)));
                }
                (false, _) if asks_for_frames => {
                    let what = "not an answer to multi_get".to_owned();
                    return Err(Failure::Malformed(what));
                }
                (false, reply) => (conversation.reply(reply, shared)?, consumed, 0),
                (true, Reply::Line(Line::Stored)) => (Progress::More, consumed, 0),
                (true, Reply::Error { line, .. }) => {
                    return Err(Failure::Authentication(shown(line)));
                }
                (true, _) => {
                    let what = "not an answer to the password".to_owned();
                    return Err(Failure::Malformed(what));
                }
            },
            Some(Parsed::Oversized {
                reply,
                consumed,
                value_bytes,
                skip,
            }) => {
                if authenticates || repeats {
                    return Err(Failure::Malformed("a value before the answer".to_owned()));
                }
                conversation.oversized(reply, value_bytes, shared)?;
                (Progress::More, consumed, skip)
            }
        };
        if let Some(credits) = credits {
            connection.enable_frames(credits);
        }
        if let Some(is_deleted) = answer {
            connection.repeated.answered(is_deleted);
        }
        connection.authenticates = false;
        connection.consume(consumed, skip);
        if step == Progress::Done {
            return Ok(Progress::Done);
        }
    }
}

/// Connects to the server's next address, if it has one.
fn try_next_peer<C>(
    turn: &mut Turn<C>,
    mut error: io::Error,
    options: &RoundOptions<'_>,
) -> Result<(), Failure> {
    let host = options.resolvers[turn.server].host();
    while !turn.peers.is_empty() {
        let peer = turn.peers.remove(0);
        match turn.connection.reopen(&peer, host, options.tls) {
            Ok(()) => return Ok(()),
            Err(next) => error = next,
        }
    }
    Err(Failure::Connect(error))
}

fn send_failure(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Failure::Closed,
        _ => Failure::Io(error),
    }
}
