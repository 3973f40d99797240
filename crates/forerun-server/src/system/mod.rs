//! What a server asks of the system under it: sockets and their readiness, clocks, the snapshot's
//! files, threads.
//!
//! ```text
//!   acceptor, worker, transport, snapshots ──> System ─┬─ Os             mio, the file system, the clocks: every product build
//!                                                      └─ a simulator's  time and faults drawn from a seed
//! ```
//!
//! Everything is generic over [`System`], so a product build calls the operating system without
//! indirection.

mod os;

use std::fmt;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forerun_cache::Cache;

use crate::error::Error;
use crate::net::{Address, Listen, Peer};

pub(crate) use os::Os;

/// The system under a server.
pub trait System: Clone + fmt::Debug + Send + Sync + 'static {
    /// A connection's bytes, without waiting: `WouldBlock` where there are none, or no room.
    type Socket: Read + Write + fmt::Debug + Send;
    /// A bound socket that waits for connections.
    type Listener: Listening<Socket = Self::Socket>;
    /// Tells which sockets are ready.
    type Poll: Readiness<Socket = Self::Socket, Listener = Self::Listener>;
    /// A file that is written once from its beginning to its end, or read so.
    type File: Read + Write;

    /// Binds a listener.
    ///
    /// # Errors
    /// [`Error::Listen`] with the address and the system's reason.
    fn bind(&self, place: &Listen, backlog: u32) -> Result<Self::Listener, Error>;

    /// A poll that reports up to `events` sockets at a time, and what wakes it from any thread; the
    /// wake-up is reported under the token [`WAKE`].
    ///
    /// # Errors
    /// The system's.
    fn poll(&self, events: usize) -> io::Result<(Self::Poll, Arc<dyn Wake>)>;

    /// The monotonic clock.
    fn now(&self) -> Instant;

    /// The wall clock, in seconds since 1970.
    fn unix_s(&self) -> u64;

    /// Sets the cache's clock by the monotonic clock.
    fn tick(&self, cache: &Cache);

    /// Creates a file that only its owner may read; there must be none of that name.
    ///
    /// # Errors
    /// The system's, as for the following.
    fn create(&self, path: &Path) -> io::Result<Self::File>;
    /// Opens a file to read.
    fn open(&self, path: &Path) -> io::Result<Self::File>;
    /// Makes what was written durable.
    fn sync(&self, file: &Self::File) -> io::Result<()>;
    /// Lets go of what the system keeps in memory of a file that was synced. A hint: nothing
    /// depends on it.
    fn uncache(&self, file: &Self::File) {
        let _ = file;
    }
    /// Makes the names in a directory durable.
    fn sync_directory(&self, directory: &Path) -> io::Result<()>;
    /// Gives a file another name, in the place of any other file.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Whether there is a directory of this name.
    fn is_directory(&self, path: &Path) -> bool;

    /// Runs `work` in a thread of its own, which nobody joins. Where there is none, `work` is
    /// dropped.
    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> io::Result<()>;
}

/// A bound socket that waits for connections.
pub trait Listening: fmt::Debug + Send {
    /// What it gives.
    type Socket;

    /// The next connection and its peer, without waiting; `WouldBlock` where there is none.
    ///
    /// # Errors
    /// The system's.
    fn accept(&self) -> io::Result<(Self::Socket, Peer)>;

    /// The address with the port that was given.
    fn address(&self) -> &Address;

    /// Whether its connections speak TLS.
    fn speaks_tls(&self) -> bool;
}

/// Tells which sockets are ready: edge-triggered, so each change is told once.
pub trait Readiness: fmt::Debug + Send {
    /// A connection.
    type Socket;
    /// What gives connections.
    type Listener;

    /// Waits for at most `timeout` and passes on what there is to tell.
    ///
    /// # Errors
    /// The system's, which no connection can cause.
    fn poll(&mut self, timeout: Option<Duration>, tell: impl FnMut(Ready)) -> io::Result<()>;

    /// From now on the socket's changes are told under `token`, and once how it is now.
    ///
    /// # Errors
    /// The system's, as for the following.
    fn register(&self, socket: &mut Self::Socket, token: usize) -> io::Result<()>;
    /// As [`register`](Self::register), for connections that wait to be accepted.
    fn register_listener(&self, listener: &mut Self::Listener, token: usize) -> io::Result<()>;
    /// Nothing more is told of the socket.
    fn deregister(&self, socket: &mut Self::Socket) -> io::Result<()>;
}

/// Wakes a poll from any thread.
pub trait Wake: fmt::Debug + Send + Sync {
    /// Makes the poll return, now or when it is next asked.
    ///
    /// # Errors
    /// The system's; then the poll is gone.
    fn wake(&self) -> io::Result<()>;
}

/// The token of what wakes a poll.
pub const WAKE: usize = usize::MAX;

/// What a poll tells of one socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Which.
    pub token: usize,
    /// A read may find bytes, the end, or an error.
    pub readable: bool,
    /// All bytes there will ever be have come.
    pub read_closed: bool,
    /// A write may find room, or an error.
    pub writable: bool,
}
