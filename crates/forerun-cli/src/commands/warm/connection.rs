//! A connection to a server, which waits for each answer.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use forerun_client::{Endpoint, ServerAddress};

use crate::output::Named;

/// Maximum time to connect, and to wait for bytes.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The longest line that a server sends.
const LINE_BYTES_MAX: u64 = 4096;
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

impl Connection {
    pub(super) fn open(server: &ServerAddress) -> anyhow::Result<Connection> {
        let name = server.to_string();
        let stream = connect(server)
            .map_err(worded)
            .with_context(|| format!("cannot connect to {name}"))?;
        Ok(Connection {
            name,
            stream: BufReader::with_capacity(64 << 10, stream),
            line: Vec::new(),
        })
    }

    /// The server's address.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn send(&mut self, request: &[u8]) -> anyhow::Result<()> {
        let sent = self.stream.get_mut().write_all(request);
        sent.map_err(worded).with_context(|| self.name.clone())
    }

    /// The next line, without its end.
    pub(super) fn line(&mut self) -> anyhow::Result<&[u8]> {
        self.line.clear();
        let mut limited = self.stream.by_ref().take(LINE_BYTES_MAX);
        let read = limited.read_until(b'\n', &mut self.line);
        read.map_err(worded).with_context(|| self.name.clone())?;
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
        let mut value = Vec::new();
        let mut limited = self.stream.by_ref().take(bytes + 2);
        let read = limited.read_to_end(&mut value);
        read.map_err(worded).with_context(|| self.name.clone())?;
        let end = value.split_off(value.len().min(bytes as usize));
        match &end[..] {
            b"\r\n" => Ok(value),
            _ => bail!("{}: a value does not end where it should", self.name),
        }
    }

    /// An error: the server has answered something unexpected.
    pub(super) fn unexpected(&self, line: &[u8]) -> anyhow::Error {
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

    /// A connection whose server has sent `bytes`.
    pub(in super::super) fn of(bytes: &[u8]) -> Connection {
        Connection {
            name: "server:1".to_owned(),
            stream: BufReader::new(Box::new(io::Cursor::new(bytes.to_vec()))),
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
}
