//! The server's ends: its sockets, its listeners, and its polls.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::time::Duration;

use forerun_server::simulation::{Carrier, Listening, Peer, Readiness, Ready, WAKE, Wake};
use forerun_server::{Address, Protocol};

use super::{Conn, NOTHING, Net, ReportStyle, Source};

/// The server's end of a connection.
#[derive(Debug)]
pub struct SimSocket {
    pub(super) net: Net,
    pub(super) id: usize,
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
        conn.transferred_bytes += count as u64;
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
        conn.transferred_bytes += count as u64;
        let wanted: usize = parts.iter().map(|part| part.len()).sum();
        // Linux also records the need for space if a write was taken in part.
        conn.wants_space |= count == 0 || (conn.style == ReportStyle::Epoll && count < wanted);
        match count {
            0 if wanted > 0 => Err(ErrorKind::WouldBlock.into()),
            count => Ok(count),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Carrier for SimSocket {
    fn end_writes(&mut self) -> io::Result<bool> {
        self.note_refusal();
        let mut state = self.net.state();
        let conn = &mut state.conns[self.id];
        if conn.reset {
            return Err(ErrorKind::NotConnected.into());
        }
        conn.s2c.ended = true;
        Ok(true)
    }
}

impl SimSocket {
    /// Counts the other connections if no worker has got this one.
    fn note_refusal(&self) {
        let mut state = self.net.state();
        let is_held =
            |conn: &&Conn| conn.was_accepted && !conn.dropped && conn.others_when_refused.is_none();
        let held = state.conns.iter().filter(is_held).count();
        let conn = &mut state.conns[self.id];
        if !conn.was_registered && conn.others_when_refused.is_none() {
            conn.others_when_refused = Some(held - 1);
        }
    }
}

impl Drop for SimSocket {
    fn drop(&mut self) {
        self.note_refusal();
        let mut state = self.net.state();
        let conn = &mut state.conns[self.id];
        conn.dropped = true;
        conn.s2c.ended = true;
        conn.registration = None;
    }
}

/// The source of connections.
#[derive(Debug)]
pub struct SimListener {
    pub(super) net: Net,
    /// Its place among the server's listeners.
    pub(super) number: usize,
    pub(super) address: Address,
    pub(super) tls: bool,
    pub(super) protocol: Protocol,
}

impl Listening for SimListener {
    type Socket = SimSocket;

    fn accept(&self) -> io::Result<(SimSocket, Peer)> {
        let mut state = self.net.state();
        state.interrupted()?;
        if state.listeners[self.number].waiting.is_empty() {
            return Err(ErrorKind::WouldBlock.into());
        }
        if state.refusals > 0 {
            state.refusals -= 1;
            return Err(io::Error::other("no descriptor is left"));
        }
        let waiting = &mut state.listeners[self.number].waiting;
        let id = waiting.pop_front().ok_or(ErrorKind::WouldBlock)?;
        state.conns[id].was_accepted = true;
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

    fn protocol(&self) -> Protocol {
        self.protocol
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        let mut state = self.net.state();
        let Some(bound) = state.listeners.get_mut(self.number) else {
            return;
        };
        bound.registration = None;
        for id in std::mem::take(&mut bound.waiting) {
            state.conns[id].reset = true;
            state.conns[id].dropped = true;
        }
    }
}

/// A poll of the server.
#[derive(Clone, Debug)]
pub struct SimPoll {
    pub(super) net: Net,
    pub(super) number: usize,
}

impl Readiness for SimPoll {
    type Socket = SimSocket;
    type Listener = SimListener;

    /// The caller calls it only if there is something to report or the time has come, so it never
    /// waits.
    fn poll(&mut self, _: Option<Duration>, mut report: impl FnMut(Ready)) -> io::Result<()> {
        let mut reports = Vec::new();
        {
            let mut state = self.net.state();
            state.interrupted()?;
            let poll = &mut state.polls[self.number];
            if std::mem::take(&mut poll.woken) {
                reports.push(Ready {
                    token: WAKE,
                    readable: true,
                    ..NOTHING
                });
            }
            for source in std::mem::take(&mut poll.queue) {
                match source {
                    Source::Listener(token) => reports.push(Ready {
                        token,
                        readable: true,
                        ..NOTHING
                    }),
                    Source::Conn(id) => {
                        let conn = &mut state.conns[id];
                        conn.queued = false;
                        let changes = std::mem::replace(&mut conn.changes, NOTHING);
                        let Some((_, token)) = conn.registration else {
                            continue;
                        };
                        reports.push(match conn.style {
                            ReportStyle::Strict => Ready { token, ..changes },
                            ReportStyle::Epoll => conn.state(token),
                        });
                    }
                }
            }
        }
        reports.into_iter().for_each(&mut report);
        Ok(())
    }

    fn register(&self, socket: &mut SimSocket, token: usize) -> io::Result<()> {
        let mut state = self.net.state();
        let conn = &mut state.conns[socket.id];
        conn.registration = Some((self.number, token));
        conn.was_registered = true;
        let now = conn.state(token);
        state.change(socket.id, |changes| *changes = now);
        Ok(())
    }

    fn register_listener(&self, listener: &mut SimListener, token: usize) -> io::Result<()> {
        let registration = Some((self.number, token));
        self.net.state().listeners[listener.number].registration = registration;
        Ok(())
    }

    fn deregister(&self, socket: &mut SimSocket) -> io::Result<()> {
        self.net.state().conns[socket.id].registration = None;
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
