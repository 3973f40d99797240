//! The part of a worker's poll that watches connections over UCX.
//!
//! ```text
//!   token of mio          reports
//!   0, 1, …               a socket
//!   CONTROL | token       the control socket of the connection with this token
//!   HUBS + number         UCX has something to do
//!   WAKE                  another thread
//! ```
//!
//! A worker that has just heard from a client over UCX polls UCX for a while before it sleeps: a
//! message arrives in less time than the system needs to wake a thread. While messages arrive, it
//! asks the system about its sockets only now and then.

use forerun_core::sync::atomic::{AtomicBool, Ordering};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forerun_core::sync::{Mutex, MutexGuard, PoisonError, time};
use forerun_ucx::{Context, Hub};
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};

use crate::system::{Ready, WAKE};

use super::socket::{UcxSocket, WorkerHandle};

/// How long a worker polls UCX after the last message.
const POLL_TIME: Duration = Duration::from_micros(20);
/// How long a worker may look at UCX alone while messages arrive.
const SOCKETS_INTERVAL: Duration = Duration::from_micros(50);
/// How often a worker looks at UCX while a peer does not take what it was sent. UCX reports no
/// event then.
const BUSY_INTERVAL: Duration = Duration::from_millis(1);

/// The hubs of a worker. Another is created when clients that have left took nothing, so that the
/// first is full of what they were sent.
const HUBS_MAX: usize = 8;

/// The token bit of a control socket.
const CONTROL: usize = 1 << 62;
/// The token of the first hub.
const HUBS: usize = 1 << 63;

/// The hubs of a worker, and its connections over UCX.
#[derive(Default)]
pub(crate) struct UcxPoll {
    hubs: Vec<HubEntry>,
    /// By token: set when the control socket may have something to read.
    controls: Vec<Option<Arc<AtomicBool>>>,
    times: Option<Times>,
}

struct HubEntry {
    context: Context,
    hub: Arc<Mutex<Hub>>,
}

struct Times {
    /// When the last message arrived.
    active: Instant,
    /// When the system was last asked about sockets.
    asked: Instant,
}

/// What the poll of sockets should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SocketPoll {
    /// Nothing this time.
    Skip,
    /// Wait for at most this time.
    Wait(Option<Duration>),
}

impl fmt::Debug for UcxPoll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UcxPoll")
            .field("hubs", &self.hubs.len())
            .finish_non_exhaustive()
    }
}

fn lock(hub: &Mutex<Hub>) -> MutexGuard<'_, Hub> {
    // A hub's state is consistent even if a thread has panicked.
    hub.lock().unwrap_or_else(PoisonError::into_inner)
}

impl UcxPoll {
    /// Watches a connection, which belongs to this poll's worker from now on.
    ///
    /// # Errors
    /// The system's or UCX's error.
    pub(crate) fn register(
        &mut self,
        registry: &Registry,
        socket: &mut UcxSocket,
        token: usize,
    ) -> io::Result<()> {
        let hub = self.hub(registry, socket.context())?;
        let control_ready = Arc::new(AtomicBool::new(true));
        if let Some(control) = socket.control() {
            registry.register(control, Token(CONTROL | token), Interest::READABLE)?;
        }
        if self.controls.len() <= token {
            self.controls.resize(token + 1, None);
        }
        self.controls[token] = Some(control_ready.clone());
        socket.put_at(WorkerHandle {
            hub,
            token,
            control_ready,
        });
        Ok(())
    }

    /// Stops watching a connection.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn deregister(registry: &Registry, socket: &mut UcxSocket) -> io::Result<()> {
        match socket.control() {
            Some(control) => registry.deregister(control),
            None => Ok(()),
        }
    }

    /// The hub of a context, created when its first connection comes.
    fn hub(&mut self, registry: &Registry, context: &Context) -> io::Result<Arc<Mutex<Hub>>> {
        let is_usable = |entry: &&HubEntry| {
            let hub = lock(&entry.hub);
            entry.context.is(context) && !hub.is_stuck() && !hub.is_full()
        };
        if let Some(entry) = self.hubs.iter().find(is_usable) {
            return Ok(entry.hub.clone());
        }
        let is_alike = |entry: &&HubEntry| entry.context.is(context);
        if self.hubs.iter().filter(is_alike).count() >= HUBS_MAX {
            let what = "UCX keeps too many messages for clients that have left";
            return Err(io::Error::other(what));
        }
        let hub = Hub::new(context).map_err(io::Error::other)?;
        let token = Token(HUBS + self.hubs.len());
        registry.register(
            &mut SourceFd(&hub.as_fd().as_raw_fd()),
            token,
            Interest::READABLE,
        )?;
        let hub = Arc::new(Mutex::new(hub));
        self.hubs.push(HubEntry {
            context: context.clone(),
            hub: hub.clone(),
        });
        let now = time::now();
        self.times = Some(Times {
            active: now,
            asked: now,
        });
        Ok(hub)
    }

    /// Polls UCX until there is something to report or it is time to sleep.
    pub(crate) fn poll(&mut self, timeout: Option<Duration>) -> SocketPoll {
        self.drop_stuck();
        let Some(times) = &mut self.times else {
            return SocketPoll::Wait(timeout);
        };
        let begin = time::now();
        let mut now = begin;
        loop {
            let mut is_ready = false;
            let mut has_worked = false;
            for entry in &self.hubs {
                let mut hub = lock(&entry.hub);
                has_worked |= hub.progress();
                is_ready |= hub.has_ready();
            }
            if is_ready {
                times.active = now;
                if now.saturating_duration_since(times.asked) < SOCKETS_INTERVAL {
                    return SocketPoll::Skip;
                }
            }
            // Sockets have their turn too, even if UCX always has something to do.
            let is_long = now.saturating_duration_since(begin) >= SOCKETS_INTERVAL;
            if is_ready || is_long || timeout == Some(Duration::ZERO) {
                times.asked = now;
                return SocketPoll::Wait(Some(Duration::ZERO));
            }
            now = time::now();
            if !has_worked && now.saturating_duration_since(times.active) >= POLL_TIME {
                break;
            }
        }
        let mut wait = timeout;
        for entry in &self.hubs {
            let mut hub = lock(&entry.hub);
            let mut limit = hub.wait_max();
            if !hub.arm().unwrap_or(false) {
                // Something has just arrived, or UCX waits for a peer or cannot watch one.
                let is_new = hub.progress() || hub.has_ready();
                limit = Some(if is_new {
                    Duration::ZERO
                } else {
                    BUSY_INTERVAL
                });
            }
            wait = [wait, limit].into_iter().flatten().min();
        }
        times.asked = now;
        SocketPoll::Wait(wait)
    }

    /// Drops the hubs that receive nothing any more and have no connections left. Their clients
    /// connect again, and get another hub.
    fn drop_stuck(&mut self) {
        self.hubs.retain(|entry| {
            let is_done = Arc::strong_count(&entry.hub) == 1 && lock(&entry.hub).is_stuck();
            if is_done {
                tracing::warn!(
                    "a client over UCX was killed while it wrote a message; its worker's clients \
                     were disconnected"
                );
            }
            !is_done
        });
    }

    /// Handles an event of mio. Returns `None` for an event of a socket.
    pub(crate) fn event(&mut self, token: usize) -> Option<Option<Ready>> {
        if token == WAKE || token & (CONTROL | HUBS) == 0 {
            return None;
        }
        if token & HUBS != 0 {
            // The hub reports what has happened.
            return Some(None);
        }
        let token = token & !CONTROL;
        if let Some(Some(control_ready)) = self.controls.get(token) {
            // Relaxed: the worker's thread alone uses it.
            control_ready.store(true, Ordering::Relaxed);
        }
        // A client that is gone takes no more answers: the next write reports that.
        Some(Some(Ready {
            token,
            readable: true,
            read_closed: false,
            writable: true,
        }))
    }

    /// Calls `tell` with the connections that have received something or can send again.
    pub(crate) fn report(&mut self, mut tell: impl FnMut(Ready)) {
        for entry in &self.hubs {
            let mut hub = lock(&entry.hub);
            hub.progress();
            hub.take_ready(|ready| {
                tell(Ready {
                    token: ready.tag,
                    readable: true,
                    read_closed: false,
                    writable: ready.writable,
                });
            });
        }
    }
}
