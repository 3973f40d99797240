//! Sockets in memory: small pipes, a listener's queue, and an edge-triggered poll.
//!
//! ```text
//!   client ── c2s ──> server          each pipe has a capacity, as a kernel's socket buffers have
//!   client <── s2c ── server
//! ```
//!
//! The poll reports a change once. `Style::Strict` reports only what changed: readable after bytes
//! arrived, writable after a write was refused and space became free. `Style::Epoll` reports the
//! whole state of a socket that changed, as epoll does, which hides some mistakes. A server must
//! work with the strict one.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forerun_server::Address;
use forerun_server::simulation::{Listening, Peer, Readiness, Ready, WAKE, Wake};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// How a socket's changes are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
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
    fn room(&self) -> usize {
        self.capacity - self.bytes.len()
    }

    fn put(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.room());
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
    style: Style,
    reset: bool,
    /// The server dropped its socket.
    dropped: bool,
    /// A write of the server was refused: the server is notified when there is space.
    wants_room: bool,
    /// The poll, and the token, under which it is registered.
    place: Option<(usize, usize)>,
    /// A worker has had it.
    was_let_in: bool,
    /// Changes not reported yet; the connection is in the poll's queue at most once.
    changes: Ready,
    queued: bool,
    /// Bytes that the server received and sent.
    moved: u64,
}

#[derive(Debug, Default)]
struct PollState {
    queue: VecDeque<Source>,
    woken: bool,
}

#[derive(Clone, Copy, Debug)]
enum Source {
    Conn(usize),
    Listener(usize),
}

#[derive(Debug)]
struct State {
    conns: Vec<Conn>,
    polls: Vec<PollState>,
    waiting: VecDeque<usize>,
    listener: Option<(usize, usize)>,
    /// Accepts that fail for lack of descriptors.
    refusals: u32,
    rng: SmallRng,
    /// One call in this many is interrupted; 0: none.
    interrupts: u32,
}

/// All sockets of a simulation.
#[derive(Clone, Debug)]
pub struct Net(Arc<Mutex<State>>);

const NOTHING: Ready = Ready {
    token: 0,
    readable: false,
    read_closed: false,
    writable: false,
};

impl State {
    fn change(&mut self, id: usize, change: impl FnOnce(&mut Ready)) {
        let conn = &mut self.conns[id];
        change(&mut conn.changes);
        if let Some((poll, _)) = conn.place
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
        Net(Arc::new(Mutex::new(State {
            conns: Vec::new(),
            polls: Vec::new(),
            waiting: VecDeque::new(),
            listener: None,
            refusals: 0,
            rng: SmallRng::seed_from_u64(seed),
            interrupts,
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
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

    pub fn listener(&self, address: Address, tls: bool) -> SimListener {
        SimListener {
            net: self.clone(),
            address,
            tls,
        }
    }

    /// The next server on this system begins with no polls and no waiting connections.
    pub fn forget_server(&self) {
        let mut state = self.state();
        state.polls.clear();
        state.listener = None;
        for id in std::mem::take(&mut state.waiting) {
            state.conns[id].reset = true;
        }
    }

    /// The next `count` connections cannot be accepted.
    pub fn refuse_accepts(&self, count: u32) {
        self.state().refusals += count;
    }

    /// Whether a poll has something to report.
    pub fn is_ready(&self, poll: usize) -> bool {
        let state = self.state();
        let poll = &state.polls[poll];
        poll.woken || !poll.queue.is_empty()
    }

    /// A client connects. `None`: nobody listens.
    pub fn connect(&self, capacities: (usize, usize), style: Style) -> Option<ClientSocket> {
        let mut state = self.state();
        let (poll, token) = state.listener?;
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
            wants_room: false,
            place: None,
            was_let_in: false,
            changes: NOTHING,
            queued: false,
            moved: 0,
        });
        state.waiting.push_back(id);
        state.polls[poll].queue.push_back(Source::Listener(token));
        Some(ClientSocket {
            net: self.clone(),
            id,
        })
    }

    /// Connections that the server holds.
    pub fn open(&self) -> usize {
        let state = self.state();
        let waiting = &state.waiting;
        let is_open = |(id, conn): (usize, &Conn)| !conn.dropped && !waiting.contains(&id);
        state
            .conns
            .iter()
            .enumerate()
            .filter(|&one| is_open(one))
            .count()
    }
}

/// The server's end of a connection.
#[derive(Debug)]
pub struct SimSocket {
    net: Net,
    id: usize,
}

impl Read for SimSocket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut state = self.net.state();
        state.interrupted()?;
        let conn = &mut state.conns[self.id];
        if conn.reset {
            return Err(ErrorKind::ConnectionReset.into());
        }
        let count = conn.c2s.take(into);
        conn.moved += count as u64;
        match count {
            0 if conn.c2s.ended || into.is_empty() => Ok(0),
            0 => Err(ErrorKind::WouldBlock.into()),
            count => Ok(count),
        }
    }
}

impl Write for SimSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut state = self.net.state();
        state.interrupted()?;
        let conn = &mut state.conns[self.id];
        if conn.reset {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let mut count = 0;
        for part in parts {
            let put = conn.s2c.put(part);
            count += put;
            if put < part.len() {
                break;
            }
        }
        conn.moved += count as u64;
        let wanted: usize = parts.iter().map(|part| part.len()).sum();
        // Linux also records the need for space if a write was taken in part.
        conn.wants_room |= count == 0 || (conn.style == Style::Epoll && count < wanted);
        match count {
            0 if wanted > 0 => Err(ErrorKind::WouldBlock.into()),
            count => Ok(count),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for SimSocket {
    fn drop(&mut self) {
        let mut state = self.net.state();
        let conn = &mut state.conns[self.id];
        conn.dropped = true;
        conn.s2c.ended = true;
        conn.place = None;
    }
}

/// The source of connections.
#[derive(Debug)]
pub struct SimListener {
    net: Net,
    address: Address,
    tls: bool,
}

impl Listening for SimListener {
    type Socket = SimSocket;

    fn accept(&self) -> io::Result<(SimSocket, Peer)> {
        let mut state = self.net.state();
        state.interrupted()?;
        if state.waiting.is_empty() {
            return Err(ErrorKind::WouldBlock.into());
        }
        if state.refusals > 0 {
            state.refusals -= 1;
            return Err(io::Error::other("no descriptor is left"));
        }
        let id = state.waiting.pop_front().ok_or(ErrorKind::WouldBlock)?;
        drop(state);
        let socket = SimSocket {
            net: self.net.clone(),
            id,
        };
        Ok((socket, Peer::Unix))
    }

    fn address(&self) -> &Address {
        &self.address
    }

    fn speaks_tls(&self) -> bool {
        self.tls
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        let mut state = self.net.state();
        state.listener = None;
        for id in std::mem::take(&mut state.waiting) {
            state.conns[id].reset = true;
            state.conns[id].dropped = true;
        }
    }
}

/// A poll of the server.
#[derive(Clone, Debug)]
pub struct SimPoll {
    net: Net,
    number: usize,
}

impl Readiness for SimPoll {
    type Socket = SimSocket;
    type Listener = SimListener;

    /// The caller calls it only if there is something to report or the time has come, so it never
    /// waits.
    fn poll(&mut self, _: Option<Duration>, mut tell: impl FnMut(Ready)) -> io::Result<()> {
        let mut told = Vec::new();
        {
            let mut state = self.net.state();
            state.interrupted()?;
            let poll = &mut state.polls[self.number];
            if std::mem::take(&mut poll.woken) {
                told.push(Ready {
                    token: WAKE,
                    readable: true,
                    ..NOTHING
                });
            }
            for source in std::mem::take(&mut poll.queue) {
                match source {
                    Source::Listener(token) => told.push(Ready {
                        token,
                        readable: true,
                        ..NOTHING
                    }),
                    Source::Conn(id) => {
                        let conn = &mut state.conns[id];
                        conn.queued = false;
                        let changes = std::mem::replace(&mut conn.changes, NOTHING);
                        let Some((_, token)) = conn.place else {
                            continue;
                        };
                        told.push(match conn.style {
                            Style::Strict => Ready { token, ..changes },
                            Style::Epoll => conn.state(token),
                        });
                    }
                }
            }
        }
        told.into_iter().for_each(&mut tell);
        Ok(())
    }

    fn register(&self, socket: &mut SimSocket, token: usize) -> io::Result<()> {
        let mut state = self.net.state();
        let conn = &mut state.conns[socket.id];
        conn.place = Some((self.number, token));
        conn.was_let_in = true;
        let now = conn.state(token);
        state.change(socket.id, |changes| *changes = now);
        Ok(())
    }

    fn register_listener(&self, _: &mut SimListener, token: usize) -> io::Result<()> {
        self.net.state().listener = Some((self.number, token));
        Ok(())
    }

    fn deregister(&self, socket: &mut SimSocket) -> io::Result<()> {
        self.net.state().conns[socket.id].place = None;
        Ok(())
    }
}

impl Wake for SimPoll {
    fn wake(&self) -> io::Result<()> {
        match self.net.state().polls.get_mut(self.number) {
            Some(poll) => poll.woken = true,
            None => return Err(ErrorKind::NotFound.into()),
        }
        Ok(())
    }
}

impl Conn {
    fn state(&self, token: usize) -> Ready {
        let read_closed = self.c2s.ended || self.reset;
        Ready {
            token,
            readable: !self.c2s.bytes.is_empty() || read_closed,
            read_closed,
            writable: self.is_roomy() || self.reset,
        }
    }

    /// Whether there is enough space for a poll to report it: a third of the buffer.
    fn is_roomy(&self) -> bool {
        3 * self.s2c.room() >= self.s2c.capacity
    }
}

/// The client's end of a connection. Its reads and writes never wait.
#[derive(Debug)]
pub struct ClientSocket {
    net: Net,
    id: usize,
}

impl ClientSocket {
    /// Nothing more will be written.
    pub fn end(&self) {
        let mut state = self.net.state();
        state.conns[self.id].c2s.ended = true;
        state.change(self.id, |changes| {
            changes.readable = true;
            changes.read_closed = true;
        });
    }

    /// The connection is reset; bytes in transit are lost.
    pub fn reset(&self) {
        let mut state = self.net.state();
        let conn = &mut state.conns[self.id];
        conn.reset = true;
        conn.c2s.bytes.clear();
        conn.s2c.bytes.clear();
        state.change(self.id, |changes| {
            changes.readable = true;
            changes.read_closed = true;
            changes.writable = true;
        });
    }

    /// Whether bytes, or the end, can be read.
    pub fn is_readable(&self) -> bool {
        let state = self.net.state();
        let conn = &state.conns[self.id];
        !conn.s2c.bytes.is_empty() || conn.s2c.ended || conn.reset
    }

    /// Whether there is space for bytes.
    pub fn is_writable(&self) -> bool {
        let state = self.net.state();
        let conn = &state.conns[self.id];
        conn.c2s.room() > 0 || conn.dropped || conn.reset
    }

    /// Whether everything that the server has sent was read: there is space, and nothing that it
    /// owes is in transit.
    pub fn is_read(&self) -> bool {
        let state = self.net.state();
        let conn = &state.conns[self.id];
        !conn.reset && !conn.dropped && conn.s2c.bytes.is_empty()
    }

    /// Bytes that the client has sent and the server has not read yet.
    pub fn unread(&self) -> usize {
        let state = self.net.state();
        let conn = &state.conns[self.id];
        match conn.reset || conn.dropped {
            true => 0,
            false => conn.c2s.bytes.len(),
        }
    }

    /// Bytes that the server has received and sent.
    pub fn moved(&self) -> u64 {
        self.net.state().conns[self.id].moved
    }

    /// The worker's poll that has the connection.
    pub fn poll(&self) -> Option<usize> {
        self.net.state().conns[self.id].place.map(|(poll, _)| poll)
    }

    /// Whether a worker has or had the connection.
    pub fn was_let_in(&self) -> bool {
        self.net.state().conns[self.id].was_let_in
    }

    /// Whether the server has dropped it.
    pub fn is_dropped(&self) -> bool {
        self.net.state().conns[self.id].dropped
    }
}

impl Read for ClientSocket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut state = self.net.state();
        let conn = &mut state.conns[self.id];
        if conn.reset {
            return Err(ErrorKind::ConnectionReset.into());
        }
        let count = conn.s2c.take(into);
        if count == 0 {
            return match conn.s2c.ended {
                true => Ok(0),
                false => Err(ErrorKind::WouldBlock.into()),
            };
        }
        if conn.wants_room && conn.is_roomy() {
            conn.wants_room = false;
            state.change(self.id, |changes| changes.writable = true);
        }
        Ok(count)
    }
}

impl Write for ClientSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.net.state();
        let conn = &mut state.conns[self.id];
        if conn.reset || conn.dropped {
            return Err(ErrorKind::BrokenPipe.into());
        }
        match conn.c2s.put(bytes) {
            0 => Err(ErrorKind::WouldBlock.into()),
            count => {
                state.change(self.id, |changes| changes.readable = true);
                Ok(count)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
