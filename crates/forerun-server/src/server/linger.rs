//! How a connection ends after the server has refused its client: the last error must arrive.
//!
//! ```text
//!   the error is sent ──> end of the stream is sent ──> what still arrives is discarded ──> closed
//!                                                       until the client closes, or LINGER, or BYTES_MAX
//! ```
//!
//! If a socket is closed while bytes of the client are unread, or if bytes arrive later, the system
//! resets the connection. The client's system then fails its next write, and may throw away the
//! error that the client has not read. A client that goes on sending, for example because it sends
//! many requests at once, would never learn why it was refused.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use crate::net::Transport;
use crate::system::Carrier;

/// How long a refused client may take to read the error and close.
pub(crate) const LINGER: Duration = Duration::from_secs(5);
/// Maximum number of bytes that are read from a refused client.
const BYTES_MAX: usize = 16 << 20;

/// The rest of a connection whose client was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Linger {
    bytes_left: usize,
}

impl Linger {
    pub(crate) fn new() -> Linger {
        Linger {
            bytes_left: BYTES_MAX,
        }
    }

    /// Reads once, and forgets what came. Returns whether the connection may be closed.
    ///
    /// # Errors
    /// The system's error, or `WouldBlock`.
    pub(crate) fn discard<K: Carrier>(
        &mut self,
        transport: &mut Transport<K>,
        space: &mut [u8],
    ) -> io::Result<bool> {
        let count = transport.discard(space)?;
        self.bytes_left = self.bytes_left.saturating_sub(count);
        Ok(count == 0 || self.bytes_left == 0)
    }
}

/// Sockets that found no room, each kept for a second. Reading them waits until the end: the system
/// keeps what they send meanwhile.
pub(crate) struct RefusedSockets<K> {
    waiting: VecDeque<(Instant, K)>,
}

/// Maximum number of such sockets. If there are more, the oldest is closed early.
const REFUSED_MAX: usize = 64;
/// How long each is kept.
const REFUSED: Duration = Duration::from_secs(1);
/// The bytes of one that are read before it is closed.
const REFUSED_BYTES_MAX: usize = 256 << 10;

impl<K: Carrier> RefusedSockets<K> {
    pub(crate) fn new() -> RefusedSockets<K> {
        RefusedSockets {
            waiting: VecDeque::new(),
        }
    }

    /// Takes a socket to which the last bytes were written at `now`.
    pub(crate) fn add(&mut self, mut socket: K, now: Instant) {
        if !matches!(socket.end_writes(), Ok(true)) {
            return;
        }
        if self.waiting.len() == REFUSED_MAX {
            self.close_oldest();
        }
        self.waiting.push_back((now + REFUSED, socket));
    }

    /// Closes those whose time is over.
    pub(crate) fn close_due(&mut self, now: Instant) {
        while self.waiting.front().is_some_and(|(due, _)| now >= *due) {
            self.close_oldest();
        }
    }

    /// Closes all of them, because the server ends.
    pub(crate) fn close_all(&mut self) {
        while !self.waiting.is_empty() {
            self.close_oldest();
        }
    }

    /// Maximum time until the next one must be closed.
    pub(crate) fn timeout(&self, now: Instant) -> Option<Duration> {
        let (due, _) = self.waiting.front()?;
        Some(due.saturating_duration_since(now))
    }

    fn close_oldest(&mut self) {
        let Some((_, mut socket)) = self.waiting.pop_front() else {
            return;
        };
        let mut piece = [0; 16 << 10];
        for _ in 0..REFUSED_BYTES_MAX / piece.len() {
            // An error: nothing more has arrived, or the client has vanished.
            if !matches!(socket.read(&mut piece), Ok(1..)) {
                break;
            }
        }
    }
}
