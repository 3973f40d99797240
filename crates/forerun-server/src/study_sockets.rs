//! The server's sockets for a study's own server: the same listeners, connections over TCP and UCX,
//! and reports.
//!
//! ```text
//!   Sockets::poll ──> Ready, by the caller's number         a connection can be read or written
//!                └──> true: Sockets::accept                 connections wait
//! ```

use std::io::{self, ErrorKind, IoSlice, Read, Write};

use crate::address::{Address, Listen};
use crate::error::Error;
use crate::os_system::{OsPoll, OsSystem};
use crate::system::{Carrier, Listening, Readiness, Ready, System};

use crate::net::{Listener, Socket};

/// Reports of one poll at most.
const EVENTS: usize = 1024;

/// Listeners, and a poll that watches them and their connections, as the server's does.
#[derive(Debug)]
pub struct Sockets {
    poll: OsPoll,
    /// Their tokens are their positions. Connections have the tokens after them.
    listeners: Vec<Listener>,
}

/// A connection. Its calls never block.
#[derive(Debug)]
pub struct Connection(Socket);

impl Sockets {
    /// Listens on all these addresses.
    ///
    /// # Errors
    /// [`Error::Listen`], [`Error::NoUcx`] and others of an address; [`Error::Start`].
    pub fn listen(places: &[Listen]) -> Result<Sockets, Error> {
        let start = |source| Error::Start {
            what: "a poll",
            source,
        };
        let (poll, _) = OsSystem.poll(EVENTS).map_err(start)?;
        let bind = |place| OsSystem.bind(place, EVENTS as u32);
        let listeners: Result<Vec<Listener>, Error> = places.iter().map(bind).collect();
        let mut listeners = listeners?;
        for (token, listener) in listeners.iter_mut().enumerate() {
            poll.register_listener(listener, token).map_err(start)?;
        }
        Ok(Sockets { poll, listeners })
    }

    /// The addresses, with the ports that the system assigned.
    pub fn addresses(&self) -> impl Iterator<Item = &Address> {
        self.listeners.iter().map(Listening::address)
    }

    /// Waits until something is ready, and calls `tell` for each connection that is. Returns
    /// whether connections wait to be accepted.
    ///
    /// # Errors
    /// The system's error.
    pub fn poll(&mut self, mut tell: impl FnMut(Ready)) -> io::Result<bool> {
        let first = self.listeners.len();
        let mut is_any_waiting = false;
        self.poll
            .poll(None, |ready| match ready.token.checked_sub(first) {
                Some(token) => tell(Ready { token, ..ready }),
                None => is_any_waiting = true,
            })?;
        Ok(is_any_waiting)
    }

    /// Accepts a connection, if one waits.
    ///
    /// # Errors
    /// The system's error.
    pub fn accept(&self) -> io::Result<Option<Connection>> {
        for listener in &self.listeners {
            loop {
                match listener.accept() {
                    Ok((socket, _)) => return Ok(Some(Connection(socket))),
                    Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(None)
    }

    /// Watches a connection. The poll reports it under `token`, which is below 2^32.
    ///
    /// # Errors
    /// The system's or UCX's error.
    pub fn register(&self, connection: &mut Connection, token: usize) -> io::Result<()> {
        let token = token + self.listeners.len();
        self.poll.register(&mut connection.0, token)
    }

    /// Stops watching a connection.
    ///
    /// # Errors
    /// The system's error.
    pub fn deregister(&self, connection: &mut Connection) -> io::Result<()> {
        self.poll.deregister(&mut connection.0)
    }
}

impl Connection {
    /// Whether a read that does not fill its buffer has taken everything, so that the poll reports
    /// what comes next.
    pub fn is_emptied_by_short_read(&self) -> bool {
        self.0.is_emptied_by_short_read()
    }
}

impl Read for Connection {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

impl Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.write_vectored(parts)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;

    #[test]
    fn connections_are_reported_by_their_numbers_and_apart_from_listeners() {
        let places = Listen::parse("127.0.0.1:0", 0).expect("an address");
        let mut sockets = Sockets::listen(&[&places[..], &places].concat()).expect("free ports");
        let addresses: Vec<_> = sockets.addresses().map(Address::to_string).collect();
        assert_eq!(addresses.len(), 2);
        let mut clients = Vec::new();
        let mut connections: Vec<Connection> = Vec::new();
        for address in &addresses {
            clients.push(TcpStream::connect(address).expect("it accepts"));
            while connections.len() < clients.len() {
                let mut is_any_waiting = false;
                while !is_any_waiting {
                    is_any_waiting = sockets.poll(|_| {}).expect("it polls");
                }
                while let Some(mut connection) = sockets.accept().expect("it accepts") {
                    let token = connections.len();
                    sockets.register(&mut connection, token).expect("a socket");
                    connections.push(connection);
                }
            }
        }
        clients[1].write_all(b"ping").expect("it is sent");
        let mut readable = Vec::new();
        while readable.is_empty() {
            let report = |ready: Ready| readable.extend(ready.readable.then_some(ready.token));
            sockets.poll(report).expect("it polls");
        }
        assert_eq!(readable, [1]);
        let mut bytes = [0; 10];
        assert_eq!(connections[1].read(&mut bytes).expect("bytes"), 4);
        assert!(connections[1].is_emptied_by_short_read());
        let error = connections[0].read(&mut bytes).expect_err("nothing");
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        connections[1].write_all(b"pong").expect("it is sent");
        clients[1].read_exact(&mut bytes[..4]).expect("it is sent");
        assert_eq!(&bytes[..4], b"pong");
        sockets.deregister(&mut connections[0]).expect("a socket");
    }
}
