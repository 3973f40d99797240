//! A client: one thread, some connections, one request under way on each.
//!
//! ```text
//!   begin ──> request written ──> reply counted, byte for byte or by its length ──> begin ...
//! ```
//!
//! It composes nothing and parses nothing while the clock runs.

use super::requests::Requests;
use anyhow::{Context, Result, bail, ensure};
use hdrhistogram::Histogram;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use rustix::time::{ClockId, clock_gettime};
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// One reply in so many is compared byte by byte.
const COMPARED_ONE_IN: usize = 1024;
/// How long a server may say nothing.
const SILENCE: Duration = Duration::from_secs(10);

/// What a client has seen.
pub(super) struct Seen {
    pub(super) requests: u64,
    pub(super) elapsed: Duration,
    /// Nanoseconds from a request's first byte to its reply's last.
    pub(super) latency_ns: Histogram<u64>,
    /// The share of its core that the client used.
    pub(super) cpu_share: f64,
    /// Replies that were compared.
    pub(super) compared: u64,
}

/// A client with its connections, ready to go.
pub(super) struct Client<'a> {
    poll: Poll,
    lines: Vec<Line>,
    requests: &'a Requests,
    next: usize,
    scratch: Vec<u8>,
    expected: Vec<u8>,
    seen: Seen,
}

/// A connection.
struct Line {
    stream: TcpStream,
    request: usize,
    /// Whether a reply is awaited.
    waits: bool,
    sent: usize,
    received: usize,
    begun: Instant,
    /// The reply so far, where it is to be compared.
    reply: Option<Vec<u8>>,
}

impl<'a> Client<'a> {
    /// Connects. `first` is where in the ring of requests it begins.
    pub(super) fn connect(
        address: SocketAddr,
        connections: usize,
        requests: &'a Requests,
        first: usize,
    ) -> Result<Client<'a>> {
        let poll = Poll::new()?;
        let mut lines = Vec::new();
        for number in 0..connections {
            let stream = std::net::TcpStream::connect(address)
                .with_context(|| format!("connection {number} to {address}"))?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            let mut stream = TcpStream::from_std(stream);
            let what = Interest::READABLE | Interest::WRITABLE;
            poll.registry().register(&mut stream, Token(number), what)?;
            lines.push(Line {
                stream,
                request: 0,
                waits: false,
                sent: 0,
                received: 0,
                begun: Instant::now(),
                reply: None,
            });
        }
        Ok(Client {
            poll,
            lines,
            requests,
            next: first % requests.len(),
            scratch: vec![0; 256 << 10],
            expected: Vec::new(),
            seen: Seen {
                requests: 0,
                elapsed: Duration::ZERO,
                latency_ns: Histogram::new(3)?,
                cpu_share: 0.0,
                compared: 0,
            },
        })
    }

    /// Asks for `turn`, then waits for what is under way.
    pub(super) fn drive(mut self, turn: Duration) -> Result<Seen> {
        let mut events = Events::with_capacity(self.lines.len().max(16));
        let cpu_before_s = thread_cpu_s();
        let start = Instant::now();
        for number in 0..self.lines.len() {
            self.begin(number)?;
        }
        let mut under_way = self.lines.len();
        while under_way > 0 {
            match self.poll.poll(&mut events, Some(SILENCE)) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                polled => polled?,
            }
            ensure!(!events.is_empty(), "{}", self.stuck());
            let over = start.elapsed() >= turn;
            for event in &events {
                let number = event.token().0;
                if event.is_writable() {
                    self.write(number)?;
                }
                if event.is_readable() && self.read(number)? {
                    match over {
                        true => under_way -= 1,
                        false => self.begin(number)?,
                    }
                }
            }
        }
        self.seen.elapsed = start.elapsed();
        let used_s = thread_cpu_s() - cpu_before_s;
        self.seen.cpu_share = used_s / self.seen.elapsed.as_secs_f64();
        Ok(self.seen)
    }

    fn begin(&mut self, number: usize) -> Result<()> {
        let line = &mut self.lines[number];
        line.request = self.next;
        self.next = (self.next + 1) % self.requests.len();
        (line.waits, line.sent, line.received) = (true, 0, 0);
        let compared = line.request.is_multiple_of(COMPARED_ONE_IN);
        line.reply = compared.then(Vec::new);
        line.begun = Instant::now();
        self.write(number)
    }

    fn write(&mut self, number: usize) -> Result<()> {
        let line = &mut self.lines[number];
        if !line.waits {
            return Ok(());
        }
        let request = self.requests.request(line.request);
        while line.sent < request.len() {
            match line.stream.write(&request[line.sent..]) {
                Ok(count) => line.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("while a request was sent"),
            }
        }
        Ok(())
    }

    /// Reads what is there; true where that was the reply's end.
    fn read(&mut self, number: usize) -> Result<bool> {
        let line = &mut self.lines[number];
        let wanted = self.requests.reply_bytes;
        if !line.waits {
            return Ok(false);
        }
        while line.received < wanted {
            let count = match line.stream.read(&mut self.scratch) {
                Ok(0) => bail!("the server closed a connection"),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error).context("while a reply was read"),
            };
            line.received += count;
            if let Some(reply) = &mut line.reply {
                reply.extend_from_slice(&self.scratch[..count]);
            }
            let is_emptied = count < self.scratch.len();
            if line.received < wanted && is_emptied {
                return Ok(false);
            }
        }
        ensure!(
            line.received == wanted,
            "a reply was longer than it must be"
        );
        line.waits = false;
        let took_ns = line.begun.elapsed().as_nanos() as u64;
        self.seen.latency_ns.saturating_record(took_ns);
        self.seen.requests += 1;
        if let Some(reply) = line.reply.take() {
            self.expected.clear();
            self.requests.put_reply(line.request, &mut self.expected);
            ensure!(
                reply == self.expected,
                "a reply is wrong: {}",
                differ(&reply, &self.expected)
            );
            self.seen.compared += 1;
        }
        Ok(true)
    }

    /// Which reply did not come.
    fn stuck(&self) -> String {
        let wanted = self.requests.reply_bytes;
        let line = self.lines.iter().find(|line| line.waits);
        let got = line.map_or(0, |line| line.received);
        format!(
            "the server is silent after {got} of a reply's {wanted} bytes: does all that is asked for fit in its memory?"
        )
    }
}

fn differ(got: &[u8], expected: &[u8]) -> String {
    let same = got.iter().zip(expected).take_while(|(a, b)| a == b).count();
    let part = |bytes: &[u8]| {
        let rest = bytes.get(same..).unwrap_or_default();
        rest[..rest.len().min(40)].escape_ascii().to_string()
    };
    format!(
        "at byte {same}, \"{}\" for \"{}\"",
        part(got),
        part(expected)
    )
}

/// Seconds of processor time that this thread has used.
fn thread_cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
