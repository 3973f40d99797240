//! The load: one thread, some connections, some requests in flight on each.
//!
//! ```text
//!  Requests   [0][1][2][3][4][5][6][7][8] …            composed in advance, sent in order, over and over
//!                │     │  └──┴─ connection 0: sends as many requests as were answered
//!                │     └─ connection 1: sent, its reply is arriving
//!                └─ connection 0: answered; the clock stopped when its last byte was read
//! ```
//!
//! A full reply is recognised by its length and its last bytes, or in RESP the lengths in it; one
//! in `SAMPLE` is compared byte by byte with the expected one. A shorter reply is read line by line
//! ([`super::reply`]). So the client costs little besides the system's calls, and it reports how
//! much of its core it used.

use super::form::{Form, Protocol};
use super::link::{ClientWait, Link, LinkPoll, Place, TIMEOUT};
use super::multi_get_form;
use super::reply::{Reply, scan};
use super::request::Requests;
use super::resp_form;
use anyhow::{Context, Result, bail, ensure};
use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

/// One reply in this many is compared byte by byte.
const SAMPLE: u64 = 32;

/// Bytes read at once.
const READ_BYTES: usize = 256 << 10;

/// How long to run.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    /// For `warm_up`, then for `timed`; afterwards the client awaits the requests in flight,
    /// untimed.
    Time {
        /// Not counted.
        warm_up: Duration,
        /// Counted.
        timed: Duration,
    },
    /// Until each request was answered once.
    Once,
}

/// A histogram of nanoseconds, for a client to fill.
pub fn latencies() -> Result<Histogram<u64>> {
    let max_ns = 2 * TIMEOUT.as_nanos() as u64;
    Ok(Histogram::new_with_bounds(1, max_ns, 3)?)
}

/// The requests answered within the time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Answered {
    /// Requests.
    pub requests: u64,
    /// Keys found, or stored.
    pub hits: u64,
    /// The time.
    pub elapsed: Duration,
    /// How long this thread ran on its core in that time.
    pub busy: Duration,
}

struct Connection {
    stream: Link,
    /// The byte ranges of the requests still to be written.
    unsent: VecDeque<Range<usize>>,
    in_flight: VecDeque<(usize, Instant)>,
    /// Multi-get frames still to be written. Each differs by the number of answers received.
    frames: Vec<u8>,
    /// How many of these bytes are written.
    frames_written: usize,
    /// The number of frames answered, modulo 2^16; `None` until the server accepts frames.
    answered: Option<u16>,
    received: Vec<u8>,
    /// The part of `received` that is in use.
    filled: Range<usize>,
}

/// The result of a read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReadResult {
    /// There was nothing to read.
    Nothing,
    /// As many bytes as there was space for.
    Some,
    /// Everything that had arrived.
    All,
}

/// Connections to one server, driven by one thread.
pub struct Client {
    poll: LinkPoll,
    connections: Vec<Connection>,
    depth: usize,
    /// The request to send next; it continues from turn to turn.
    next: usize,
    replies: u64,
    expected: Vec<u8>,
}

impl Client {
    /// Opens `connections` connections over TCP, each for `depth` requests in flight.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn connect(server: SocketAddr, connections: usize, depth: usize) -> Result<Client> {
        Client::connect_to(&Place::Tcp(server), ClientWait::Sleep, connections, depth)
    }

    /// Opens `connections` connections, each for `depth` requests in flight.
    ///
    /// # Errors
    /// Errors of the system and of UCX.
    pub fn connect_to(
        place: &Place,
        wait: ClientWait,
        connections: usize,
        depth: usize,
    ) -> Result<Client> {
        let mut poll = LinkPoll::new(place, wait, connections)?;
        let mut open = |token: usize| -> Result<Connection> {
            Ok(Connection {
                stream: poll.open(place, token)?,
                unsent: VecDeque::new(),
                in_flight: VecDeque::new(),
                frames: Vec::new(),
                frames_written: 0,
                answered: None,
                received: Vec::new(),
                filled: 0..0,
            })
        };
        let connections: Vec<Connection> = (0..connections.max(1))
            .map(&mut open)
            .collect::<Result<_>>()?;
        Ok(Client {
            poll,
            connections,
            depth: depth.max(1),
            next: 0,
            replies: 0,
            expected: Vec::new(),
        })
    }

    /// Sends requests and reads their replies. Latencies of the requests that count go to
    /// `latencies`, in nanoseconds.
    ///
    /// # Errors
    /// The server answers with an error or another value, does not answer, or closes a connection.
    /// The client cannot be used afterwards.
    pub fn drive(
        &mut self,
        requests: &Requests,
        until: Until,
        latencies: &mut Histogram<u64>,
    ) -> Result<Answered> {
        let count = requests.count();
        ensure!(count > 0, "there is nothing to ask for");
        if requests.form() == Form::MultiGet {
            for connection in &mut self.connections {
                connection.enable_frames(&self.poll)?;
            }
        }
        let mut left = match until {
            Until::Once => {
                self.next = 0;
                Some(count)
            }
            Until::Time { .. } => None,
        };
        let begin = Instant::now();
        let (warm_up, timed) = match until {
            Until::Time { warm_up, timed } => (warm_up, timed),
            Until::Once => (Duration::ZERO, Duration::MAX),
        };
        let mut warm = warm_up.is_zero();
        let mut stopwatch = Stopwatch::new(begin, warm);
        let mut heard = begin;
        for at in 0..self.connections.len() {
            self.send(at, self.depth, requests, &mut left)?;
        }
        let mut ready = Vec::new();
        while self.connections.iter().any(|c| !c.in_flight.is_empty()) {
            ready.clear();
            self.poll.wait(&mut ready)?;
            let now = Instant::now();
            for &at in &ready {
                self.connections[at].write(requests)?;
                let answered = self.receive(at, requests, &mut stopwatch, latencies)?;
                if answered > 0 {
                    heard = now;
                    // When the time is up, `left` is 0 and nothing more is sent.
                    self.send(at, answered, requests, &mut left)?;
                }
            }
            ensure!(
                now - heard < TIMEOUT,
                "no reply for {} s",
                TIMEOUT.as_secs()
            );
            if !warm && begin.elapsed() >= warm_up {
                warm = true;
                stopwatch = Stopwatch::new(Instant::now(), true);
            }
            if warm && left.is_none() && stopwatch.is_over(timed) {
                stopwatch.stop();
                left = Some(0);
            }
        }
        stopwatch.stop();
        Ok(stopwatch.answered)
    }

    /// Sends `wanted` more requests on a connection, or as many as are left.
    fn send(
        &mut self,
        at: usize,
        wanted: usize,
        requests: &Requests,
        left: &mut Option<usize>,
    ) -> Result<()> {
        let mut wanted = left.map_or(wanted, |left| wanted.min(left));
        if let Some(left) = left {
            *left -= wanted;
        }
        let connection = &mut self.connections[at];
        let now = Instant::now();
        while wanted > 0 {
            self.next %= requests.count();
            let end = requests.count().min(self.next + wanted);
            match requests.form() {
                Form::MultiGet => connection.push_frames(requests, self.next..end),
                _ => connection.unsent.push_back(requests.range(self.next..end)),
            }
            let sent = (self.next..end).map(|request| (request, now));
            connection.in_flight.extend(sent);
            wanted -= end - self.next;
            self.next = end;
        }
        connection.write(requests)
    }

    /// Reads what has arrived on a connection and consumes the replies in it. Returns how many.
    fn receive(
        &mut self,
        at: usize,
        requests: &Requests,
        stopwatch: &mut Stopwatch,
        latencies: &mut Histogram<u64>,
    ) -> Result<usize> {
        let connection = &mut self.connections[at];
        let mut answered = 0;
        loop {
            let read = connection.read()?;
            if read == ReadResult::Nothing {
                return Ok(answered);
            }
            let now = Instant::now();
            while let Some(&(request, sent)) = connection.in_flight.front() {
                let received = &connection.received[connection.filled.clone()];
                let Some((bytes, hits)) = take(requests, received)? else {
                    break;
                };
                self.replies += 1;
                if self.replies.is_multiple_of(SAMPLE) && hits == requests.keys() {
                    requests.expected(request, &mut self.expected);
                    ensure!(
                        self.expected == received[..bytes],
                        "the server answered {:?} instead of {:?}",
                        String::from_utf8_lossy(&received[..bytes.min(200)]),
                        String::from_utf8_lossy(&self.expected[..bytes.min(200)]),
                    );
                }
                connection.in_flight.pop_front();
                if requests.form() == Form::MultiGet {
                    connection.answered = connection.answered.map(|count| count.wrapping_add(1));
                }
                connection.filled.start += bytes;
                answered += 1;
                stopwatch.count(hits, now - sent, latencies);
            }
            ensure!(
                connection.filled.is_empty() || !connection.in_flight.is_empty(),
                "the server sent more than was requested"
            );
            if read == ReadResult::All {
                return Ok(answered);
            }
        }
    }
}

/// The length of the reply at the beginning of `received` and the keys it found, if it is complete.
fn take(requests: &Requests, received: &[u8]) -> Result<Option<(usize, usize)>> {
    let (form, keys) = (requests.form(), requests.keys());
    if form == Form::MultiGet {
        return whole(multi_get_form::scan(received));
    }
    let full = requests.reply_bytes();
    if received
        .get(..full)
        .is_some_and(|reply| requests.is_full_reply(reply))
    {
        return Ok(Some((full, keys)));
    }
    // An incomplete reply is the common case; only one that could be a complete, shorter reply is
    // examined.
    if received.len() < full && !received.ends_with(b"\r\n") {
        return Ok(None);
    }
    whole(match form.protocol() {
        Protocol::Memcached => scan(form, keys, received),
        Protocol::Resp => resp_form::scan(form, keys, received),
    })
}

fn whole(reply: Reply) -> Result<Option<(usize, usize)>> {
    match reply {
        Reply::Partial => Ok(None),
        Reply::Whole { bytes, hits } => Ok(Some((bytes, hits))),
        Reply::Fault(line) => bail!("the server answered {line:?}"),
    }
}

impl Connection {
    /// Asks the server to accept frames, once.
    fn enable_frames(&mut self, poll: &LinkPoll) -> Result<()> {
        if self.answered.is_some() {
            return Ok(());
        }
        self.stream.write_all(multi_get_form::ENABLE)?;
        let start = Instant::now();
        while self.filled.len() < multi_get_form::ENABLED.len() {
            ensure!(start.elapsed() < TIMEOUT, "no answer to multi_get");
            poll.progress();
            if self.read()? == ReadResult::Nothing {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        let answer = &self.received[self.filled.clone()];
        ensure!(
            answer == multi_get_form::ENABLED,
            "the server answered {:?} to multi_get",
            String::from_utf8_lossy(answer)
        );
        self.filled = 0..0;
        self.answered = Some(0);
        Ok(())
    }

    /// Composes frames from requests.
    fn push_frames(&mut self, requests: &Requests, range: Range<usize>) {
        if self.frames_written == self.frames.len() {
            self.frames.clear();
            self.frames_written = 0;
        }
        for request in range {
            let at = self.frames.len();
            let bytes = &requests.bytes()[requests.range(request..request + 1)];
            self.frames.extend_from_slice(bytes);
            multi_get_form::set_received(&mut self.frames[at..], self.answered.unwrap_or(0));
        }
    }

    /// Writes as many of the pending bytes as fit.
    fn write(&mut self, requests: &Requests) -> Result<()> {
        while self.frames_written < self.frames.len() {
            match self.stream.write(&self.frames[self.frames_written..]) {
                Ok(written) => self.frames_written += written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("cannot write to the server"),
            }
        }
        while let Some(range) = self.unsent.front_mut() {
            match self.stream.write(&requests.bytes()[range.clone()]) {
                Ok(written) => {
                    range.start += written;
                    if range.start == range.end {
                        self.unsent.pop_front();
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("cannot write to the server"),
            }
        }
        Ok(())
    }

    /// Reads once.
    fn read(&mut self) -> Result<ReadResult> {
        if self.filled.is_empty() {
            self.filled = 0..0;
        } else if self.received.len() - self.filled.end < READ_BYTES / 2 && self.filled.start > 0 {
            self.received.copy_within(self.filled.clone(), 0);
            self.filled = 0..self.filled.len();
        }
        if self.received.len() - self.filled.end < READ_BYTES / 2 {
            self.received.resize(self.filled.end + READ_BYTES, 0);
        }
        loop {
            match self.stream.read(&mut self.received[self.filled.end..]) {
                Ok(0) => bail!("the server closed the connection"),
                Ok(read) => {
                    self.filled.end += read;
                    // If a read left space, another event reports further bytes.
                    return Ok(if self.filled.end == self.received.len() {
                        ReadResult::Some
                    } else {
                        ReadResult::All
                    });
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return Ok(ReadResult::Nothing);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("cannot read from the server"),
            }
        }
    }
}

/// The time that is counted.
struct Stopwatch {
    start: Instant,
    busy_before: Duration,
    running: bool,
    answered: Answered,
}

impl Stopwatch {
    fn new(start: Instant, running: bool) -> Stopwatch {
        Stopwatch {
            start,
            busy_before: thread_time(),
            running,
            answered: Answered::default(),
        }
    }

    fn count(&mut self, hits: usize, latency: Duration, latencies: &mut Histogram<u64>) {
        if self.running {
            self.answered.requests += 1;
            self.answered.hits += hits as u64;
            latencies.saturating_record(latency.as_nanos() as u64);
        }
    }

    /// Whether the time is up; a turn that has answered nothing yet continues.
    fn is_over(&self, timed: Duration) -> bool {
        self.running && self.answered.requests > 0 && self.start.elapsed() >= timed
    }

    fn stop(&mut self) {
        if self.running {
            self.running = false;
            self.answered.elapsed = self.start.elapsed();
            self.answered.busy = thread_time().saturating_sub(self.busy_before);
        }
    }
}

/// How long this thread has run on a core.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(
        time.tv_sec.try_into().unwrap_or(0),
        time.tv_nsec.try_into().unwrap_or(0),
    )
}
