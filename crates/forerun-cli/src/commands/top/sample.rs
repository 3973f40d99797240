//! One server's statistics at one time.

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use crate::login::{self, Login};

/// Maximum time to connect, and to wait for bytes of an answer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum size of an answer: a line of `stats conns` has less than 200 bytes.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// Requests whose answers are timed for each sample.
const PROBES: usize = 20;

/// A connection to a server.
pub(super) struct Connection {
    stream: BufReader<TcpStream>,
}

/// A server's statistics.
pub(super) struct Sample {
    pub at: Instant,
    stats: HashMap<String, String>,
    /// Open connections for each address, without the port.
    pub clients: BTreeMap<String, u64>,
    /// The times that the server took to answer, ascending.
    pub answers: Vec<Duration>,
}

impl Sample {
    /// A statistic, if the server reports it.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.stats.get(name).map(String::as_str)
    }

    /// A statistic that is a number; 0 if the server does not report it.
    pub fn number(&self, name: &str) -> u64 {
        self.text(name)
            .and_then(|text| text.parse().ok())
            .unwrap_or(0)
    }
}

impl Connection {
    /// Connects to `HOST:PORT`, and authenticates if there is a user. The error is a text for the
    /// view.
    pub fn open(server: &str, login: &Login) -> Result<Connection, String> {
        let mut addresses = server
            .to_socket_addrs()
            .map_err(|error| format!("unknown: {error}"))?;
        let opened = addresses.next().ok_or("unknown")?;
        let opened = TcpStream::connect_timeout(&opened, TIMEOUT).and_then(|stream| {
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            stream.set_write_timeout(Some(TIMEOUT))?;
            Ok(stream)
        });
        let stream = opened.map_err(|error| format!("does not answer: {error}"))?;
        let mut connection = Connection {
            stream: BufReader::new(stream),
        };
        if let Some(request) = login.request() {
            connection.ask(request)?;
            let line = connection.line()?;
            if line != login::ACCEPTED {
                return Err(format!("cannot authenticate: it answers {line:?}"));
            }
        }
        Ok(connection)
    }

    /// Asks for all statistics. The error is a text for the view.
    pub fn sample(&mut self) -> Result<Sample, String> {
        let stats = self.stats("stats\r\n")?;
        let at = Instant::now();
        // Old servers, and those that forbid it, have no list of connections.
        let connections = self.stats("stats conns\r\n").unwrap_or_default();
        let clients = clients_of(&connections);
        let mut answers = Vec::with_capacity(PROBES);
        for _ in 0..PROBES {
            let asked = Instant::now();
            self.ask(b"version\r\n")?;
            self.line()?;
            answers.push(asked.elapsed());
        }
        answers.sort_unstable();
        Ok(Sample {
            at,
            stats: stats.into_iter().collect(),
            clients,
            answers,
        })
    }

    fn stats(&mut self, request: &str) -> Result<Vec<(String, String)>, String> {
        self.ask(request.as_bytes())?;
        let mut stats = Vec::new();
        let mut bytes = 0;
        loop {
            let line = self.line()?;
            bytes += line.len() as u64;
            if line == "END" {
                return Ok(stats);
            }
            if line == login::UNAUTHENTICATED {
                return Err(login::NEEDS_USER.to_owned());
            }
            let pair = line
                .strip_prefix("STAT ")
                .and_then(|rest| rest.split_once(' '));
            match pair {
                Some((name, value)) if bytes < ANSWER_BYTES_MAX => {
                    stats.push((name.to_owned(), value.to_owned()));
                }
                _ => return Err(format!("answers {line:?}")),
            }
        }
    }

    fn ask(&mut self, request: &[u8]) -> Result<(), String> {
        let sent = self.stream.get_mut().write_all(request);
        sent.map_err(|error| format!("does not answer: {error}"))
    }

    fn line(&mut self) -> Result<String, String> {
        let mut line = Vec::new();
        let read = self.stream.by_ref().take(4096).read_until(b'\n', &mut line);
        read.map_err(|error| format!("does not answer: {error}"))?;
        match line.strip_suffix(b"\n") {
            Some(line) => Ok(String::from_utf8_lossy(line).trim_end().to_owned()),
            None => Err("closed the connection".to_owned()),
        }
    }
}

/// The number of connections from each address, from the lines of `stats conns`. Listeners do not
/// count.
fn clients_of(lines: &[(String, String)]) -> BTreeMap<String, u64> {
    let mut addresses = BTreeMap::new();
    for (name, value) in lines {
        match name.split_once(':') {
            Some((number, "addr")) => _ = addresses.insert(number, value),
            Some((number, "state")) if value == "conn_listening" => _ = addresses.remove(number),
            _ => {}
        }
    }
    let mut clients = BTreeMap::new();
    for address in addresses.values() {
        *clients.entry(client_of(address)).or_insert(0) += 1;
    }
    clients
}

/// The address of a client without its port: `tcp:10.0.0.1:4711`, `tcp6:[::1]:4711`, `unix:/path`.
fn client_of(addr: &str) -> String {
    let Some((kind, rest)) = addr.split_once(':') else {
        return addr.to_owned();
    };
    match rest.rsplit_once(':') {
        Some((host, _)) if kind.starts_with("tcp") || kind.starts_with("udp") => host.to_owned(),
        _ => kind.to_owned(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A sample at a time, with these statistics.
    pub fn sample(at: Instant, stats: &[(&str, u64)]) -> Sample {
        Sample {
            at,
            stats: stats
                .iter()
                .map(|(name, value)| ((*name).to_owned(), value.to_string()))
                .collect(),
            clients: BTreeMap::new(),
            answers: vec![Duration::from_micros(50); PROBES],
        }
    }

    #[test]
    fn listeners_are_not_clients() {
        let lines = [
            ("26:addr", "tcp:0.0.0.0:11211"),
            ("26:state", "conn_listening"),
            ("27:addr", "tcp:10.0.0.1:4711"),
            ("27:listen_addr", "tcp:10.0.0.9:11211"),
            ("27:state", "conn_read"),
        ];
        let lines = lines.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let expected = BTreeMap::from([("10.0.0.1".to_owned(), 1)]);
        assert_eq!(clients_of(&lines), expected);
    }

    #[test]
    fn clients_are_addresses_without_their_ports() {
        for (addr, client) in [
            ("tcp:10.0.0.1:4711", "10.0.0.1"),
            ("tcp6:[::1]:4711", "[::1]"),
            ("tcp:[::1]:4711", "[::1]"),
            ("unix:/run/s", "unix"),
            ("unix", "unix"),
        ] {
            assert_eq!(client_of(addr), client);
        }
    }
}
