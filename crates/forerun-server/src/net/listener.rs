//! Listening sockets, and the connections they accept.

use std::fs;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener as StdTcpListener};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use forerun_cache::SharedValue;
use forerun_core::above_standard_streams;
use forerun_core::sync::time;
use mio::event::Source;
use mio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use mio::{Interest, Registry, Token};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};

use crate::address::{Address, Listen, Peer, Protocol};
use crate::error::Error;
use crate::log_limit::{LogLimit, log_within};
use crate::system::{Carrier, Listening};

use super::ucx::{UcxServer, UcxSocket};

/// A bound socket that accepts connections. Dropping it removes the file of a Unix socket.
#[derive(Debug)]
pub struct Listener {
    socket: Bound,
    /// The address, with the port that the system assigned.
    address: Address,
    /// Whether its connections use TLS.
    tls: bool,
    protocol: Protocol,
    /// What its connections over UCX share.
    ucx: Option<Arc<UcxServer>>,
    /// Limits what is logged about refused users.
    refused_users: LogLimit,
    opened: Instant,
}

#[derive(Debug)]
enum Bound {
    Tcp(TcpListener),
    /// The socket's file, which is removed when this is dropped.
    Unix(
        UnixListener,
        #[expect(dead_code, reason = "only its drop matters")] SocketFile,
    ),
}

/// The file of a bound unix socket. It is removed when this is dropped.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

impl SocketFile {
    fn at(path: &Path) -> io::Result<SocketFile> {
        Ok(SocketFile {
            // The process may change its directory.
            path: std::path::absolute(path)?,
            identity: identity(path)?,
        })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // The file may be gone, and another server may have created its own at the same path.
        if identity(&self.path).is_ok_and(|identity| identity == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The device and inode of a file.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let file = fs::symlink_metadata(path)?;
    Ok((file.dev(), file.ino()))
}

/// A connection without TLS.
#[derive(Debug)]
pub enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
    Ucx(UcxSocket),
}

impl Listener {
    /// Binds `listen`. Up to `backlog` connections may wait to be accepted; the system may allow
    /// fewer.
    ///
    /// # Errors
    /// [`Error::Listen`] with the address and the system's error; for an address of UCX, also
    /// those of [`UcxServer::open`].
    pub(crate) fn bind(listen: &Listen, backlog: u32) -> Result<Listener, Error> {
        let ucx = match &listen.address {
            Address::UcxTcp(_) | Address::UcxUnix { .. } => Some(UcxServer::open(listen)?),
            Address::Tcp(_) | Address::Unix { .. } => None,
        };
        let failed = |source| Error::Listen {
            address: listen.address.to_string(),
            source,
        };
        let (socket, address) = match &listen.address {
            Address::Tcp(address) | Address::UcxTcp(address) => {
                let socket = bind_tcp(*address, listen.ipv6_only, backlog).map_err(failed)?;
                // Accepted connections inherit keepalive, as in memcached. The server notices that
                // a client has vanished even if it never sends that client anything.
                let keepalive = rustix::net::sockopt::set_socket_keepalive(&socket, true);
                keepalive.map_err(|error| failed(error.into()))?;
                let bound = socket.local_addr().map_err(failed)?;
                let address = match ucx {
                    None => Address::Tcp(bound),
                    Some(_) => Address::UcxTcp(bound),
                };
                (Bound::Tcp(socket), address)
            }
            Address::Unix { path, mode } | Address::UcxUnix { path, mode } => {
                let socket = bind_unix(path, *mode, backlog).map_err(failed)?;
                (socket, listen.address.clone())
            }
        };
        Ok(Listener {
            socket,
            address,
            tls: listen.tls,
            protocol: listen.protocol,
            ucx: ucx.map(Arc::new),
            refused_users: LogLimit::default(),
            opened: time::now(),
        })
    }

    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        match &mut self.socket {
            Bound::Tcp(socket) => registry.register(socket, token, Interest::READABLE),
            Bound::Unix(socket, _) => registry.register(socket, token, Interest::READABLE),
        }
    }
}

impl Listening for Listener {
    type Socket = Socket;

    fn accept(&self) -> io::Result<(Socket, Peer)> {
        match &self.socket {
            Bound::Tcp(socket) => {
                let (stream, peer) = socket.accept()?;
                let stream = above_standard_streams(stream)?;
                // Send answers without delay: each answer is already one write.
                stream.set_nodelay(true)?;
                Ok(match &self.ucx {
                    None => (Socket::Tcp(stream), Peer::Tcp(peer)),
                    Some(ucx) => (Socket::Ucx(ucx.over_tcp(stream)), Peer::UcxTcp(peer)),
                })
            }
            Bound::Unix(socket, _) => {
                let (stream, _) = socket.accept()?;
                let stream = above_standard_streams(stream)?;
                let Some(ucx) = &self.ucx else {
                    return Ok((Socket::Unix(stream), Peer::Unix));
                };
                if !ucx.accepts_user_of(&stream) {
                    let now_s = time::elapsed(self.opened).as_secs();
                    let text = "refused a connection over UCX from another user";
                    log_within!(warn, self.refused_users, now_s, "{text}");
                    return Err(ErrorKind::ConnectionAborted.into());
                }
                Ok((Socket::Ucx(ucx.over_unix(stream)), Peer::UcxUnix))
            }
        }
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

/// Binds a TCP socket. If `ipv6_only`, a listener at the same port may accept IPv4.
fn bind_tcp(address: SocketAddr, ipv6_only: bool, backlog: u32) -> io::Result<TcpListener> {
    use rustix::net::sockopt;
    let family = if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let socket = above_standard_streams(rustix::net::socket(family, SocketType::STREAM, None)?)?;
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
    // Connections of an earlier server that the system still remembers do not hinder this one.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() && ipv6_only {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    rustix::net::bind(&socket, &address)?;
    queue(&socket, backlog)?;
    let socket = StdTcpListener::from(socket);
    socket.set_nonblocking(true)?;
    Ok(TcpListener::from_std(socket))
}

/// Listens, with a queue of this length. The usual default of 128 is too short if a thousand
/// clients connect at once: the system drops connections that do not fit, and resets some of them
/// after the client has sent data.
fn queue(socket: &impl AsFd, backlog: u32) -> io::Result<()> {
    let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
    Ok(rustix::net::listen(socket, backlog)?)
}

/// Binds a Unix socket with `mode`. Replaces a stale socket file at `path`, but no other file.
/// macOS refuses connections to a live socket whose queue is full, so a busy server's socket looks
/// stale there.
fn bind_unix(path: &Path, mode: u32, backlog: u32) -> io::Result<Bound> {
    match fs::symlink_metadata(path) {
        Ok(there) if there.file_type().is_socket() => {
            // This call must not block: the queue of a running server may be full.
            let connected = UnixStream::connect(path);
            match connected.as_ref().map_err(io::Error::kind) {
                Err(ErrorKind::ConnectionRefused) => fs::remove_file(path)?,
                Err(ErrorKind::NotFound) => {}
                Ok(_) | Err(ErrorKind::WouldBlock) => {
                    let reason = "another server listens there";
                    return Err(io::Error::new(ErrorKind::AddrInUse, reason));
                }
                // The file may belong to a running server whose socket this user may not use.
                Err(kind) => {
                    let reason = connected
                        .err()
                        .map_or_else(String::new, |error| error.to_string());
                    let reason = format!(
                        "a socket is there, and whether a server listens on it is unknown: {reason}"
                    );
                    return Err(io::Error::new(kind, reason));
                }
            }
        }
        Ok(_) => {
            let reason = "the path is a file that is not a socket";
            return Err(io::Error::new(ErrorKind::AlreadyExists, reason));
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let socket = above_standard_streams(unix_socket(mode)?)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    let file = SocketFile::at(path)?;
    let set_mode = || fs::set_permissions(path, fs::Permissions::from_mode(mode));
    // No client may connect while the file has a wider mode.
    if !HAS_MODE_FROM_THE_START {
        set_mode()?;
    }
    queue(&socket, backlog)?;
    // The umask may have removed some bits.
    set_mode()?;
    let socket = StdUnixListener::from(socket);
    socket.set_nonblocking(true)?;
    Ok(Bound::Unix(UnixListener::from_std(socket), file))
}

/// Whether binding gives the socket file the mode of the socket.
const HAS_MODE_FROM_THE_START: bool = cfg!(target_os = "linux");

/// A unix socket that is not bound yet.
#[cfg(target_os = "linux")]
fn unix_socket(mode: u32) -> io::Result<OwnedFd> {
    let flags = rustix::net::SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::fs::fchmod(&socket, rustix::fs::Mode::from_raw_mode(mode))?;
    Ok(socket)
}

/// A unix socket that is not bound yet.
#[cfg(not(target_os = "linux"))]
fn unix_socket(_: u32) -> io::Result<OwnedFd> {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
    Ok(socket)
}

impl Read for Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.read(into),
            Socket::Unix(stream) => stream.read(into),
            Socket::Ucx(stream) => stream.read(into),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.write(bytes),
            Socket::Unix(stream) => stream.write(bytes),
            Socket::Ucx(stream) => stream.write(bytes),
        }
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.write_vectored(parts),
            Socket::Unix(stream) => stream.write_vectored(parts),
            Socket::Ucx(stream) => stream.write_vectored(parts),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Carrier for Socket {
    fn is_emptied_by_short_read(&self) -> bool {
        match self {
            Socket::Tcp(_) | Socket::Unix(_) => true,
            // The end of the stream comes another way than its bytes.
            Socket::Ucx(_) => false,
        }
    }

    fn buffered_bytes(&self) -> (usize, usize) {
        match self {
            Socket::Tcp(_) | Socket::Unix(_) => (0, 0),
            Socket::Ucx(stream) => stream.buffered_bytes(),
        }
    }

    fn shares_values(&self) -> bool {
        matches!(self, Socket::Ucx(_))
    }

    fn is_handshaking(&self) -> bool {
        matches!(self, Socket::Ucx(stream) if stream.is_handshaking())
    }

    fn end_writes(&mut self) -> io::Result<bool> {
        match self {
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Write)?,
            Socket::Unix(stream) => stream.shutdown(Shutdown::Write)?,
            Socket::Ucx(_) => return Ok(false),
        }
        Ok(true)
    }

    fn write_value(&mut self, value: &SharedValue, range: Range<usize>) -> io::Result<usize> {
        match self {
            Socket::Tcp(_) | Socket::Unix(_) => self.write(&value[range]),
            Socket::Ucx(stream) => stream.write_value(value, range),
        }
    }
}

impl Socket {
    /// What mio watches, unless the connection is one over UCX.
    pub(crate) fn source(&mut self) -> Result<&mut dyn Source, &mut UcxSocket> {
        match self {
            Socket::Tcp(stream) => Ok(stream),
            Socket::Unix(stream) => Ok(stream),
            Socket::Ucx(stream) => Err(stream),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unix(path: &Path) -> Result<Listener, Error> {
        Listener::bind(&Listen::unix(path, 0o740), 1024)
    }

    fn reason(error: Error) -> String {
        match error {
            Error::Listen { source, .. } => source.to_string(),
            other => other.to_string(),
        }
    }

    #[test]
    fn a_unix_socket_has_its_mode_and_is_removed_with_its_listener() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("s");
        let listener = unix(&path).expect("the path is free");
        let mode = fs::metadata(&path)
            .expect("it is there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o740);
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_unix_socket_never_has_a_wider_mode() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("s");
        let socket = unix_socket(0o600).expect("a socket");
        let address = SocketAddrUnix::new(&path).expect("a short path");
        rustix::net::bind(&socket, &address).expect("the path is free");
        let mode = fs::metadata(&path).expect("it is there").mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn an_ipv6_listener_leaves_ipv4_to_others_if_it_must() {
        let mut loopback = Listen::tcp((std::net::Ipv6Addr::LOCALHOST, 0).into());
        for ipv6_only in [true, false] {
            loopback.ipv6_only = ipv6_only;
            let listener = match Listener::bind(&loopback, 1024) {
                Ok(listener) => listener,
                // A machine without IPv6.
                Err(error) => return eprintln!("skipped: {}", reason(error)),
            };
            let Bound::Tcp(socket) = &listener.socket else {
                panic!("a TCP socket");
            };
            let is_only = rustix::net::sockopt::ipv6_v6only(socket).expect("an option");
            assert!(is_only || !ipv6_only);
        }
    }

    #[test]
    fn tcp_connections_are_kept_alive() {
        let any = Listen::tcp(([127, 0, 0, 1], 0).into());
        let listener = Listener::bind(&any, 1024).expect("a free port");
        let Address::Tcp(address) = *listener.address() else {
            panic!("a TCP address");
        };
        let client = std::net::TcpStream::connect(address).expect("a connection");
        let (socket, _) = listener.accept().expect("it waits");
        let Socket::Tcp(stream) = socket else {
            panic!("a TCP socket");
        };
        let keepalive = rustix::net::sockopt::socket_keepalive(&stream);
        assert!(keepalive.expect("an option"));
        drop(client);
    }

    #[test]
    fn the_socket_of_another_server_stays() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("s");
        let listener = unix(&path).expect("the path is free");
        fs::remove_file(&path).expect("another process removes it");
        let other = unix(&path).expect("the path is free again");
        drop(listener);
        assert!(path.exists());
        drop(other);
        assert!(!path.exists());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_listen_backlog_is_as_configured() {
        let dir = tempfile::tempdir().expect("a directory");
        let waiting = |backlog: u32| {
            let path = dir.path().join(backlog.to_string());
            let _listener =
                Listener::bind(&Listen::unix(&path, 0o740), backlog).expect("the path is free");
            // A connection that does not fit is refused, because it would have to wait.
            let connect = || UnixStream::connect(&path).ok();
            std::iter::repeat_with(connect)
                .take(400)
                .map_while(|made| made)
                .collect::<Vec<_>>()
                .len()
        };
        // Linux admits one connection more than the backlog.
        assert!((3..=4).contains(&waiting(3)));
        assert!((200..=201).contains(&waiting(200)));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_live_socket_whose_queue_is_full_is_not_waited_for() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("s");
        let listen = Listen::unix(&path, 0o740);
        let _live = Listener::bind(&listen, 1).expect("the path is free");
        let connect = || UnixStream::connect(&path).ok();
        let waiting: Vec<_> = std::iter::repeat_with(connect)
            .take(10)
            .map_while(|made| made)
            .collect();
        assert!(waiting.len() < 10, "the queue is full");
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let bound = Listener::bind(&listen, 1);
            let _ = done.send(bound.map(drop));
        });
        let bound = is_done.recv_timeout(std::time::Duration::from_secs(10));
        let error = reason(
            bound
                .expect("it does not wait")
                .expect_err("a live socket stays"),
        );
        assert!(error.contains("another server listens there"), "{error}");
    }

    #[test]
    fn a_dead_socket_is_replaced_but_not_a_live_one_or_a_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("s");
        // The standard library's listener leaves its file behind, as a killed server does.
        drop(std::os::unix::net::UnixListener::bind(&path).expect("it is bound"));
        let live = unix(&path).expect("a stale socket is replaced");
        let error = reason(unix(&path).expect_err("a live socket stays"));
        assert!(error.contains("another server listens there"), "{error}");
        drop(live);
        fs::write(&path, "precious").expect("a file");
        let error = reason(unix(&path).expect_err("another file stays"));
        assert!(error.contains("not a socket"), "{error}");
        assert_eq!(fs::read(&path).expect("it is there"), b"precious");
    }
}
