//! The operating system as the server uses it: sockets and their readiness, clocks, snapshot files,
//! threads.
//!
//! ```text
//!   acceptor, worker, transport, snapshots ──> System ─┬─ OsSystem       mio, the file system, the clocks: in every product build
//!                                                      └─ a simulator's  time and faults drawn from a seed
//! ```
//!
//! Everything is generic over [`System`], so a product build calls the operating system without
//! indirection.

use std::fmt;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forerun_cache::{Cache, SharedValue};

use crate::address::{Address, Listen, Peer, Protocol};
use crate::error::Error;

/// The operating system under a server.
pub trait System: Clone + fmt::Debug + Send + Sync + 'static {
    /// A connected socket.
    type Socket: Carrier;
    /// A bound socket that accepts connections.
    type Listener: Listening<Socket = Self::Socket>;
    /// Reports which sockets are ready.
    type Poll: Readiness<Socket = Self::Socket, Listener = Self::Listener>;
    /// A file that is written or read once, from beginning to end.
    type File: Read + Write;

    /// Binds a listener.
    ///
    /// # Errors
    /// [`Error::Listen`] with the address and the system's reason.
    fn bind(&self, listen: &Listen, backlog: u32) -> Result<Self::Listener, Error>;

    /// Creates a poll that reports up to `events` sockets at a time, and a handle that wakes it
    /// from any thread. A wake-up is reported under the token [`WAKE`].
    ///
    /// # Errors
    /// The system's error.
    fn poll(&self, events: usize) -> io::Result<(Self::Poll, Arc<dyn Wake>)>;

    /// The monotonic clock.
    fn now(&self) -> Instant;

    /// The wall clock, in seconds since 1970.
    fn unix_s(&self) -> u64;

    /// The wall clock, in microseconds since 1970, as exactly as the system reports it.
    fn unix_us(&self) -> u64 {
        self.unix_s().saturating_mul(1_000_000)
    }

    /// Sets the cache's clock from the monotonic clock.
    fn tick(&self, cache: &Cache);

    /// Creates a file that only its owner may read. No file of this name may exist.
    ///
    /// # Errors
    /// The system's error. This applies to the following calls too.
    fn create(&self, path: &Path) -> io::Result<Self::File>;
    /// Opens a file for reading.
    fn open(&self, path: &Path) -> io::Result<Self::File>;
    /// Makes all writes to a file durable.
    fn sync(&self, file: &Self::File) -> io::Result<()>;
    /// Drops the system's cached pages of a synced file. This is a hint; nothing depends on it.
    fn uncache(&self, file: &Self::File) {
        let _ = file;
    }
    /// Makes the entries of the directory durable.
    fn sync_directory(&self, directory: &Path) -> io::Result<()>;
    /// Renames a file and replaces any file with the new name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Whether this path is a directory.
    fn is_directory(&self, path: &Path) -> bool;

    /// Runs `work` on a new thread, which is never joined. If no thread can be started, `work` is
    /// dropped.
    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> io::Result<()>;
}

/// What carries a connection's bytes. Its calls never block: `WouldBlock` means that no bytes are
/// available, or that there is no space.
pub trait Carrier: Read + Write + fmt::Debug + Send {
    /// Whether a read that does not fill its buffer has taken everything, so that the poll reports
    /// what comes next.
    fn is_emptied_by_short_read(&self) -> bool {
        true
    }

    /// Whether the peer has yet to say something before its bytes are carried.
    fn is_handshaking(&self) -> bool {
        false
    }

    /// Memory of this process for bytes that were received and not read, and for bytes that were
    /// written and not sent.
    fn buffered_bytes(&self) -> (usize, usize) {
        (0, 0)
    }

    /// Whether [`write_value`](Self::write_value) keeps a share of the value instead of a copy.
    fn shares_values(&self) -> bool {
        false
    }

    /// Ends the stream to the peer, after all bytes that were written. Reads go on. Returns false
    /// if only dropping the carrier ends the stream.
    ///
    /// # Errors
    /// The system's error. The connection is broken.
    fn end_writes(&mut self) -> io::Result<bool> {
        Ok(false)
    }

    /// Writes a part of this range of a value, and returns its length.
    ///
    /// # Errors
    /// As [`Write::write`].
    fn write_value(&mut self, value: &SharedValue, range: Range<usize>) -> io::Result<usize> {
        self.write(&value[range])
    }
}

/// A bound socket that accepts connections.
pub trait Listening: fmt::Debug + Send {
    /// The type of its connections.
    type Socket;

    /// Accepts the next connection. Also returns its peer. `WouldBlock` means that no connection is
    /// waiting.
    ///
    /// # Errors
    /// The system's error.
    fn accept(&self) -> io::Result<(Self::Socket, Peer)>;

    /// The address, with the port that the system assigned.
    fn address(&self) -> &Address;

    /// Whether its connections use TLS.
    fn speaks_tls(&self) -> bool;

    /// What its clients speak.
    fn protocol(&self) -> Protocol {
        Protocol::default()
    }
}

/// Reports which sockets are ready. The reports are edge-triggered: each change is reported once.
pub trait Readiness: fmt::Debug + Send {
    /// The type of connections.
    type Socket;
    /// The type of listeners.
    type Listener;

    /// Waits for at most `timeout` and calls `tell` for each ready socket.
    ///
    /// # Errors
    /// The system's error. No connection can cause one.
    fn poll(&mut self, timeout: Option<Duration>, tell: impl FnMut(Ready)) -> io::Result<()>;

    /// Registers a socket. The poll reports its current state once, then each change, under
    /// `token`.
    ///
    /// # Errors
    /// The system's error. This applies to the following calls too.
    fn register(&self, socket: &mut Self::Socket, token: usize) -> io::Result<()>;
    /// Like [`register`](Self::register), for connections that wait to be accepted.
    fn register_listener(&self, listener: &mut Self::Listener, token: usize) -> io::Result<()>;
    /// Stops all reports about the socket.
    fn deregister(&self, socket: &mut Self::Socket) -> io::Result<()>;
}

/// Wakes a poll from any thread.
pub trait Wake: fmt::Debug + Send + Sync {
    /// Makes the poll return, now or at its next call.
    ///
    /// # Errors
    /// The system's error. The poll is gone then.
    fn wake(&self) -> io::Result<()>;
}

/// The time after this duration, or a century from now if that is beyond the clock.
pub(crate) fn after(now: Instant, time: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_secs(100 * 366 * 24 * 60 * 60);
    now.checked_add(time).unwrap_or_else(|| now + CENTURY)
}

/// The token of a wake-up.
pub const WAKE: usize = usize::MAX;

/// The readiness of one socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The socket's token.
    pub token: usize,
    /// A read may return bytes, the end, or an error.
    pub readable: bool,
    /// The peer sends no more bytes.
    pub read_closed: bool,
    /// A write may succeed or return an error.
    pub writable: bool,
}
