//! A connection's bytes, with or without TLS. No call blocks.
//!
//! ```text
//!   plain   socket ⇄ caller
//!   TLS     socket ⇄ records ⇄ rustls ⇄ caller        rustls's buffers are bounded both ways
//! ```
//!
//! Rustls may hold bytes of a write that the socket has not taken yet: [`Transport::pending`]
//! reports them, and [`Transport::flush`] sends them.
//!
//! The poll is edge-triggered: it reports a socket as writable only after a write to that socket
//! has failed with `WouldBlock`. So a `WouldBlock` from this module always comes from the socket,
//! in the same call; rustls's own limits never cause one.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::ops::Range;
use std::sync::Arc;

use forerun_cache::SharedValue;
use rustls::{ServerConfig, ServerConnection};

use crate::system::Carrier;

use super::tls::refusal;

/// Maximum number of bytes that rustls buffers for a socket that is full.
pub(crate) const TLS_BUFFER_BYTES: usize = 64 << 10;

/// Bytes that rustls allocates for a connection after its handshake, measured with TLS 1.3.
const TLS_CONNECTION_BYTES: usize = 7500;

/// A connection's bytes. Reads and writes never block: `WouldBlock` means that the socket has no
/// more bytes or no more space.
pub(crate) struct Transport<K> {
    socket: K,
    tls: Option<Box<ServerConnection>>,
    /// Whether the socket sent or received bytes since the last [`Transport::take_moved`].
    moved: bool,
    /// Whether the peer broke the rules of TLS.
    has_refused: bool,
}

impl<K: Carrier> Transport<K> {
    pub(crate) fn plain(socket: K) -> Transport<K> {
        Transport {
            socket,
            tls: None,
            moved: false,
            has_refused: false,
        }
    }

    /// Accepts a TLS connection. The handshake proceeds as bytes arrive.
    pub(crate) fn tls(socket: K, config: Arc<ServerConfig>) -> Result<Transport<K>, rustls::Error> {
        let mut tls = ServerConnection::new(config)?;
        tls.set_buffer_limit(Some(TLS_BUFFER_BYTES));
        Ok(Transport {
            socket,
            tls: Some(Box::new(tls)),
            moved: false,
            has_refused: false,
        })
    }

    /// Memory that rustls uses for this connection, without buffered bytes.
    pub(crate) fn tls_bytes(&self) -> usize {
        match self.tls {
            Some(_) => TLS_CONNECTION_BYTES,
            None => 0,
        }
    }

    /// The socket, which the poll registers and deregisters.
    pub(crate) fn socket(&mut self) -> &mut K {
        &mut self.socket
    }

    /// Reads the available bytes. 0 means that the peer has closed its side.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else {
            let count = retry(|| self.socket.read(into))?;
            self.moved |= count > 0;
            return Ok(count);
        };
        loop {
            match tls.reader().read(into) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // A peer may close the connection without close_notify; that is an end too.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(0),
                read => return read,
            }
            self.moved |= retry(|| tls.read_tls(&mut self.socket))? > 0;
            let processed = tls.process_new_packets();
            // Sends the handshake's next messages, or the alert that reports an error. Bytes that a
            // full socket does not take stay pending.
            let sent = send(tls, &mut self.socket, &mut self.moved);
            self.has_refused = processed.is_err();
            let refused = |error| io::Error::new(ErrorKind::InvalidData, refusal(&error));
            processed.map_err(refused)?;
            match sent {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                sent => sent?,
            }
        }
    }

    /// Whether the handshake of TLS, or of what carries the bytes, is not complete.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.socket.is_handshaking() || self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }

    /// Whether a read failed on a TLS violation. The peer got an alert.
    pub(crate) fn has_refused(&self) -> bool {
        self.has_refused
    }

    /// Reads and discards raw bytes, without TLS. 0 means that the peer has closed its side.
    pub(crate) fn discard(&mut self, into: &mut [u8]) -> io::Result<usize> {
        retry(|| self.socket.read(into))
    }

    /// Ends the stream to the peer. See [`Carrier::end_writes`].
    pub(crate) fn end_writes(&mut self) -> io::Result<bool> {
        self.socket.end_writes()
    }

    /// Whether a short read means that the socket is empty.
    pub(crate) fn is_emptied_by_short_read(&self) -> bool {
        self.tls.is_none() && self.socket.is_emptied_by_short_read()
    }

    /// Memory of the socket's own buffers in this process: received, and to be sent.
    pub(crate) fn buffered_bytes(&self) -> (usize, usize) {
        self.socket.buffered_bytes()
    }

    /// Writes a part of `parts` and returns its length. The bytes go to the socket, or to rustls,
    /// which encrypts up to [`TLS_BUFFER_BYTES`] ahead of the socket.
    pub(crate) fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else {
            let count = match parts {
                [one] => retry(|| self.socket.write(one)),
                _ => retry(|| self.socket.write_vectored(parts)),
            }?;
            self.moved |= count > 0;
            return Ok(count);
        };
        // Give rustls more only once the socket has taken everything before it. A full rustls
        // buffer must not be reported as `WouldBlock`: emptying it may leave the socket writable,
        // and then no event ever comes.
        send(tls, &mut self.socket, &mut self.moved)?;
        let taken = tls.writer().write_vectored(parts)?;
        match send(tls, &mut self.socket, &mut self.moved) {
            // Rustls has these bytes now; the next call reports that the socket is full.
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(taken),
            sent => sent.map(|()| taken),
        }
    }

    /// Whether values go to the socket without a copy.
    pub(crate) fn shares_values(&self) -> bool {
        self.tls.is_none() && self.socket.shares_values()
    }

    /// Writes a part of this range of a value, and returns its length.
    pub(crate) fn write_value(
        &mut self,
        value: &SharedValue,
        range: Range<usize>,
    ) -> io::Result<usize> {
        if self.tls.is_some() {
            return self.write(&[IoSlice::new(&value[range])]);
        }
        let count = retry(|| self.socket.write_value(value, range.clone()))?;
        self.moved |= count > 0;
        Ok(count)
    }

    /// Whether the socket sent or received bytes since the last call. A peer whose TLS record is
    /// still arriving is not idle, although no plain text has arrived yet.
    pub(crate) fn take_moved(&mut self) -> bool {
        std::mem::take(&mut self.moved)
    }

    /// Whether rustls holds bytes that the socket has not taken yet.
    pub(crate) fn pending(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// Sends the bytes that rustls holds. Returns `WouldBlock` if the socket takes no more.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        match &mut self.tls {
            Some(tls) => send(tls, &mut self.socket, &mut self.moved),
            None => Ok(()),
        }
    }

    /// Queues TLS's close_notify after everything else, once. [`Transport::flush`] sends it.
    /// Dropping the transport closes the socket.
    pub(crate) fn close_notify(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
        }
    }
}

/// Sends the bytes that rustls holds. Returns `WouldBlock` if the socket takes no more.
fn send(tls: &mut ServerConnection, socket: &mut impl Write, moved: &mut bool) -> io::Result<()> {
    while tls.wants_write() {
        if retry(|| tls.write_tls(socket))? == 0 {
            return Err(ErrorKind::WriteZero.into());
        }
        *moved = true;
    }
    Ok(())
}

/// Repeats a call while signals interrupt it.
pub(crate) fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}
