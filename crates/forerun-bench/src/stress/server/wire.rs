//! A client's connection: lines, values, and descriptions of what goes wrong.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use super::expected_versions::{ExpectedVersions, Floor};
use super::ucx_stream::{UcxHubs, UcxStream};
use super::value::{self, Key};

/// How long the server may take to answer, or to accept what a client sends.
pub(super) const TIMEOUT: Duration = Duration::from_secs(60);

/// The longest line that a server sends.
const LINE_BYTES_MAX: u64 = 2048;

/// More than the longest value that a client stores.
const VALUE_BYTES_MAX: usize = 8 << 20;

/// A server, and how to reach it.
#[derive(Clone, Debug)]
pub enum Target {
    Plain(SocketAddr),
    Tls(SocketAddr, Arc<ClientConfig>),
    Ucx(Arc<UcxHubs>),
}

/// The bytes of a connection.
enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
    Ucx(Box<UcxStream>),
}

impl Stream {
    fn connect(target: &Target) -> io::Result<Stream> {
        let address = match target {
            Target::Plain(address) | Target::Tls(address, _) => address,
            Target::Ucx(hubs) => return Ok(Stream::Ucx(Box::new(hubs.connect()?))),
        };
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        let Target::Tls(_, config) = target else {
            return Ok(Stream::Plain(stream));
        };
        let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
        let tls = ClientConnection::new(config.clone(), name).map_err(io::Error::other)?;
        Ok(Stream::Tls(Box::new(StreamOwned::new(tls, stream))))
    }

    /// Announces that nothing more will be sent.
    fn half_close(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(stream) => stream.shutdown(Shutdown::Write),
            Stream::Tls(stream) => {
                stream.conn.send_close_notify();
                stream.flush()
            }
            Stream::Ucx(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.read(into),
            Stream::Tls(stream) => stream.read(into),
            Stream::Ucx(stream) => stream.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.write(bytes),
            Stream::Tls(stream) => stream.write(bytes),
            Stream::Ucx(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(stream) => stream.flush(),
            Stream::Tls(stream) => stream.flush(),
            Stream::Ucx(stream) => stream.flush(),
        }
    }
}

/// A connection. Its errors describe faults of the server.
pub struct Wire {
    stream: BufReader<Stream>,
    line: Vec<u8>,
    value: Vec<u8>,
    has_ended: bool,
}

impl Wire {
    pub fn connect(target: &Target) -> Result<Wire, String> {
        let stream = Stream::connect(target).map_err(|error| format!("cannot connect: {error}"))?;
        Ok(Wire {
            stream: BufReader::with_capacity(16 << 10, stream),
            line: Vec::new(),
            value: Vec::new(),
            has_ended: false,
        })
    }

    /// Whether the last error was the end of the connection, and not a wrong answer.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    pub fn send(&mut self, bytes: &[u8]) -> Result<(), String> {
        let stream = self.stream.get_mut();
        let sent = stream.write_all(bytes).and_then(|()| stream.flush());
        sent.map_err(|error| format!("the server does not take a request: {error}"))
    }

    /// Announces that nothing more will be sent.
    pub fn half_close(&mut self) -> Result<(), String> {
        let closed = self.stream.get_mut().half_close();
        closed.map_err(|error| format!("the server has closed the connection: {error}"))
    }

    /// Whether it can announce that nothing more will be sent, and still receive.
    pub fn half_closes(&self) -> bool {
        !matches!(self.stream.get_ref(), Stream::Ucx(_))
    }

    /// Ends the connection as if this process were killed, where that differs from closing it.
    pub fn vanish(&mut self) -> Result<(), String> {
        match self.stream.get_mut() {
            Stream::Plain(_) | Stream::Tls(_) => Ok(()),
            Stream::Ucx(stream) => stream.vanish().map_err(|error| error.to_string()),
        }
    }

    /// The certificate that the server has shown, if it speaks TLS.
    pub fn certificate(&self) -> Option<&CertificateDer<'static>> {
        match self.stream.get_ref() {
            Stream::Plain(_) | Stream::Ucx(_) => None,
            Stream::Tls(stream) => stream.conn.peer_certificates()?.first(),
        }
    }

    /// The next line, without its end.
    pub fn line(&mut self) -> Result<&[u8], String> {
        self.line.clear();
        let mut limited = self.stream.by_ref().take(LINE_BYTES_MAX);
        let read = limited.read_until(b'\n', &mut self.line);
        self.has_ended = read.is_err() || !self.line.ends_with(b"\n");
        read.map_err(|error| format!("no answer: {error}"))?;
        match self.line.strip_suffix(b"\r\n") {
            Some(line) => Ok(line),
            None if self.line.is_empty() => Err("the server closed the connection".to_owned()),
            None => Err(format!("a line without an end: {}", shown(&self.line))),
        }
    }

    /// Expects one of several lines, and returns which.
    pub fn expect(&mut self, request: &str, lines: &[&str]) -> Result<usize, String> {
        let line = self.line()?;
        let found = lines
            .iter()
            .position(|expected| expected.as_bytes() == line);
        found.ok_or_else(|| format!("{request} was answered {}", shown(line)))
    }

    /// Reads the answer to a get of `asked` (keys and the floors of their versions) and checks each
    /// value, and each that is missing. Returns how many there were, and the CAS number of the last
    /// one if it had one.
    pub fn values(
        &mut self,
        expected: &ExpectedVersions,
        asked: &[(Key, Floor)],
    ) -> Result<(u64, Option<u64>), String> {
        let (mut found, mut cas) = (0, None);
        let mut asked = asked.iter();
        loop {
            let line = self.line()?;
            if line == b"END" || line == b"MN" {
                asked.try_for_each(|(key, floor)| expected.check_missing(*key, *floor))?;
                return Ok((found, cas));
            }
            let header =
                header(line).ok_or_else(|| format!("a get was answered {}", shown(line)))?;
            // Answers come in the order of the keys.
            let (key, floor) = loop {
                match asked.next().copied() {
                    Some((key, floor)) if key == header.key => break (key, floor),
                    Some((key, floor)) => expected.check_missing(key, floor)?,
                    None => return Err(format!("{} was not requested there", header.key)),
                }
            };
            self.check_value(expected, key, floor, header.bytes)?;
            found += 1;
            cas = header.cas;
        }
    }

    /// Reads the answer to a `GET` of a key over RESP and checks it. Returns whether there was a
    /// value.
    pub fn bulk(
        &mut self,
        expected: &ExpectedVersions,
        key: Key,
        floor: Floor,
    ) -> Result<bool, String> {
        let line = self.line()?;
        if line == b"$-1" {
            expected.check_missing(key, floor)?;
            return Ok(false);
        }
        let bytes = line
            .strip_prefix(b"$")
            .and_then(|bytes| std::str::from_utf8(bytes).ok()?.parse().ok())
            .filter(|bytes| *bytes <= VALUE_BYTES_MAX)
            .ok_or_else(|| format!("GET {key} was answered {}", shown(line)))?;
        self.check_value(expected, key, floor, bytes)?;
        Ok(true)
    }

    /// Reads a value of a key and its line end, and checks it.
    fn check_value(
        &mut self,
        expected: &ExpectedVersions,
        key: Key,
        floor: Floor,
        bytes: usize,
    ) -> Result<(), String> {
        self.value.resize(bytes + 2, 0);
        let read = self.stream.read_exact(&mut self.value);
        self.has_ended = read.is_err();
        read.map_err(|error| format!("the value of {key} is cut short: {error}"))?;
        let value = self
            .value
            .strip_suffix(b"\r\n")
            .ok_or_else(|| format!("the value of {key} does not end"))?;
        expected.check(key, floor, value::version_of(key, value)?)
    }

    /// Reads and discards at most `bytes` bytes; returns how many arrived.
    pub fn discard(&mut self, bytes: usize) -> Result<usize, String> {
        let mut into = [0; 4096];
        let max = bytes.min(into.len());
        let read = self.stream.read(&mut into[..max]);
        read.map_err(|error| format!("no answer: {error}"))
    }
}

/// A line's description of the value that follows it.
struct Header {
    key: Key,
    bytes: usize,
    cas: Option<u64>,
}

/// `VALUE key flags bytes [cas]` or `VA bytes kkey`.
fn header(line: &[u8]) -> Option<Header> {
    let line = std::str::from_utf8(line).ok()?;
    let words: Vec<&str> = line.split(' ').collect();
    let (key, bytes, cas) = match words[..] {
        ["VALUE", key, "0", bytes] => (key, bytes, None),
        ["VALUE", key, "0", bytes, cas] => (key, bytes, Some(cas.parse().ok()?)),
        ["VA", bytes, key] => (key.strip_prefix('k')?, bytes, None),
        _ => return None,
    };
    let bytes = bytes
        .parse()
        .ok()
        .filter(|bytes| *bytes <= VALUE_BYTES_MAX)?;
    Some(Header {
        key: Key::parse(key.as_bytes())?,
        bytes,
        cas,
    })
}

fn shown(line: &[u8]) -> String {
    format!(
        "{:?}",
        String::from_utf8_lossy(&line[..line.len().min(120)])
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection that yields these bytes and then ends.
    fn received(bytes: Vec<u8>) -> Wire {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || listener.accept().unwrap().0.write_all(&bytes));
        Wire::connect(&Target::Plain(address)).unwrap()
    }

    /// A classic answer of one value.
    fn answer(key: Key, version: u64) -> Vec<u8> {
        let mut value = Vec::new();
        value::push(key, version, 100, &mut value);
        let mut bytes = format!("VALUE {key} 0 {}\r\n", value.len()).into_bytes();
        bytes.extend_from_slice(&value);
        bytes.extend_from_slice(b"\r\nEND\r\n");
        bytes
    }

    #[test]
    fn values_that_are_old_foreign_damaged_or_cut_are_faults() {
        let expected = ExpectedVersions::new(1, 100, true);
        let key = Key {
            client: 0,
            number: 50,
        };
        let other = Key { number: 51, ..key };
        expected.draw(key);
        expected.draw(key);
        expected.stored(key, 2);
        let asked = [(key, expected.floor(key))];
        let read = |bytes| {
            received(bytes)
                .values(&expected, &asked)
                .map(|(found, _)| found)
        };
        assert_eq!(read(answer(key, 2)), Ok(1));
        assert_eq!(read(b"END\r\n".to_vec()), Ok(0));
        let mut damaged = answer(key, 2);
        let last = damaged.len() - 10;
        damaged[last] ^= 1;
        let mut cut = answer(key, 2);
        cut.truncate(60);
        for (bytes, why) in [
            (answer(key, 1), "again"),
            (answer(key, 3), "the last"),
            (answer(other, 2), "not requested"),
            (damaged, "not as it was written"),
            (cut, "cut short"),
            (Vec::new(), "closed"),
            (b"SERVER_ERROR busy\r\n".to_vec(), "SERVER_ERROR busy"),
        ] {
            let fault = read(bytes).unwrap_err();
            assert!(fault.contains(why), "{fault}, not {why}");
        }
    }

    #[test]
    fn values_in_resp_are_checked_in_the_same_way() {
        let expected = ExpectedVersions::new(1, 100, false);
        let key = Key {
            client: 0,
            number: 50,
        };
        expected.draw(key);
        expected.stored(key, 1);
        let floor = expected.floor(key);
        let read = |bytes: Vec<u8>| received(bytes).bulk(&expected, key, floor);
        let answer = |version| {
            let mut value = Vec::new();
            value::push(key, version, 100, &mut value);
            [format!("${}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat()
        };
        assert_eq!(read(answer(1)), Ok(true));
        for (bytes, why) in [
            (answer(2), "the last"),
            (b"$-1\r\n".to_vec(), "missing"),
            (b"$5\r\nhello\r\n".to_vec(), "another key's value"),
            (b"$99999999999\r\n".to_vec(), "was answered"),
            (b"-ERR busy\r\n".to_vec(), "ERR busy"),
        ] {
            let fault = read(bytes).unwrap_err();
            assert!(fault.contains(why), "{fault}, not {why}");
        }
    }

    #[test]
    fn headers_are_read_and_anything_else_is_not() {
        let key = "soak:00000001:0002";
        let classic = header(format!("VALUE {key} 0 12 99").as_bytes()).unwrap();
        assert_eq!((classic.bytes, classic.cas), (12, Some(99)));
        let meta = header(format!("VA 7 k{key}").as_bytes()).unwrap();
        assert_eq!((meta.bytes, meta.key.number), (7, 2));
        for line in [
            "END".to_owned(),
            "SERVER_ERROR out of memory".to_owned(),
            format!("VALUE {key} 1 12"),
            format!("VALUE {key} 0 99999999999"),
            format!("VA {key} k7"),
        ] {
            assert!(header(line.as_bytes()).is_none(), "{line}");
        }
    }
}
