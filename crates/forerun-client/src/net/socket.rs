//! A socket that never blocks: TCP, a Unix socket, or TLS over TCP.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, ipproto, sockopt};

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
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// A connected or connecting socket.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
    #[cfg(feature = "tls")]
    Tls(Box<TlsStream>),
}

impl Socket {
    /// Begins to connect. When the socket is writable, [`Socket::connected`] returns the result.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn connect(peer: &Peer, host: &str, tls: Option<&Tls>) -> io::Result<Socket> {
        let in_progress = |result: rustix::io::Result<()>| match result {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(()),
            Err(error) => Err(io::Error::from(error)),
        };
        match peer {
            Peer::Tcp(address) => {
                let family = match address {
                    SocketAddr::V4(_) => AddressFamily::INET,
                    SocketAddr::V6(_) => AddressFamily::INET6,
                };
                let socket = stream_socket(family, Some(ipproto::TCP))?;
                // One call sends a whole request, so waiting for more bytes would only delay it.
                sockopt::set_tcp_nodelay(&socket, true)?;
                in_progress(rustix::net::connect(&socket, address))?;
                let socket = TcpStream::from(socket);
                match tls {
                    None => {
                        let _ = host;
                        Ok(Socket::Tcp(socket))
                    }
                    #[cfg(feature = "tls")]
                    Some(tls) => Ok(Socket::Tls(Box::new(TlsStream::new(tls, host, socket)?))),
                    #[cfg(not(feature = "tls"))]
                    Some(tls) => match *tls {},
                }
            }
            Peer::Unix(path) => {
                let socket = stream_socket(AddressFamily::UNIX, None)?;
                let address = SocketAddrUnix::new(path.as_path())?;
                in_progress(rustix::net::connect(&socket, &address))?;
                Ok(Socket::Unix(UnixStream::from(socket)))
            }
        }
    }

    /// The result of connecting.
    ///
    /// # Errors
    /// Why connecting failed.
    pub(crate) fn connected(&self) -> io::Result<()> {
        sockopt::socket_error(self.as_fd())??;
        Ok(())
    }

    /// Whether the socket holds bytes that it has not sent.
    pub(crate) fn wants_write(&self) -> bool {
        match self {
            Socket::Tcp(_) | Socket::Unix(_) => false,
            #[cfg(feature = "tls")]
            Socket::Tls(stream) => stream.wants_write(),
        }
    }
}

fn stream_socket(
    family: AddressFamily,
    protocol: Option<rustix::net::Protocol>,
) -> io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(
        family,
        SocketType::STREAM,
        SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
        protocol,
    )?;
    Ok(socket)
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Tcp(stream) => stream.as_fd(),
            Socket::Unix(stream) => stream.as_fd(),
            #[cfg(feature = "tls")]
            Socket::Tls(stream) => stream.as_fd(),
        }
    }
}

impl Read for Socket {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.read(bytes),
            Socket::Unix(stream) => stream.read(bytes),
            #[cfg(feature = "tls")]
            Socket::Tls(stream) => stream.read(bytes),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.write(bytes),
            Socket::Unix(stream) => stream.write(bytes),
            #[cfg(feature = "tls")]
            Socket::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => stream.flush(),
            Socket::Unix(stream) => stream.flush(),
            #[cfg(feature = "tls")]
            Socket::Tls(stream) => stream.flush(),
        }
    }
}
