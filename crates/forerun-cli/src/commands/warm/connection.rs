//! A connection to a server, which waits for each answer.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use forerun_client::{Endpoint, ServerAddress};

use crate::login::{self, Login};
use crate::output::Named;

/// Maximum time to connect, to wait for bytes, and for a whole line.
const TIMEOUT: Duration = Duration::from_secs(30);
/// A request or a value may take a second more for each of these bytes.
const BYTES_PER_S_MIN: u64 = 64 << 10;
/// The longest line that a server sends.
const LINE_BYTES_MAX: usize = 4096;
/// The longest value that a server can have: memcached's and Forerun's limit.
const VALUE_BYTES_MAX: u64 = 1 << 30;

/// A socket of either kind.
trait Socket: Read + Write {}
impl<S: Read + Write> Socket for S {}

/// A connection to a server.
pub(super) struct Connection {
    name: String,
    stream: BufReader<Box<dyn Socket>>,
    line: Vec<u8>,
}

fn connect(server: &ServerAddress) -> io::Result<Box<dyn Socket>> {
    let (host, port) = match &server.endpoint {
        Endpoint::Unix(path) => {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            stream.set_write_timeout(Some(TIMEOUT))?;
            return Ok(Box::new(stream));
        }
        Endpoint::Tcp { host, port } => (host.as_str(), *port),
        // An endpoint of a later version of the client.
        _ => return Err(io::ErrorKind::Unsupported.into()),
    };
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, TIMEOUT) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(TIMEOUT))?;
                stream.set_write_timeout(Some(TIMEOUT))?;
                return Ok(Box::new(stream));
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// What happened, if a server did not answer in time.
fn worded(error: io::Error) -> anyhow::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            anyhow!("no answer within {TIMEOUT:?}")
        }
        _ => anyhow!(error),
    }
}

/// The bytes that have arrived and are not consumed; none at the end of the stream.
fn arrived<S: BufRead>(stream: &mut S) -> anyhow::Result<&[u8]> {
    loop {
        match stream.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(worded(error)),
            // Asked for again, because the borrow checker does not see that the loop ends here.
            Ok(_) => return stream.fill_buf().map_err(worded),
        }
    }
}

/// When a server must have sent or received something as a whole. A byte now and then does not
/// extend it.
struct Limit {
    time: Duration,
    ends: Instant,
}

impl Limit {
    /// For something of so many bytes.
    fn for_bytes(bytes: u64) -> Limit {
        let time = TIMEOUT + Duration::from_secs(bytes / BYTES_PER_S_MIN);
        let ends = Instant::now() + time;
        Limit { time, ends }
    }

    fn check(&self) -> anyhow::Result<()> {
        if Instant::now() < self.ends {
            Ok(())
        } else {
            Err(anyhow!("no whole answer within {:?}", self.time))
        }
    }
}

impl Connection {
    /// Connects, and authenticates if there is a user.
    pub(super) fn open(server: &ServerAddress, login: &Login) -> anyhow::Result<Connection> {
        let name = server.to_string();
        let stream = connect(server)
            .map_err(worded)
            .with_context(|| format!("cannot connect to {name}"))?;
        let mut connection = Connection {
            name,
            stream: BufReader::with_capacity(64 << 10, stream),
            line: Vec::new(),
        };
        if let Some(request) = login.request() {
            connection.send(request)?;
            let line = connection.line()?;
            if line != login::ACCEPTED.as_bytes() {
                let line = line.to_vec();
                return Err(connection.unexpected(&line).context("cannot authenticate"));
            }
        }
        Ok(connection)
    }

    /// The server's address.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn send(&mut self, request: &[u8]) -> anyhow::Result<()> {
        let limit = Limit::for_bytes(request.len() as u64);
        let mut rest = request;
        while !rest.is_empty() {
            match self.stream.get_mut().write(rest) {
                Ok(0) => bail!("{}: it accepts no more bytes", self.name),
                Ok(sent) => rest = &rest[sent..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(worded(error).context(self.name.clone())),
            }
            if !rest.is_empty() {
                limit.check().with_context(|| self.name.clone())?;
            }
        }
        Ok(())
    }

    /// The next line, without its end.
    pub(super) fn line(&mut self) -> anyhow::Result<&[u8]> {
        self.line.clear();
        let mut limit = None;
        loop {
            let room = LINE_BYTES_MAX - self.line.len();
            let arrived = arrived(&mut self.stream).with_context(|| self.name.clone())?;
            let arrived = &arrived[..arrived.len().min(room)];
            let end = arrived.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(arrived.len(), |end| end + 1);
            self.line.extend_from_slice(&arrived[..taken]);
            self.stream.consume(taken);
            if end.is_some() || taken == 0 {
                break;
            }
            // Most lines have arrived when they are asked for. The clock is read for the others.
            let limit = limit.get_or_insert_with(|| Limit::for_bytes(0));
            limit.check().with_context(|| self.name.clone())?;
        }
        match &self.line[..] {
            [line @ .., b'\r', b'\n'] | [line @ .., b'\n'] => Ok(line),
            [] => bail!("{}: it closed the connection", self.name),
            line => bail!("{}: {} is not a whole line", self.name, Named(line)),
        }
    }

    /// The value of `bytes` bytes that comes next. Its memory grows as it arrives.
    pub(super) fn value(&mut self, bytes: u64) -> anyhow::Result<Vec<u8>> {
        if bytes > VALUE_BYTES_MAX {
            bail!("{}: it announces a value of {bytes} bytes", self.name);
        }
        let limit = Limit::for_bytes(bytes);
        let all = bytes as usize + 2;
        let mut value = Vec::new();
        while value.len() < all {
            let arrived = arrived(&mut self.stream).with_context(|| self.name.clone())?;
            let taken = arrived.len().min(all - value.len());
            if taken == 0 {
                break;
            }
            value.extend_from_slice(&arrived[..taken]);
            self.stream.consume(taken);
            limit.check().with_context(|| self.name.clone())?;
        }
        let end = value.split_off(value.len().min(bytes as usize));
        match &end[..] {
            b"\r\n" => Ok(value),
            _ => bail!("{}: a value does not end where it should", self.name),
        }
    }

    /// An error: the server has answered something unexpected.
    pub(super) fn unexpected(&self, line: &[u8]) -> anyhow::Error {
        if line == login::UNAUTHENTICATED.as_bytes() {
            return anyhow!("{}: {}", self.name, login::NEEDS_USER);
        }
        anyhow!("{}: it answered {}", self.name, Named(line))
    }
}

/// A decimal number.
pub(super) fn number<T: std::str::FromStr>(text: &[u8]) -> Option<T> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A server that has sent everything and ignores what it receives.
    struct Sent(io::Cursor<Vec<u8>>);

    impl Read for Sent {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.0.read(into)
        }
    }

    impl Write for Sent {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A connection whose server has sent `bytes`.
    pub(in super::super) fn of(bytes: &[u8]) -> Connection {
        Connection {
            name: "server:1".to_owned(),
            stream: BufReader::new(Box::new(Sent(io::Cursor::new(bytes.to_vec())))),
            line: Vec::new(),
        }
    }

    fn error<T>(result: anyhow::Result<T>) -> String {
        result.err().expect("an error").to_string()
    }

    #[test]
    fn lines_and_values_are_whole_or_an_error() {
        let mut connection = of(b"VA 3\r\nabc\r\nkey=a\nrest");
        assert_eq!(connection.line().expect("a line"), b"VA 3");
        assert_eq!(connection.value(3).expect("a value"), b"abc");
        assert_eq!(connection.line().expect("a line"), b"key=a");
        assert!(error(connection.line()).contains("\"rest\" is not a whole line"));
        assert!(error(of(b"").line()).contains("closed the connection"));
        assert!(error(of(b"abcde\r\n").value(3)).contains("does not end"));
        assert!(error(of(b"ab").value(3)).contains("does not end"));
        assert!(error(of(b"").value(1 << 40)).contains("announces"));
        assert!(error(of(&[b'x'; 9000]).line()).contains("not a whole line"));
    }

    #[test]
    fn a_byte_now_and_then_does_not_extend_the_time_limit() {
        let limit = |bytes| Limit::for_bytes(bytes);
        assert_eq!(limit(0).time, TIMEOUT);
        assert_eq!(limit(1 << 30).time, TIMEOUT + Duration::from_secs(16 << 10));
        limit(0).check().expect("it has just begun");
        let over = Limit {
            time: TIMEOUT,
            ends: Instant::now(),
        };
        assert!(error(over.check()).contains("no whole answer within 30s"));
    }
}
