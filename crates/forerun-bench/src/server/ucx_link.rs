//! The load's connections over UCX.

use anyhow::{Result, ensure};
use forerun_core::sync::atomic::{AtomicBool, Ordering};
use forerun_core::sync::{Arc, Mutex, MutexGuard, PoisonError};
use forerun_ucx::{Context, ContextOptions, Hello, HelloAnswer, Hub, Stream};
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How many messages a connection receives ahead.
const WINDOW: u16 = 64;

/// A connection.
pub type UcxLink = Stream<UnixStream>;

/// Opens connections and waits until some are ready.
pub(super) struct UcxLinks {
    hub: Arc<Mutex<Hub>>,
    /// Of each connection: makes it look at its control socket.
    controls: Vec<Arc<AtomicBool>>,
}

fn lock(hub: &Mutex<Hub>) -> MutexGuard<'_, Hub> {
    hub.lock().unwrap_or_else(PoisonError::into_inner)
}

impl UcxLinks {
    /// Loads UCX. Its descriptor gets this token.
    pub(super) fn open(registry: &Registry, token: Token) -> Result<UcxLinks> {
        let hub = Hub::new(&Context::open(&ContextOptions::default())?)?;
        let descriptor = hub.as_fd().as_raw_fd();
        registry.register(&mut SourceFd(&descriptor), token, Interest::READABLE)?;
        Ok(UcxLinks {
            hub: Arc::new(Mutex::new(hub)),
            controls: Vec::new(),
        })
    }

    pub(super) fn connect(
        &mut self,
        path: &Path,
        tag: usize,
        timeout: Duration,
    ) -> Result<UcxLink> {
        let (stream, control_ready) = connect_over_ucx(&self.hub, path, tag, timeout)?;
        self.controls.push(control_ready);
        Ok(stream)
    }

    /// Lets UCX work, and appends the numbers of the connections that are ready.
    pub(super) fn poll(&self, ready: &mut Vec<usize>) {
        let mut hub = lock(&self.hub);
        hub.progress();
        hub.take_ready(|link| ready.push(link.tag));
    }

    /// Prepares to wait for the descriptor. Returns false if there is something to do at once.
    pub(super) fn arm(&self) -> Result<bool> {
        Ok(lock(&self.hub).arm()?)
    }

    /// Lets UCX send while the caller waits for something else.
    pub(super) fn progress(&self) {
        lock(&self.hub).progress();
    }

    /// Makes every connection look at its control socket.
    pub(super) fn look_at_controls(&self) {
        for control in &self.controls {
            // Relaxed: one thread uses the flag.
            control.store(true, Ordering::Relaxed);
        }
    }
}

/// Opens a stream of a hub to the server at this Unix socket, which has to answer within `timeout`.
/// Also returns the flag that makes the stream look at its control socket.
///
/// # Errors
/// The system's, UCX's, or the server's reason.
pub fn connect_over_ucx(
    hub: &Arc<Mutex<Hub>>,
    path: &Path,
    tag: usize,
    timeout: Duration,
) -> Result<(UcxLink, Arc<AtomicBool>)> {
    let mut control = UnixStream::connect(path)?;
    control.set_read_timeout(Some(timeout))?;
    let (channel, hello) = {
        let mut hub = lock(hub);
        let (channel, key) = hub.open(tag, WINDOW);
        let address = hub.address().to_vec();
        let window = WINDOW;
        (
            channel,
            Hello {
                address,
                key,
                window,
            },
        )
    };
    let connected = control.write_all(&hello.to_bytes(None)).map_err(Into::into);
    let connected = connected.and_then(|()| {
        let answer = read_answer(&mut control)?;
        lock(hub).connect(channel, &answer.address, answer.key, answer.window)?;
        Ok(())
    });
    if let Err(error) = connected {
        lock(hub).close(channel);
        return Err(error);
    }
    control.set_nonblocking(true)?;
    let control_ready = Arc::new(AtomicBool::new(true));
    let stream = Stream::new(control, &[], hub.clone(), channel, control_ready.clone());
    Ok((stream, control_ready))
}

fn read_answer(control: &mut UnixStream) -> Result<Hello> {
    let mut received = Vec::new();
    loop {
        if let Some((answer, _)) = HelloAnswer::parse(&received)? {
            return Ok(answer);
        }
        let mut piece = [0; 256];
        let count = control.read(&mut piece)?;
        ensure!(count > 0, "the server closed the connection");
        received.extend_from_slice(&piece[..count]);
    }
}
