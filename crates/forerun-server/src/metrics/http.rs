//! A minimal HTTP/1.1 server for scrapers and health checks: `GET /metrics`, `GET /health`, one
//! request per connection, one connection at a time.

use forerun_core::sync::{
    thread::{self, JoinHandle},
    time,
};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::text::Exporter;
use crate::error::Error;

/// Maximum size of a request's head.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// Maximum time to receive a request, and maximum time to send its answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// Serves metrics on its own thread until it is dropped.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) address: SocketAddr,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
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
        let listener = TcpListener::bind(address).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let over = Arc::new(AtomicBool::new(false));
        let is_over = over.clone();
        let serve = move || {
            for stream in listener.incoming() {
                // Relaxed: a flag without data. The connection that wakes this thread is opened
                // after the flag is set.
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                if let Err(error) = stream.and_then(|stream| answer(stream, &metrics)) {
                    tracing::debug!(%error, "a scrape failed");
                    // With no descriptors left, accept fails at once. Do not spin.
                    thread::sleep(Duration::from_millis(10));
                }
            }
        };
        let thread = thread::Builder::new().name("metrics".to_owned());
        let thread = thread.spawn(serve).map_err(|source| Error::Start {
            what: "a thread",
            source,
        })?;
        Ok(Endpoint {
            address,
            over,
            thread: Some(thread),
        })
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // Relaxed: see the load above.
        self.over.store(true, Ordering::Relaxed);
        // A connection wakes the thread. If none can be opened, the thread ends with the process.
        if TcpStream::connect_timeout(&self.address, REQUEST_TIMEOUT).is_ok()
            && let Some(thread) = self.thread.take()
        {
            // The thread returns nothing, and it has reported its own panic.
            let _ = thread.join();
        }
    }
}

fn answer(mut stream: TcpStream, metrics: &Exporter) -> io::Result<()> {
    stream.set_write_timeout(Some(REQUEST_TIMEOUT))?;
    let head = read_head(&mut stream)?;
    let mut words = head.split(|byte| *byte == b' ');
    let (method, target) = (words.next(), words.next());
    let path = target.and_then(|target| target.split(|byte| *byte == b'?').next());
    let (status, kind, body) = match (method, path) {
        (Some(b"GET" | b"HEAD"), Some(b"/metrics")) => (
            "200 OK",
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
            metrics.text().map_err(io::Error::other)?,
        ),
        (Some(b"GET" | b"HEAD"), Some(b"/health")) => {
            let (status, body) = match metrics.is_serving() {
                true => ("200 OK", "serving\n"),
                false => ("503 Service Unavailable", "shutting down\n"),
            };
            (status, "text/plain", body.to_owned())
        }
        (Some(b"GET" | b"HEAD"), Some(_)) => {
            let body = "Metrics are at /metrics, and the state of the server at /health.\n";
            let body = body.to_owned();
            ("404 Not Found", "text/plain", body)
        }
        (_, Some(_)) => ("405 Method Not Allowed", "text/plain", String::new()),
        (_, None) => ("400 Bad Request", "text/plain", String::new()),
    };
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: \
         close\r\n\r\n"
    )?;
    if method != Some(b"HEAD") {
        stream.write_all(body.as_bytes())?;
    }
    Ok(())
}

/// Reads a request up to the empty line that ends its head.
fn read_head(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let deadline = time::now() + REQUEST_TIMEOUT;
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = deadline.saturating_duration_since(time::now());
        if left.is_zero() || head.len() > HEAD_BYTES_MAX {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut piece)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            count => head.extend_from_slice(&piece[..count]),
        }
    }
    Ok(head)
}
