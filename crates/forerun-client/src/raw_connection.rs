//! A connection to one server, for requests that [`Client`](crate::Client) does not have.
//!
//! ```text
//!   open   name ──> addresses, one after another ──> socket ──> TLS ──> user and password
//!   send   request ─────────────────────────────────> server
//!   line, value  <── BufReader <── WaitingSocket, which waits <── server
//! ```
//!
//! Every call waits. A byte now and then does not extend the time that a call may take.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use forerun_core::sync::time;

use crate::conversation::shown;
use crate::error::{Error, Failure};
use crate::net::{Peer, Socket, SocketAddress, Tls, system_lookup};
use crate::options::ClientOptions;
use crate::protocol::compose;
use crate::server_address::{Endpoint, ServerAddress};
use crate::wait::{Block, Readiness, Wait, block};

/// A request or a value may take a second more for each of these bytes.
const BYTES_PER_S_MIN: u64 = 64 << 10;
/// The longest line that a server sends.
const LINE_BYTES_MAX: usize = 4096;
const INPUT_BYTES: usize = 64 << 10;
/// The time between the first two attempts to connect to a Unix socket whose backlog is full. It
/// doubles with each attempt.
const FULL_BACKLOG_PAUSE: Duration = Duration::from_millis(1);
const FULL_BACKLOG_PAUSE_MAX: Duration = Duration::from_millis(50);

/// A connection to one server. A program sends requests as bytes, and reads lines and values.
///
/// It is for what [`Client`](crate::Client) does not do, such as statistics and lists of keys.
///
/// ```no_run
/// use forerun_client::{ClientOptions, RawConnection};
///
/// let server = "cache-1.example".parse()?;
/// let mut connection = RawConnection::open(&server, &ClientOptions::default())?;
/// connection.send(b"version\r\n")?;
/// println!("{}", String::from_utf8_lossy(connection.line()?));
/// # Ok::<(), forerun_client::Error>(())
/// ```
pub struct RawConnection {
    server: String,
    input: BufReader<WaitingSocket>,
    line: Vec<u8>,
    max_value_bytes: usize,
}

impl RawConnection {
    /// Connects, completes the handshake of TLS, and authenticates.
    ///
    /// Of the options it uses `credentials`, `tls`, `max_value_bytes` and `timeout`: the maximum
    /// time to connect to an address, to wait for bytes, and for a whole line. A request or a value
    /// may take a second more for each 64 KiB.
    ///
    /// # Errors
    /// [`Error::Server`]: the server cannot be reached, or refuses the user. An address of UCX is
    /// one that cannot be reached. [`Error::TlsFile`] with the feature `tls`.
    pub fn open(server: &ServerAddress, options: &ClientOptions) -> Result<RawConnection, Error> {
        #[cfg(feature = "tls")]
        let tls = options.tls.as_ref().map(|tls| tls.load()).transpose()?;
        #[cfg(not(feature = "tls"))]
        let tls = None;
        let name = server.to_string();
        let socket = connect(server, tls.as_ref(), options.timeout);
        let socket = socket.map_err(|error| Error::Server {
            server: name.clone(),
            failure: Failure::Connect(error),
        })?;
        let mut connection = RawConnection {
            server: name,
            input: BufReader::with_capacity(INPUT_BYTES, socket),
            line: Vec::new(),
            // As for `Client`: a server that announces a longer value cannot be right.
            max_value_bytes: options.max_value_bytes.min(u32::MAX as usize),
        };
        if let Some(credentials) = &options.credentials {
            let mut request = Vec::new();
            compose::authenticate(credentials, &mut request);
            connection.send(&request)?;
            let line = connection.line()?;
            if line != b"STORED" {
                let failure = Failure::Authentication(shown(line));
                return Err(connection.failed(failure));
            }
        }
        Ok(connection)
    }

    /// The server's address.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Sends a request.
    ///
    /// # Errors
    /// [`Error::Server`].
    pub fn send(&mut self, request: &[u8]) -> Result<(), Error> {
        let sent = self.input.get_mut().send(request);
        sent.map_err(|failure| self.failed(failure))
    }

    /// The next line, without its end.
    ///
    /// # Errors
    /// [`Error::Server`]; a line of more than 4096 bytes is [`Failure::Malformed`].
    pub fn line(&mut self) -> Result<&[u8], Error> {
        match self.read_line() {
            Err(failure) => Err(self.failed(failure)),
            Ok(len) => Ok(&self.line[..len]),
        }
    }

    /// The value of `bytes` bytes that comes next, and the line end behind it. Its memory grows as
    /// it arrives.
    ///
    /// # Errors
    /// [`Error::Server`]; a value of more than `max_value_bytes` is [`Failure::Malformed`].
    pub fn value(&mut self, bytes: u64) -> Result<Vec<u8>, Error> {
        self.read_value(bytes)
            .map_err(|failure| self.failed(failure))
    }

    /// The error of a call.
    fn failed(&self, failure: Failure) -> Error {
        Error::Server {
            server: self.server.clone(),
            failure,
        }
    }

    /// Reads a line into `self.line`, and returns its length without its end.
    fn read_line(&mut self) -> Result<usize, Failure> {
        self.line.clear();
        let mut limit = None;
        loop {
            let room = LINE_BYTES_MAX - self.line.len();
            let arrived = arrived(&mut self.input)?;
            let arrived = &arrived[..arrived.len().min(room)];
            let end = arrived.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(arrived.len(), |end| end + 1);
            self.line.extend_from_slice(&arrived[..taken]);
            self.input.consume(taken);
            if end.is_some() || taken == 0 {
                break;
            }
            // Most lines have arrived when they are asked for. The clock is read for the others.
            let timeout = self.input.get_ref().timeout;
            limit
                .get_or_insert_with(|| Limit::for_bytes(timeout, 0))
                .check()?;
        }
        match &self.line[..] {
            [line @ .., b'\r', b'\n'] | [line @ .., b'\n'] => Ok(line.len()),
            [] => Err(Failure::Closed),
            line => Err(Failure::malformed("not a whole line", line)),
        }
    }

    fn read_value(&mut self, bytes: u64) -> Result<Vec<u8>, Failure> {
        if bytes > self.max_value_bytes as u64 {
            let what = format!("a value of {bytes} bytes is announced");
            return Err(Failure::Malformed(what));
        }
        let limit = Limit::for_bytes(self.input.get_ref().timeout, bytes);
        let (len, all) = (bytes as usize, bytes as usize + 2);
        let mut value = Vec::new();
        while value.len() < all {
            let arrived = arrived(&mut self.input)?;
            let taken = arrived.len().min(all - value.len());
            if taken == 0 {
                return Err(Failure::Closed);
            }
            value.extend_from_slice(&arrived[..taken]);
            self.input.consume(taken);
            limit.check()?;
        }
        if value[len..] != *b"\r\n" {
            let what = "a value does not end where it should".to_owned();
            return Err(Failure::Malformed(what));
        }
        value.truncate(len);
        Ok(value)
    }
}

impl fmt::Debug for RawConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawConnection")
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

/// The bytes that have arrived and are not consumed; none at the end of the stream.
fn arrived(input: &mut BufReader<WaitingSocket>) -> Result<&[u8], Failure> {
    let timeout = input.get_ref().timeout;
    input.fill_buf().map_err(|error| failure(error, timeout))
}

fn failure(error: io::Error, timeout: Duration) -> Failure {
    match error.kind() {
        io::ErrorKind::TimedOut => Failure::TimedOut(timeout),
        io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::UnexpectedEof => Failure::Closed,
        _ => Failure::Io(error),
    }
}

/// Connects to the first of the server's addresses that accepts a connection.
fn connect(
    server: &ServerAddress,
    tls: Option<&Tls>,
    timeout: Duration,
) -> io::Result<WaitingSocket> {
    let (addresses, host) = match &server.endpoint {
        Endpoint::Unix(path) => (vec![SocketAddress::Unix(path.clone())], ""),
        Endpoint::Tcp { host, port } => {
            let found = system_lookup(host, *port)?;
            (
                found.into_iter().map(SocketAddress::Tcp).collect(),
                host.as_str(),
            )
        }
        Endpoint::UcxTcp { .. } | Endpoint::UcxUnix(_) => {
            return Err(io::ErrorKind::Unsupported.into());
        }
    };
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in addresses {
        match WaitingSocket::connect(&Peer::Socket(address), host, tls, timeout) {
            Ok(reader) => return Ok(reader),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// When a server must have sent or received something as a whole.
struct Limit {
    time: Duration,
    /// `None` if it is too far away for a clock.
    ends: Option<Instant>,
}

impl Limit {
    /// For something of so many bytes.
    fn for_bytes(timeout: Duration, bytes: u64) -> Limit {
        let time = timeout.saturating_add(Duration::from_secs(bytes / BYTES_PER_S_MIN));
        let ends = time::now().checked_add(time);
        Limit { time, ends }
    }

    fn is_over(&self) -> bool {
        self.ends.is_some_and(|ends| time::now() >= ends)
    }

    fn check(&self) -> Result<(), Failure> {
        if self.is_over() {
            return Err(Failure::TimedOut(self.time));
        }
        Ok(())
    }
}

/// A socket that never blocks, whose reads and writes wait.
struct WaitingSocket {
    socket: Socket,
    /// The maximum time of a read or a write.
    timeout: Duration,
}

impl WaitingSocket {
    /// Connects, and completes the handshake.
    fn connect(
        peer: &Peer,
        host: &str,
        tls: Option<&Tls>,
        timeout: Duration,
    ) -> io::Result<WaitingSocket> {
        let limit = Limit::for_bytes(timeout, 0);
        let mut pause = FULL_BACKLOG_PAUSE;
        let socket = loop {
            match Socket::connect(peer, host, tls) {
                // The backlog of a Unix socket is full. No event says when there is room again.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !limit.is_over() => {
                    block(Block.wait(&[], time::now() + pause))?;
                    pause = (2 * pause).min(FULL_BACKLOG_PAUSE_MAX);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                connected => break connected?,
            }
        };
        let mut connected = WaitingSocket { socket, timeout };
        connected.wait(false, true, &limit)?;
        connected.socket.connected()?;
        connected.retry(true, |socket| socket.handshake())?;
        Ok(connected)
    }

    fn send(&mut self, request: &[u8]) -> Result<(), Failure> {
        let timeout = self.timeout;
        let limit = Limit::for_bytes(timeout, request.len() as u64);
        let mut rest = request;
        while !rest.is_empty() {
            let sent = self.retry(false, |socket| socket.write(rest));
            match sent.map_err(|error| failure(error, timeout))? {
                0 => return Err(Failure::Io(io::ErrorKind::WriteZero.into())),
                sent => rest = &rest[sent..],
            }
            if !rest.is_empty() {
                limit.check()?;
            }
        }
        let flushed = self.retry(false, |socket| socket.flush());
        flushed.map_err(|error| failure(error, timeout))
    }

    /// Calls `step` until it has a result, and waits in between: for bytes to read if it reads, and
    /// for space to write.
    fn retry<T>(
        &mut self,
        reads: bool,
        mut step: impl FnMut(&mut Socket) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut limit = None;
        loop {
            match step(&mut self.socket) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
            let timeout = self.timeout;
            let limit = limit.get_or_insert_with(|| Limit::for_bytes(timeout, 0));
            let writes = !reads || self.socket.wants_write();
            self.wait(reads, writes, limit)?;
        }
    }

    /// Waits until the socket is ready.
    fn wait(&self, read: bool, write: bool, limit: &Limit) -> io::Result<()> {
        let wanted = [(self.socket.as_fd(), Readiness { read, write })];
        loop {
            // A time that no clock has is waited for in pieces.
            let until = limit.ends.unwrap_or_else(|| time::now() + DAY);
            let ready = block(Block.wait(&wanted, until))?;
            if ready.iter().any(|ready| ready.read || ready.write) {
                return Ok(());
            }
            if limit.is_over() {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

impl Read for WaitingSocket {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.retry(true, |socket| {
            if socket.wants_write() {
                socket.flush()?;
            }
            socket.read(bytes)
        })
    }
}

#[cfg(test)]
#[path = "../tests/testing/one_connection.rs"]
mod one_connection;

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(30);

    /// A connection whose server has sent `bytes` and ignores what it receives.
    fn of(bytes: &[u8]) -> RawConnection {
        let server = ServerAddress::tcp("127.0.0.1", one_connection::sending(bytes));
        let options = ClientOptions::default().timeout(TIMEOUT);
        RawConnection::open(&server, &options).expect("a connection")
    }

    fn error<T>(result: Result<T, Error>) -> String {
        result.err().expect("an error").to_string()
    }

    #[test]
    fn lines_and_values_are_whole_or_an_error() {
        let mut connection = of(b"VA 3\r\nabc\r\nkey=a\nrest");
        connection.send(b"mg a v\r\n").expect("it is sent");
        assert_eq!(connection.line().expect("a line"), b"VA 3");
        assert_eq!(connection.value(3).expect("a value"), b"abc");
        assert_eq!(connection.line().expect("a line"), b"key=a");
        assert!(error(connection.line()).contains("not a whole line: rest"));
        assert!(error(of(b"").line()).contains("closed the connection"));
        assert!(error(of(b"abcde\r\n").value(3)).contains("does not end"));
        assert!(error(of(b"ab").value(3)).contains("closed the connection"));
        assert!(error(of(b"").value(1 << 40)).contains("is announced"));
        assert!(error(of(&[b'x'; 9000]).line()).contains("not a whole line"));
    }

    #[test]
    fn a_byte_now_and_then_does_not_extend_the_time_limit() {
        let limit = |bytes| Limit::for_bytes(TIMEOUT, bytes);
        assert_eq!(limit(0).time, TIMEOUT);
        assert_eq!(limit(1 << 30).time, TIMEOUT + Duration::from_secs(16 << 10));
        limit(0).check().expect("it has just begun");
        let over = Limit {
            time: TIMEOUT,
            ends: Some(Instant::now()),
        };
        let over = over.check().expect_err("it is over").to_string();
        assert!(over.contains("no answer within 30s"), "{over}");
        // A timeout that no clock can represent never ends.
        Limit::for_bytes(Duration::MAX, 1)
            .check()
            .expect("it never ends");
    }

    #[test]
    fn a_server_that_is_silent_or_gone_is_an_error_in_time() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let server = ServerAddress::tcp("127.0.0.1", port);
        let options = ClientOptions::default().timeout(Duration::from_millis(50));
        let mut connection = RawConnection::open(&server, &options).expect("the system accepts");
        assert!(error(connection.line()).contains("no answer within 50ms"));
        drop(listener);
        assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
        assert!(error(RawConnection::open(&server, &options)).contains("cannot connect"));
    }

    #[test]
    fn a_unix_socket_whose_backlog_is_full_is_waited_for() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).expect("it listens");
        rustix::net::listen(&listener, 0).expect("a backlog of one connection");
        let _first = UnixStream::connect(&path).expect("the backlog has room");
        let server = ServerAddress::new(Endpoint::Unix(path.clone()));
        let options = ClientOptions::default();
        let hasty = options.clone().timeout(Duration::from_millis(30));
        let started = Instant::now();
        let refused = error(RawConnection::open(&server, &hasty));
        assert!(refused.contains("timed out"), "{refused}");
        assert!(started.elapsed() >= Duration::from_millis(30));
        let accepts = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(30));
            [0, 1].map(|_| listener.accept().expect("a connection"))
        });
        let patient = options.timeout(TIMEOUT);
        RawConnection::open(&server, &patient).expect("the backlog has room again");
        drop(accepts.join().expect("both have connected"));
    }
}
