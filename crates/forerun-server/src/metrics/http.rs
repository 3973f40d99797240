//! A minimal HTTP/1.1 server for scrapers and health checks: `GET /metrics`, `GET /health` and the
//! paths below it, one request per connection.
//!
//! ```text
//!   Reading ── empty line ──► Writing ── all is sent ──► Lingering ── client closes ──► closed
//!      └── 2 s without a whole request, or 2 s from there to the client's end: closed ──┘
//! ```
//!
//! A client that sends more than a head, such as a body, would lose the answer if its connection
//! were closed with unread bytes. What it sends is discarded until it closes.
//!
//! One thread serves all connections and blocks on none of them, so a client that stalls delays
//! nobody. If there are too many, the oldest is closed.

use forerun_core::sync::{
    thread::{self, JoinHandle},
    time,
};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forerun_core::{above_standard_streams, open_above_standard_streams};
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};
use slab::Slab;

use super::text::Exporter;
use crate::error::Error;
use crate::health::{self, Health};
use crate::net::retry;

/// Maximum size of a request's head.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// Maximum time to receive a request, and maximum time to send its answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of bytes after a request's head that are discarded.
const DISCARDED_BYTES_MAX: usize = 1 << 20;
/// Maximum number of connections. A scraper sends its request at once and needs its place for
/// milliseconds.
const CONNECTIONS_MAX: usize = 64;
/// How long to wait before the next attempt if no connection can be accepted, for example for lack
/// of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

const LISTENER: Token = Token(usize::MAX);
const WAKER: Token = Token(usize::MAX - 1);

/// Serves metrics on its own thread until it is dropped.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) address: SocketAddr,
    over: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

/// The thread's state.
struct Connections {
    poll: Poll,
    listener: TcpListener,
    metrics: Exporter,
    open: Slab<Connection>,
    /// Whether a client may wait that could not be accepted. The poll does not report it again.
    accept_failed: bool,
}

struct Connection {
    stream: TcpStream,
    phase: Phase,
    /// When the connection is closed at the latest.
    deadline: Instant,
}

enum Phase {
    /// The head that has arrived so far.
    Reading(Vec<u8>),
    /// The answer, and how much of it is sent.
    Writing(Vec<u8>, usize),
    /// The answer is sent. This many bytes may still be discarded.
    Lingering(usize),
}

impl Endpoint {
    /// Binds `address` and starts to serve.
    ///
    /// # Errors
    /// [`Error::Listen`], or [`Error::Start`] if the thread cannot be started.
    pub(crate) fn start(address: SocketAddr, metrics: Exporter) -> Result<Endpoint, Error> {
        let failed = |source| Error::Listen {
            address: address.to_string(),
            source,
        };
        let listener = TcpListener::bind(address).and_then(above_standard_streams);
        let mut listener = listener.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let cannot = |what| move |source| Error::Start { what, source };
        let poll = open_above_standard_streams(Poll::new).map_err(cannot("a poll"))?;
        let registry = poll.registry();
        registry
            .register(&mut listener, LISTENER, Interest::READABLE)
            .map_err(cannot("a poll"))?;
        let waker = open_above_standard_streams(|| Waker::new(registry, WAKER));
        let waker = waker.map_err(cannot("a poll"))?;
        let over = Arc::new(AtomicBool::new(false));
        let is_over = over.clone();
        let mut connections = Connections {
            poll,
            listener,
            metrics,
            open: Slab::new(),
            accept_failed: false,
        };
        let thread = thread::Builder::new().name("metrics".to_owned());
        let thread = thread
            .spawn(move || connections.serve(&is_over))
            .map_err(cannot("a thread"))?;
        Ok(Endpoint {
            address,
            over,
            waker,
            thread: Some(thread),
        })
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // Relaxed: a flag without data. The wake-up follows it, and the system orders the two.
        self.over.store(true, Ordering::Relaxed);
        // If the thread cannot be woken, it ends with the process.
        if self.waker.wake().is_ok()
            && let Some(thread) = self.thread.take()
        {
            // The thread returns nothing, and it has reported its own panic.
            let _ = thread.join();
        }
    }
}

impl Connections {
    fn serve(&mut self, is_over: &AtomicBool) {
        let mut events = Events::with_capacity(CONNECTIONS_MAX);
        loop {
            let now = time::now();
            let deadline = self.open.iter().map(|(_, one)| one.deadline).min();
            let again = self.accept_failed.then(|| now + ACCEPT_PAUSE);
            let until = deadline.into_iter().chain(again).min();
            let timeout = until.map(|at| at.saturating_duration_since(now));
            match self.poll.poll(&mut events, timeout) {
                Err(error) if error.kind() != ErrorKind::Interrupted => {
                    tracing::error!(%error, "the endpoint of the metrics has failed");
                    return;
                }
                _ => {}
            }
            // Relaxed: see the store above.
            if is_over.load(Ordering::Relaxed) {
                return;
            }
            for event in &events {
                match event.token() {
                    LISTENER => self.accept_all(),
                    WAKER => {}
                    Token(key) => self.advance(key),
                }
            }
            if self.accept_failed {
                self.accept_all();
            }
            let now = time::now();
            self.open.retain(|_, one| one.deadline > now);
        }
    }

    /// Accepts all clients that wait.
    fn accept_all(&mut self) {
        self.accept_failed = false;
        loop {
            match retry(|| self.listener.accept()).and_then(|(stream, _)| self.admit(stream)) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => {
                    tracing::debug!(%error, "a scrape failed");
                    self.accept_failed = true;
                    return;
                }
            }
        }
    }

    fn admit(&mut self, stream: TcpStream) -> io::Result<()> {
        let mut stream = above_standard_streams(stream)?;
        if self.open.len() == CONNECTIONS_MAX {
            let oldest = self.open.iter().min_by_key(|(_, one)| one.deadline);
            if let Some((key, _)) = oldest {
                self.open.remove(key);
            }
        }
        let place = self.open.vacant_entry();
        let key = place.key();
        let interest = Interest::READABLE | Interest::WRITABLE;
        let registry = self.poll.registry();
        registry.register(&mut stream, Token(key), interest)?;
        place.insert(Connection {
            stream,
            phase: Phase::Reading(Vec::new()),
            deadline: time::now() + REQUEST_TIMEOUT,
        });
        // The poll reports what arrives from now on, and the request may be there already.
        self.advance(key);
        Ok(())
    }

    /// Does what is possible on a connection now. Closes it if it is finished or has failed.
    fn advance(&mut self, key: usize) {
        let Some(connection) = self.open.get_mut(key) else {
            return;
        };
        match connection.advance(&self.metrics) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(error) => tracing::debug!(%error, "a scrape failed"),
            Ok(()) => {}
        }
        self.open.remove(key);
    }
}

impl Connection {
    /// Returns when everything is sent and the client has closed, or with `WouldBlock` when the
    /// socket is not ready.
    fn advance(&mut self, metrics: &Exporter) -> io::Result<()> {
        loop {
            match &mut self.phase {
                Phase::Reading(head) => {
                    let mut piece = [0; 1024];
                    match retry(|| self.stream.read(&mut piece))? {
                        0 => return Err(ErrorKind::UnexpectedEof.into()),
                        count => head.extend_from_slice(&piece[..count]),
                    }
                    if head.windows(4).any(|end| end == b"\r\n\r\n") {
                        self.phase = Phase::Writing(answer(head, metrics)?, 0);
                        self.deadline = time::now() + REQUEST_TIMEOUT;
                    } else if head.len() > HEAD_BYTES_MAX {
                        return Err(ErrorKind::InvalidData.into());
                    }
                }
                Phase::Writing(answer, sent) if *sent == answer.len() => {
                    self.stream.shutdown(Shutdown::Write)?;
                    self.phase = Phase::Lingering(DISCARDED_BYTES_MAX);
                }
                Phase::Writing(answer, sent) => {
                    match retry(|| self.stream.write(&answer[*sent..]))? {
                        0 => return Err(ErrorKind::WriteZero.into()),
                        count => *sent += count,
                    }
                }
                Phase::Lingering(left) => {
                    let count = retry(|| self.stream.read(&mut [0; 4096]))?;
                    *left = left.saturating_sub(count);
                    if count == 0 || *left == 0 {
                        return Ok(());
                    }
                }
            }
        }
    }
}

const PATHS: &str = "\
Metrics are at /metrics, and the state of the server at /health, /health/live, /health/ready and
/health/started.
";

/// The answer of a health check. `None` for another path.
fn is_healthy(path: &[u8], health: &Health) -> Option<bool> {
    match path {
        b"/health" => Some(health.is_accepting()),
        // It answers.
        b"/health/live" => Some(true),
        b"/health/ready" => Some(health.is_ready()),
        b"/health/started" => Some(health.is_started()),
        _ => None,
    }
}

fn phase_name(health: &Health) -> &'static str {
    match health.phase() {
        health::Phase::Starting => "starting\n",
        health::Phase::Serving => "serving\n",
        health::Phase::DrainDelay | health::Phase::Draining => "shutting down\n",
    }
}

/// The answer to a request with this head.
fn answer(head: &[u8], metrics: &Exporter) -> io::Result<Vec<u8>> {
    let mut words = head.split(|byte| *byte == b' ');
    let (method, target) = (words.next(), words.next());
    let path = target.and_then(|target| target.split(|byte| *byte == b'?').next());
    let (status, kind, body) = match (method, path) {
        (Some(b"GET" | b"HEAD"), Some(b"/metrics")) => (
            "200 OK",
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
            metrics.text().map_err(io::Error::other)?,
        ),
        (Some(b"GET" | b"HEAD"), Some(path)) => {
            let (status, body) = match is_healthy(path, metrics.health()) {
                Some(true) => ("200 OK", phase_name(metrics.health())),
                Some(false) => ("503 Service Unavailable", phase_name(metrics.health())),
                None => ("404 Not Found", PATHS),
            };
            (status, "text/plain", body.to_owned())
        }
        (_, Some(_)) => ("405 Method Not Allowed", "text/plain", String::new()),
        (_, None) => ("400 Bad Request", "text/plain", String::new()),
    };
    let length = body.len();
    let mut answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: \
         close\r\n\r\n"
    )
    .into_bytes();
    if method != Some(b"HEAD") {
        answer.extend_from_slice(body.as_bytes());
    }
    Ok(answer)
}
