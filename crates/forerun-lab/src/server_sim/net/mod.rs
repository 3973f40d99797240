//! Sockets in memory: small pipes, a listener's queue, and an edge-triggered poll.
//!
//! ```text
//!   client ── c2s ──> server          each pipe has a capacity, as a kernel's socket buffers have
//!   client <── s2c ── server
//! ```
//!
//! The poll is edge-triggered: it reports a change once. `ReportStyle::Strict` reports only the
//! change: readable after bytes arrived, writable after a write was refused and space became free.
//! `ReportStyle::Epoll` reports the whole state of a socket that changed, as epoll does, which
//! hides some bugs. A server must work with the strict style.

mod client_socket;
mod server;

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forerun_server::simulation::{Ready, Wake};
use forerun_server::{Listen, Protocol};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

pub use client_socket::ClientSocket;
pub use server::{SimListener, SimPoll, SimSocket};

/// How a socket's changes are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportStyle {
    /// Only what changed.
    Strict,
    /// The whole state when something changed.
    Epoll,
}

/// Bytes in transit in one direction.
#[derive(Debug, Default)]
struct Pipe {
    bytes: VecDeque<u8>,
    capacity: usize,
    /// The writing end is closed.
    ended: bool,
}

impl Pipe {
    fn free_bytes(&self) -> usize {
        self.capacity - self.bytes.len()
    }

    fn put(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.free_bytes());
        self.bytes.extend(&bytes[..count]);
        count
    }

    fn take(&mut self, into: &mut [u8]) -> usize {
        let count = into.len().min(self.bytes.len());
        let (front, back) = self.bytes.as_slices();
        let first = count.min(front.len());
        into[..first].copy_from_slice(&front[..first]);
        into[first..count].copy_from_slice(&back[..count - first]);
        self.bytes.drain(..count);
        count
    }
}

/// A connection, with both ends.
#[derive(Debug)]
struct Conn {
    c2s: Pipe,
    s2c: Pipe,
    style: ReportStyle,
    reset: bool,
    /// The server dropped its socket.
    dropped: bool,
    /// A write of the server was refused. The server is notified when there is space.
    wants_space: bool,
    /// The poll, and the token, under which it is registered.
    registration: Option<(usize, usize)>,
    /// A worker has had it.
    was_registered: bool,
    /// The acceptor has accepted it.
    was_accepted: bool,
    /// If no worker got it: how many other connections the server had when it refused this one.
    others_when_refused: Option<usize>,
    /// Changes not reported yet; the connection is in the poll's queue at most once.
    changes: Ready,
    queued: bool,
    /// Bytes that the server received and sent.
    transferred_bytes: u64,
}

#[derive(Debug, Default)]
struct PollState {
    queue: VecDeque<Source>,
    woken: bool,
}

/// A bound listener.
#[derive(Debug)]
struct ListenerState {
    tls: bool,
    protocol: Protocol,
    /// The poll and the token under which it is registered; `None` if no server listens.
    registration: Option<(usize, usize)>,
    /// Connections that wait to be accepted.
    waiting: VecDeque<usize>,
}

#[derive(Clone, Copy, Debug)]
enum Source {
    Conn(usize),
    Listener(usize),
}

#[derive(Debug)]
struct NetState {
    conns: Vec<Conn>,
    polls: Vec<PollState>,
    /// In the order in which the server bound them.
    listeners: Vec<ListenerState>,
    /// Accepts that fail for lack of descriptors.
    refusals: u32,
    rng: SmallRng,
    /// One call in this many is interrupted; 0: none.
    interrupts: u32,
}

/// All sockets of a simulation.
#[derive(Clone, Debug)]
pub struct Net(Arc<Mutex<NetState>>);

const NOTHING: Ready = Ready {
    token: 0,
    readable: false,
    read_closed: false,
    writable: false,
};

impl NetState {
    fn change(&mut self, id: usize, change: impl FnOnce(&mut Ready)) {
        let conn = &mut self.conns[id];
        change(&mut conn.changes);
        if let Some((poll, _)) = conn.registration
            && !conn.queued
        {
            conn.queued = true;
            self.polls[poll].queue.push_back(Source::Conn(id));
        }
    }

    fn interrupted(&mut self) -> io::Result<()> {
        if self.interrupts > 0 && self.rng.random_range(0..self.interrupts) == 0 {
            return Err(ErrorKind::Interrupted.into());
        }
        Ok(())
    }
}

impl Net {
    pub fn new(seed: u64, interrupts: u32) -> Net {
        Net(Arc::new(Mutex::new(NetState {
            conns: Vec::new(),
            polls: Vec::new(),
            listeners: Vec::new(),
            refusals: 0,
            rng: SmallRng::seed_from_u64(seed),
            interrupts,
        })))
    }

    fn state(&self) -> MutexGuard<'_, NetState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A poll; polls are numbered in order of creation: 0 is the acceptor's, and the workers'
    /// follow.
    pub fn poll(&self) -> (SimPoll, Arc<dyn Wake>) {
        let mut state = self.state();
        let number = state.polls.len();
        state.polls.push(PollState::default());
        let poll = SimPoll {
            net: self.clone(),
            number,
        };
        (poll.clone(), Arc::new(poll))
    }

    pub fn listener(&self, listen: &Listen) -> SimListener {
        let (tls, protocol) = (listen.tls, listen.protocol);
        let mut state = self.state();
        state.listeners.push(ListenerState {
            tls,
            protocol,
            registration: None,
            waiting: VecDeque::new(),
        });
        SimListener {
            net: self.clone(),
            number: state.listeners.len() - 1,
            address: listen.address.clone(),
            tls,
            protocol,
        }
    }

    /// Removes all polls and waiting connections, for the next server on this system.
    pub fn forget_server(&self) {
        let mut state = self.state();
        state.polls.clear();
        for bound in std::mem::take(&mut state.listeners) {
            for id in bound.waiting {
                state.conns[id].reset = true;
            }
        }
    }

    /// Makes the next `count` accepts fail.
    pub fn refuse_accepts(&self, count: u32) {
        self.state().refusals += count;
    }

    /// Whether a poll has something to report.
    pub fn is_ready(&self, poll: usize) -> bool {
        let state = self.state();
        let poll = &state.polls[poll];
        poll.woken || !poll.queue.is_empty()
    }

    /// Connects a client to the listener of a protocol with or without TLS. Returns `None` if no
    /// server listens.
    pub fn connect(
        &self,
        tls: bool,
        protocol: Protocol,
        capacities: (usize, usize),
        style: ReportStyle,
    ) -> Option<ClientSocket> {
        let mut state = self.state();
        let mut listeners = state.listeners.iter();
        let number = listeners.position(|bound| {
            (bound.tls, bound.protocol) == (tls, protocol) && bound.registration.is_some()
        })?;
        let (poll, token) = state.listeners[number].registration?;
        let id = state.conns.len();
        let pipe = |capacity| Pipe {
            capacity,
            ..Pipe::default()
        };
        state.conns.push(Conn {
            c2s: pipe(capacities.0),
            s2c: pipe(capacities.1),
            style,
            reset: false,
            dropped: false,
            wants_space: false,
            registration: None,
            was_registered: false,
            was_accepted: false,
            others_when_refused: None,
            changes: NOTHING,
            queued: false,
            transferred_bytes: 0,
        });
        state.listeners[number].waiting.push_back(id);
        state.polls[poll].queue.push_back(Source::Listener(token));
        Some(ClientSocket {
            net: self.clone(),
            id,
        })
    }

    /// Connections that the server holds.
    pub fn open(&self) -> usize {
        let state = self.state();
        let waits = |id| {
            state
                .listeners
                .iter()
                .any(|bound| bound.waiting.contains(&id))
        };
        let is_open = |(id, conn): (usize, &Conn)| !conn.dropped && !waits(id);
        state
            .conns
            .iter()
            .enumerate()
            .filter(|&one| is_open(one))
            .count()
    }
}

impl Conn {
    fn state(&self, token: usize) -> Ready {
        let read_closed = self.c2s.ended || self.reset;
        Ready {
            token,
            readable: !self.c2s.bytes.is_empty() || read_closed,
            read_closed,
            writable: self.has_space() || self.reset,
        }
    }

    /// Whether there is enough space for a poll to report it: a third of the buffer.
    fn has_space(&self) -> bool {
        3 * self.s2c.free_bytes() >= self.s2c.capacity
    }
}
