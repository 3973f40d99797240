//! One server's statistics at one time.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use forerun_client::{Error, Failure, RawConnection, ServerAddress};

use crate::login::{self, Login};

/// Maximum time to connect, and to wait for an answer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum size of an answer: a line of `stats conns` has less than 200 bytes.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// Requests whose answers are timed for each sample.
const PROBES: usize = 20;
/// What a listener of RESP makes known by an answer that begins with a minus sign.
const SPEAKS_RESP: &str = "speaks RESP at this port: name the one of memcached's protocol";

/// Names and values.
type Stats = Vec<(String, String)>;

/// A connection to a server.
pub(super) struct Connection(RawConnection);

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
    /// Connects, and authenticates if there is a user. The error is a text for the view.
    pub fn open(server: &ServerAddress, login: &Login) -> Result<Connection, String> {
        login.open(server, TIMEOUT).map(Connection).map_err(shown)
    }

    /// Asks for all statistics. The error is a text for the view.
    pub fn sample(&mut self) -> Result<Sample, String> {
        let stats = self.stats("stats\r\n")??;
        let at = Instant::now();
        // Old servers, and those that forbid it, refuse to list their connections.
        let connections = self.stats("stats conns\r\n")?.unwrap_or_default();
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

    /// Asks for statistics. The inner error is the server's refusal, after which the connection can
    /// be used; after the outer one it cannot, because the next line may belong to this answer.
    fn stats(&mut self, request: &str) -> Result<Result<Stats, String>, String> {
        self.ask(request.as_bytes())?;
        let mut stats = Vec::new();
        let mut bytes = 0;
        loop {
            let line = self.line()?;
            bytes += line.len() as u64;
            if line == "END" {
                return Ok(Ok(stats));
            }
            if line == login::UNAUTHENTICATED {
                return Ok(Err(login::NEEDS_USER.to_owned()));
            }
            if stats.is_empty() && is_of_resp(&line) {
                return Err(SPEAKS_RESP.to_owned());
            }
            if stats.is_empty() && is_refusal(&line) {
                return Ok(Err(answers(&line)));
            }
            let pair = line
                .strip_prefix("STAT ")
                .and_then(|rest| rest.split_once(' '));
            match pair {
                Some((name, value)) if bytes < ANSWER_BYTES_MAX => {
                    stats.push((name.to_owned(), value.to_owned()));
                }
                _ => return Err(answers(&line)),
            }
        }
    }

    fn ask(&mut self, request: &[u8]) -> Result<(), String> {
        self.0.send(request).map_err(shown)
    }

    fn line(&mut self) -> Result<String, String> {
        let line = self.0.line().map_err(shown)?;
        Ok(String::from_utf8_lossy(line).trim_end().to_owned())
    }
}

/// Whether a line is a whole answer that says why there is no other.
fn is_refusal(line: &str) -> bool {
    line == "ERROR" || line.starts_with("CLIENT_ERROR ") || line.starts_with("SERVER_ERROR ")
}

/// Whether a line is an error of RESP. No answer of memcached's protocol begins like this.
fn is_of_resp(line: &str) -> bool {
    line.starts_with('-')
}

fn answers(line: &str) -> String {
    format!("answers {line:?}")
}

/// An error as the view shows it behind the server's name.
fn shown(error: Error) -> String {
    match error {
        Error::Server { failure, .. } => match failure {
            Failure::Connect(error) | Failure::Io(error) => format!("does not answer: {error}"),
            Failure::TimedOut(time) => format!("does not answer within {time:?}"),
            Failure::Closed => "closed the connection".to_owned(),
            Failure::Authentication(line) if is_of_resp(&line) => SPEAKS_RESP.to_owned(),
            Failure::Authentication(line) => format!("cannot authenticate: it answers {line:?}"),
            failure => failure.to_string(),
        },
        error => error.to_string(),
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
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;

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

    /// A connection to a server that has no statistics but a version, and answers `stats conns`
    /// with `list`.
    fn connection(list: &'static [u8]) -> Connection {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        std::thread::spawn(move || {
            let (mut answers, _) = listener.accept().expect("a connection");
            let requests = answers.try_clone().expect("the same connection");
            for request in BufReader::new(requests).lines() {
                let answer = match request.expect("a request").as_str() {
                    "stats" => b"END\r\n",
                    "stats conns" => list,
                    _ => b"VERSION 1\r\n",
                };
                answers.write_all(answer).expect("it is sent");
            }
        });
        let server = ServerAddress::tcp("127.0.0.1", port);
        let timeout = Duration::from_millis(100);
        let opened = Login::default().open(&server, timeout);
        Connection(opened.expect("the server accepts"))
    }

    #[test]
    fn a_server_may_refuse_to_list_its_connections() {
        for refusal in [&b"ERROR\r\n"[..], b"CLIENT_ERROR no access\r\n", b"END\r\n"] {
            let sample = connection(refusal).sample().expect("a sample");
            assert!(sample.clients.is_empty());
        }
    }

    #[test]
    fn a_list_of_connections_that_does_not_arrive_whole_is_an_error() {
        for part in [&b""[..], b"STAT 26:addr tcp:10.0.0.1:4711\r\n"] {
            let error = connection(part).sample().err().expect("an error");
            assert!(error.contains("does not answer within"), "{error}");
        }
    }

    #[test]
    fn a_port_of_resp_is_recognised() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let server = ServerAddress::tcp("127.0.0.1", listener.local_addr().expect("one").port());
        std::thread::spawn(move || {
            let (mut answers, _) = listener.accept().expect("a connection");
            let error = b"-ERR unknown command 'stats', with args beginning with: \r\n";
            answers.write_all(error).expect("it is sent");
            // The client has read it once it closes the connection.
            let _ = BufReader::new(answers).lines().count();
        });
        let mut connection = Connection::open(&server, &Login::default()).expect("it accepts");
        let error = connection.sample().err().expect("an error");
        assert!(
            error.contains("RESP") && error.contains("memcached"),
            "{error}"
        );
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
