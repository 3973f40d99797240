//! A worker: one thread, one poll, the connections that were handed to it.
//!
//! ```text
//!   front ── Message ──> inbox ─┐
//!                               v
//!   a turn:  poll ──> for each connection that was told of, and each with more to do:
//!                       read what is there, answer it, write            (bounded, nothing waits)
//! ```

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forerun_core::sync::{
    mpsc::{Receiver, Sender, channel},
    time,
};
use mio::{Events, Poll, Token, Waker};
use rustls::ServerConfig;
use slab::Slab;

use crate::auth::UserFile;
use crate::context::Context;
use crate::net::{Socket, Transport};
use crate::shared::Shared;

use super::connection::{Connection, Spare, Turn, Turns};
use super::connections::{Connections, Ticket};
use super::control::Control;

/// Connections that one poll tells of; more are told by the next.
const EVENTS: usize = 1024;
/// The token of what wakes a worker; connections have their place's number.
const WAKE: Token = Token(usize::MAX);
/// How often connections are looked through for silent ones.
const SWEEP: Duration = Duration::from_secs(1);

/// What the front tells a worker.
pub(crate) enum Message {
    /// A connection is this worker's now.
    Take {
        /// Its socket.
        socket: Socket,
        /// Its place among the others.
        ticket: Ticket,
        /// Whether it speaks TLS.
        tls: bool,
    },
    /// Answer what was received, then close; at the latest at this time. Then end.
    Drain(Instant),
}

/// The front's end of a worker.
#[derive(Clone)]
pub(crate) struct Handle {
    inbox: Sender<Message>,
    waker: Arc<Waker>,
}

impl Handle {
    /// Sends a message. A worker that has ended takes none, and what was in it is dropped: a connection is closed.
    pub(crate) fn send(&self, message: Message) {
        if self.inbox.send(message).is_ok() {
            // It fails only where the poll is gone, and with it the worker.
            let _ = self.waker.wake();
        }
    }
}

/// What all workers need to know.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) shared: Arc<Shared>,
    pub(crate) connections: Arc<Connections>,
    pub(crate) control: Control,
    pub(crate) tls: Option<Arc<ServerConfig>>,
    pub(crate) users: Option<Arc<UserFile>>,
    pub(crate) idle_timeout_s: u64,
}

/// A worker's state; [`Worker::run`] is its thread.
pub(crate) struct Worker {
    poll: Poll,
    inbox: Receiver<Message>,
    setup: Setup,
    context: Context,
    spare: Spare,
    connections: Slab<Connection>,
    /// Those that have more to do than one turn allows.
    again: Vec<usize>,
    /// Set once: when the last connection is closed, whatever it still does.
    deadline: Option<Instant>,
    swept: Instant,
}

impl Worker {
    /// A worker and the front's end of it.
    pub(crate) fn new(setup: Setup) -> io::Result<(Worker, Handle)> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKE)?);
        let (sender, inbox) = channel();
        let context = Context::new(setup.shared.clone());
        let worker = Worker {
            poll,
            inbox,
            setup,
            context,
            spare: Spare::default(),
            connections: Slab::new(),
            again: Vec::new(),
            deadline: None,
            swept: time::now(),
        };
        let handle = Handle {
            inbox: sender,
            waker,
        };
        Ok((worker, handle))
    }

    /// Serves until it is told to drain and has.
    ///
    /// # Errors
    /// The poll's, which no connection can cause.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(EVENTS);
        let mut turn = Vec::with_capacity(EVENTS);
        while !self.is_done() {
            match self.poll.poll(&mut events, self.timeout()) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                polled => polled?,
            }
            turn.append(&mut self.again);
            let mut called = false;
            for event in &events {
                if event.token() == WAKE {
                    called = true;
                } else if let Some(connection) = self.connections.get_mut(event.token().0)
                    && connection.told(event)
                {
                    turn.push(event.token().0);
                }
            }
            for key in turn.drain(..) {
                self.turn(key, Connection::turn);
            }
            if called {
                self.take_messages();
            }
            self.sweep();
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.deadline
            .is_some_and(|deadline| self.connections.is_empty() || time::now() >= deadline)
    }

    /// How long to wait for the system to tell of something.
    fn timeout(&self) -> Option<Duration> {
        if !self.again.is_empty() {
            return Some(Duration::ZERO);
        }
        if let Some(deadline) = self.deadline {
            return Some(deadline.saturating_duration_since(time::now()));
        }
        (self.setup.idle_timeout_s > 0 && !self.connections.is_empty()).then_some(SWEEP)
    }

    /// Gives a connection a turn, of one kind or another.
    fn turn(&mut self, key: usize, what: fn(&mut Connection, &mut Turns<'_>) -> Turn) {
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        let mut turns = Turns {
            context: &mut self.context,
            users: self.setup.users.as_deref(),
            spare: &mut self.spare,
            now_s: self.setup.connections.now_s(),
        };
        match what(connection, &mut turns) {
            Turn::Wait => {}
            Turn::Again => self.again.push(key),
            Turn::Close => self.close(key),
            Turn::Shutdown => {
                self.again.push(key);
                self.setup.control.drain();
            }
        }
    }

    fn close(&mut self, key: usize) {
        if let Some(mut connection) = self.connections.try_remove(key) {
            connection.leave();
            // It fails for a socket that is broken already; dropping it takes it off the poll as well.
            let _ = connection.transport().deregister(self.poll.registry());
        }
    }

    fn take_messages(&mut self) {
        while let Ok(message) = self.inbox.try_recv() {
            match message {
                Message::Take {
                    socket,
                    ticket,
                    tls,
                } => {
                    if let Err(error) = self.take(socket, ticket, tls) {
                        tracing::warn!(%error, "a new connection was lost");
                    }
                }
                Message::Drain(deadline) => {
                    self.deadline = Some(deadline);
                    let keys: Vec<usize> = self.connections.iter().map(|(key, _)| key).collect();
                    for key in keys {
                        self.turn(key, Connection::finish);
                    }
                }
            }
        }
    }

    fn take(&mut self, socket: Socket, ticket: Ticket, tls: bool) -> io::Result<()> {
        if self.deadline.is_some() {
            return Ok(());
        }
        let mut transport = match &self.setup.tls {
            Some(config) if tls => {
                Transport::tls(socket, config.clone()).map_err(io::Error::other)?
            }
            _ => Transport::plain(socket),
        };
        let place = self.connections.vacant_entry();
        transport.register(self.poll.registry(), Token(place.key()))?;
        let authenticates = self.setup.users.is_some();
        place.insert(Connection::new(transport, ticket, authenticates));
        Ok(())
    }

    /// Closes the connections that have been silent for too long.
    fn sweep(&mut self) {
        let limit_s = self.setup.idle_timeout_s;
        if limit_s == 0 || time::elapsed(self.swept) < SWEEP {
            return;
        }
        self.swept = time::now();
        let now_s = self.setup.connections.now_s();
        let silent: Vec<usize> = self
            .connections
            .iter()
            .filter(|(_, connection)| {
                now_s.saturating_sub(connection.ticket.last_heard_s()) > limit_s
            })
            .map(|(key, _)| key)
            .collect();
        for key in silent {
            self.setup.connections.kicked();
            self.close(key);
        }
    }
}
