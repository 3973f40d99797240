//! A socket that never blocks: TCP or a Unix socket.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use forerun_core::above_standard_streams;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, ipproto, sockopt};

/// An address of a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SocketAddress {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// A connected or connecting socket.
#[derive(Debug)]
pub(crate) enum PlainSocket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl PlainSocket {
    /// Begins to connect. When the socket is writable, [`PlainSocket::connected`] returns the
    /// result.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn connect(address: &SocketAddress) -> io::Result<PlainSocket> {
        let in_progress = |result: rustix::io::Result<()>| match result {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(()),
            Err(error) => Err(io::Error::from(error)),
        };
        match address {
            SocketAddress::Tcp(address) => {
                let family = match address {
                    SocketAddr::V4(_) => AddressFamily::INET,
                    SocketAddr::V6(_) => AddressFamily::INET6,
                };
                let socket = stream_socket(family, Some(ipproto::TCP))?;
                // One call sends a whole request, so waiting for more bytes would only delay it.
                sockopt::set_tcp_nodelay(&socket, true)?;
                in_progress(rustix::net::connect(&socket, address))?;
                Ok(PlainSocket::Tcp(TcpStream::from(socket)))
            }
            SocketAddress::Unix(path) => {
                let socket = stream_socket(AddressFamily::UNIX, None)?;
                let address = SocketAddrUnix::new(path.as_path())?;
                in_progress(rustix::net::connect(&socket, &address))?;
                Ok(PlainSocket::Unix(UnixStream::from(socket)))
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
    above_standard_streams(socket)
}

impl AsFd for PlainSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            PlainSocket::Tcp(stream) => stream.as_fd(),
            PlainSocket::Unix(stream) => stream.as_fd(),
        }
    }
}

impl Read for PlainSocket {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            PlainSocket::Tcp(stream) => stream.read(bytes),
            PlainSocket::Unix(stream) => stream.read(bytes),
        }
    }
}

impl Write for PlainSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            PlainSocket::Tcp(stream) => stream.write(bytes),
            PlainSocket::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
