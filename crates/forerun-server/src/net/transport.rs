//! A connection's bytes, plain or in TLS, without waiting.
//!
//! ```text
//!   plain   socket ⇄ caller
//!   TLS     socket ⇄ records ⇄ rustls ⇄ caller        what rustls holds is bounded both ways
//! ```
//!
//! A write to a TLS connection may be taken by rustls and not yet by the socket; [`Transport::pending`] tells, and
//! [`Transport::flush`] goes on with it.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::sync::Arc;

use mio::{Interest, Registry, Token};
use rustls::{ServerConfig, ServerConnection};

use super::listener::Socket;

/// Bytes that rustls may hold back for a socket that takes no more.
const TLS_BUFFER_BYTES: usize = 64 << 10;

/// A connection's bytes. Its reads and writes never wait: `WouldBlock` says that the socket has no more.
pub(crate) struct Transport {
    socket: Socket,
    tls: Option<Box<ServerConnection>>,
}

impl Transport {
    pub(crate) fn plain(socket: Socket) -> Transport {
        Transport { socket, tls: None }
    }

    /// The server's side of a handshake that goes on as bytes come.
    pub(crate) fn tls(
        socket: Socket,
        config: Arc<ServerConfig>,
    ) -> Result<Transport, rustls::Error> {
        let mut tls = ServerConnection::new(config)?;
        tls.set_buffer_limit(Some(TLS_BUFFER_BYTES));
        Ok(Transport {
            socket,
            tls: Some(Box::new(tls)),
        })
    }

    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        registry.register(
            &mut self.socket,
            token,
            Interest::READABLE | Interest::WRITABLE,
        )
    }

    pub(crate) fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        registry.deregister(&mut self.socket)
    }

    /// Reads what is there; 0 is the other end's last word.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else {
            return retry(|| self.socket.read(into));
        };
        loop {
            match tls.reader().read(into) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // A peer that goes without TLS's goodbye has gone all the same.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(0),
                read => return read,
            }
            retry(|| tls.read_tls(&mut self.socket))?;
            let processed = tls.process_new_packets();
            // The handshake's next words, or the alert that tells what was wrong; a full socket takes them later.
            let told = send(tls, &mut self.socket);
            processed.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
            told?;
        }
    }

    /// Whether a read that does not fill the caller's room has emptied the socket.
    pub(crate) fn is_plain(&self) -> bool {
        self.tls.is_none()
    }

    /// Writes a part of `parts`, and tells how much.
    pub(crate) fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else {
            return match parts {
                [one] => retry(|| self.socket.write(one)),
                _ => retry(|| self.socket.write_vectored(parts)),
            };
        };
        let taken = tls.writer().write_vectored(parts)?;
        send(tls, &mut self.socket)?;
        match taken {
            0 if parts.iter().any(|part| !part.is_empty()) => Err(ErrorKind::WouldBlock.into()),
            taken => Ok(taken),
        }
    }

    /// Whether bytes that were taken have not been sent yet.
    pub(crate) fn pending(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// Sends what was taken, as far as the socket goes.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        match &mut self.tls {
            Some(tls) => send(tls, &mut self.socket),
            None => Ok(()),
        }
    }

    /// Says goodbye, where the protocol has one; the socket is closed by dropping it.
    pub(crate) fn goodbye(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            // It is a courtesy: a peer that is gone misses nothing.
            let _ = send(tls, &mut self.socket);
        }
    }
}

/// Sends what rustls holds until the socket takes no more, which is no error.
fn send(tls: &mut ServerConnection, socket: &mut Socket) -> io::Result<()> {
    while tls.wants_write() {
        match tls.write_tls(socket) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}
