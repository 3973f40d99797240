//! A connection's socket, which never blocks: plain, with TLS, or over UCX.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::plain_socket::{PlainSocket, SocketAddress};
use super::resolution::Resolution;
use super::ucx::{UcxClient, UcxSocket};
#[cfg(feature = "tls")]
pub(crate) use crate::tls::TlsConfig as Tls;
#[cfg(feature = "tls")]
use crate::tls::TlsStream;

/// Without the feature `tls`, no connection uses TLS.
#[cfg(not(feature = "tls"))]
#[derive(Debug)]
pub(crate) enum Tls {}

/// An address to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    Socket(SocketAddress),
    /// A server over UCX, by the address of its control sockets.
    Ucx(SocketAddress, Arc<UcxClient>),
}

/// A connected or connecting socket.
#[derive(Debug)]
pub(crate) enum Socket {
    Plain(PlainSocket),
    #[cfg(feature = "tls")]
    Tls(Box<TlsStream>),
    Ucx(Box<UcxSocket>),
    /// None yet: the name of its server is being resolved.
    Resolving(Arc<Resolution>),
}

impl Socket {
    /// Begins to connect. When the socket is writable, [`Socket::connected`] returns the result.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn connect(peer: &Peer, host: &str, tls: Option<&Tls>) -> io::Result<Socket> {
        let address = match peer {
            Peer::Socket(address) | Peer::Ucx(address, _) => address,
        };
        let socket = PlainSocket::connect(address)?;
        match (peer, socket, tls) {
            (Peer::Ucx(_, client), socket, _) => {
                let socket = UcxSocket::new(socket, client.clone())?;
                Ok(Socket::Ucx(Box::new(socket)))
            }
            #[cfg(feature = "tls")]
            (_, PlainSocket::Tcp(socket), Some(tls)) => {
                Ok(Socket::Tls(Box::new(TlsStream::new(tls, host, socket)?)))
            }
            #[cfg(not(feature = "tls"))]
            (_, _, Some(tls)) => match *tls {},
            (_, socket, _) => {
                let _ = host;
                Ok(Socket::Plain(socket))
            }
        }
    }

    /// The result of connecting.
    ///
    /// # Errors
    /// Why connecting failed.
    pub(crate) fn connected(&mut self) -> io::Result<()> {
        match self {
            Socket::Plain(socket) => socket.connected(),
            #[cfg(feature = "tls")]
            Socket::Tls(stream) => {
                rustix::net::sockopt::socket_error(stream.as_fd())??;
                Ok(())
            }
            Socket::Ucx(socket) => socket.connected(),
            Socket::Resolving(_) => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Continues the handshake of TLS. `WouldBlock`: it has not ended.
    ///
    /// # Errors
    /// Why it failed.
    pub(crate) fn handshake(&mut self) -> io::Result<()> {
        match self {
            #[cfg(feature = "tls")]
            Socket::Tls(stream) => stream.handshake(),
            _ => Ok(()),
        }
    }

    /// Whether the socket holds bytes that it has not sent.
    pub(crate) fn wants_write(&self) -> bool {
        match self {
            Socket::Plain(_) | Socket::Ucx(_) | Socket::Resolving(_) => false,
            #[cfg(feature = "tls")]
            Socket::Tls(stream) => stream.wants_write(),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Plain(socket) => socket.as_fd(),
            #[cfg(feature = "tls")]
            Socket::Tls(stream) => stream.as_fd(),
            Socket::Ucx(socket) => socket.as_fd(),
            Socket::Resolving(resolution) => resolution.as_fd(),
        }
    }
}

impl Read for Socket {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Plain(socket) => socket.read(bytes),
            #[cfg(feature = "tls")]
            Socket::Tls(stream) => stream.read(bytes),
            Socket::Ucx(socket) => socket.read(bytes),
            Socket::Resolving(_) => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Plain(socket) => socket.write(bytes),
            #[cfg(feature = "tls")]
            Socket::Tls(stream) => stream.write(bytes),
            Socket::Ucx(socket) => socket.write(bytes),
            Socket::Resolving(_) => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Socket::Plain(socket) => socket.flush(),
            #[cfg(feature = "tls")]
            Socket::Tls(stream) => stream.flush(),
            Socket::Ucx(socket) => socket.flush(),
            Socket::Resolving(_) => Ok(()),
        }
    }
}
