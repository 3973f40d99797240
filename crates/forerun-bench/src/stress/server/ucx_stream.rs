//! A client's connection over UCX, used like a blocking socket.
//!
//! ```text
//!   hub     a thread that receives for it
//!   hub     …                                    64 clients each
//! ```
//!
//! A hub takes memory, so many clients share one. None of them waits for another: each lets the
//! hub work while it waits for itself.

use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use forerun_bench::server::ucx_link::{UcxLink, connect_over_ucx};
use forerun_core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use forerun_core::sync::{Arc, Mutex, PoisonError};
use forerun_ucx::{Context, ContextOptions, Hub};

/// Clients that share a hub.
const CLIENTS_PER_HUB: usize = 64;
/// How long a client that waits sleeps at first, and at most, between two looks.
const SLEEP_MIN: Duration = Duration::from_micros(50);
const SLEEP_MAX: Duration = Duration::from_millis(20);

/// The hubs of all clients, and the server's Unix socket.
#[derive(Debug)]
pub struct UcxHubs {
    path: PathBuf,
    /// How long the server may take to answer, or to accept what a client sends.
    timeout: Duration,
    hubs: Vec<Arc<Mutex<Hub>>>,
    next: AtomicUsize,
}

impl UcxHubs {
    pub fn new(path: PathBuf, clients: usize, timeout: Duration) -> Result<UcxHubs> {
        let context = Context::open(&ContextOptions::default())?;
        let new = |_| Ok(Arc::new(Mutex::new(Hub::new(&context)?)));
        let hubs: Result<Vec<_>> = (0..clients.div_ceil(CLIENTS_PER_HUB)).map(new).collect();
        Ok(UcxHubs {
            path,
            timeout,
            hubs: hubs.context("cannot create UCX workers for the clients")?,
            next: AtomicUsize::new(0),
        })
    }

    /// Connects to the server.
    pub fn connect(&self) -> io::Result<UcxStream> {
        // Relaxed: any hub is as good as another.
        let hub = &self.hubs[self.next.fetch_add(1, Ordering::Relaxed) % self.hubs.len()];
        let connected = connect_over_ucx(hub, &self.path, 0, self.timeout);
        let (stream, control_ready) = connected.map_err(io::Error::other)?;
        Ok(UcxStream {
            stream,
            timeout: self.timeout,
            control_ready,
            hub: hub.clone(),
        })
    }
}

/// A connection.
pub struct UcxStream {
    stream: UcxLink,
    timeout: Duration,
    control_ready: Arc<AtomicBool>,
    hub: Arc<Mutex<Hub>>,
}

impl UcxStream {
    /// Ends the connection as the system does when a process is killed.
    pub fn vanish(&mut self) -> io::Result<()> {
        self.stream.control().shutdown(Shutdown::Both)
    }

    /// Repeats a call until it does not have to wait.
    fn wait<T>(&mut self, mut call: impl FnMut(&mut UcxLink) -> io::Result<T>) -> io::Result<T> {
        let start = Instant::now();
        let mut sleep = SLEEP_MIN;
        loop {
            match call(&mut self.stream) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                done => return done,
            }
            if start.elapsed() > self.timeout {
                return Err(ErrorKind::TimedOut.into());
            }
            // Relaxed: one thread uses the flag.
            self.control_ready.store(true, Ordering::Relaxed);
            let has_worked = {
                let mut hub = self.hub.lock().unwrap_or_else(PoisonError::into_inner);
                let has_worked = hub.progress();
                // Each client looks for itself.
                hub.take_ready(|_| {});
                has_worked
            };
            if !has_worked {
                std::thread::sleep(sleep);
                sleep = (sleep * 2).min(SLEEP_MAX);
            }
        }
    }
}

impl Read for UcxStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.wait(|stream| stream.read(into))
    }
}

impl Write for UcxStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.wait(|stream| stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
