//! The client's end of a connection.

use std::io::{self, ErrorKind, Read, Write};

use super::Net;

/// The client's end of a connection. Its reads and writes never wait.
#[derive(Debug)]
pub struct ClientSocket {
    pub(super) net: Net,
    pub(super) id: usize,
}

impl ClientSocket {
    /// Ends the sending side: nothing more will be written.
    pub fn end(&self) {
        let mut state = self.net.state();
        state.conns[self.id].c2s.ended = true;
        state.change(self.id, |changes| {
            changes.readable = true;
            changes.read_closed = true;
        });
    }

    /// Resets the connection. Bytes in transit are lost.
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
        conn.c2s.free_bytes() > 0 || conn.dropped || conn.reset
    }

    /// Whether everything that the server has sent was read, and it has not ended its side: there
    /// is space, and nothing that it owes is in transit.
    pub fn is_read(&self) -> bool {
        let state = self.net.state();
        let conn = &state.conns[self.id];
        !conn.reset && !conn.dropped && !conn.s2c.ended && conn.s2c.bytes.is_empty()
    }

    /// Bytes that the client has sent and the server has not read yet.
    pub fn unread(&self) -> usize {
        let state = self.net.state();
        let conn = &state.conns[self.id];
        if conn.reset || conn.dropped {
            0
        } else {
            conn.c2s.bytes.len()
        }
    }

    /// Bytes that the server has received and sent.
    pub fn transferred_bytes(&self) -> u64 {
        self.net.state().conns[self.id].transferred_bytes
    }

    /// The worker's poll that has the connection.
    pub fn poll(&self) -> Option<usize> {
        self.net.state().conns[self.id]
            .registration
            .map(|(poll, _)| poll)
    }

    /// Whether the acceptor has neither given it to a worker nor refused it.
    pub fn waits_to_be_accepted(&self) -> bool {
        let state = self.net.state();
        let conn = &state.conns[self.id];
        conn.registration.is_none() && conn.others_when_refused.is_none() && !conn.dropped
    }

    /// If no worker got the connection: how many others the server had when it refused it.
    pub fn others_when_refused(&self) -> Option<usize> {
        self.net.state().conns[self.id].others_when_refused
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
            return if conn.s2c.ended {
                Ok(0)
            } else {
                Err(ErrorKind::WouldBlock.into())
            };
        }
        if conn.wants_space && conn.has_space() {
            conn.wants_space = false;
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
