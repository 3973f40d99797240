//! A connection: its socket, the bytes to send, and the bytes received.
//!
//! ```text
//!   output   │ sent │ to be sent │                        compose, then send
//!   input    │ parsed │ received │ free        │          receive, then parse
//!                    begin      end           len
//! ```

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forerun_wire::multi_get::ANSWER;

use super::frame_credits::FrameCredits;
use super::resolution::Resolution;
use super::socket::{Peer, Socket, Tls};
use super::ucx::UcxSocket;
use crate::error::Failure;
use crate::failed_deletes::RepeatedDeletes;
use crate::protocol::frame_reply::PartReader;
use crate::protocol::frame_request;
use crate::protocol::reply::{NoReply, Parsed, Reply, parse};
use crate::wait::Readiness;

/// The size of the input buffer, unless a longer value is arriving.
const INPUT_BYTES: usize = 64 << 10;
/// A larger output buffer is freed after its request.
const OUTPUT_BYTES_KEPT: usize = 64 << 10;
/// If a connection has been idle for this long, its server may have closed it.
const CHECK_AFTER: Duration = Duration::from_millis(100);

/// What a connection is waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    /// To be connected, or for space to send.
    Write,
    /// For an answer.
    Read,
    /// For both.
    Both,
}

/// A connection to one server.
#[derive(Debug)]
pub(crate) struct Connection {
    /// `None` while the server's name is being resolved.
    peer: Option<Peer>,
    /// The version of the server's addresses that have the peer.
    pub(crate) addresses_version: u64,
    socket: Socket,
    is_connecting: bool,
    output: Vec<u8>,
    sent: usize,
    input: Vec<u8>,
    begin: usize,
    end: usize,
    /// The number of bytes after `begin` for which the buffer must have space.
    needed: usize,
    /// Bytes of a skipped value that are still to come.
    skip: u64,
    /// Whether the next reply answers the user and the password.
    pub(crate) authenticates: bool,
    /// The deletes that the request repeats. They are answered before it.
    pub(crate) repeated: RepeatedDeletes,
    /// The number of the next request in the meta protocol, or of the next frame.
    pub(crate) next_opaque: u32,
    frames: FrameCredits,
    parts: PartReader,
    last_used: Instant,
}

impl Connection {
    /// Begins to connect.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn open(
        peer: &Peer,
        host: &str,
        tls: Option<&Tls>,
        now: Instant,
    ) -> io::Result<Connection> {
        let socket = Socket::connect(peer, host, tls)?;
        Ok(Connection {
            peer: Some(peer.clone()),
            ..Connection::of(socket, now)
        })
    }

    /// Waits for the addresses of the server. Then call [`Connection::reopen`].
    pub(crate) fn resolving(resolution: Arc<Resolution>, now: Instant) -> Connection {
        Connection::of(Socket::Resolving(resolution), now)
    }

    fn of(socket: Socket, now: Instant) -> Connection {
        Connection {
            peer: None,
            addresses_version: 0,
            socket,
            is_connecting: true,
            output: Vec::new(),
            sent: 0,
            input: Vec::new(),
            begin: 0,
            end: 0,
            needed: 0,
            skip: 0,
            authenticates: false,
            repeated: RepeatedDeletes::default(),
            next_opaque: 0,
            frames: FrameCredits::default(),
            parts: PartReader::default(),
            last_used: now,
        }
    }

    /// Where requests are appended.
    pub(crate) fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// Appends a multi-get frame for the first of `keys`, as many as it takes, and returns their
    /// number. The frame is sent once the server accepts frames and the connection has credits.
    pub(crate) fn push_frame<'k, I>(&mut self, keys: I, with_cas: bool) -> usize
    where
        I: Iterator<Item = &'k [u8]> + Clone,
    {
        self.frames.enable(&mut self.output);
        let at = self.output.len();
        let count = frame_request::push(keys, self.next_opaque, with_cas, &mut self.output);
        self.next_opaque = self.next_opaque.wrapping_add(1);
        self.frames.hold(at, &mut self.output);
        count
    }

    /// Whether the next reply says whether the server accepts frames.
    pub(crate) fn asks_for_frames(&self) -> bool {
        self.frames.is_asked()
    }

    /// The server accepts frames.
    pub(crate) fn enable_frames(&mut self, credits: u16) {
        self.frames.enabled(credits, &mut self.output);
    }

    /// Begins to connect to another address of the server, with the same request.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn reopen(&mut self, peer: &Peer, host: &str, tls: Option<&Tls>) -> io::Result<()> {
        self.socket = Socket::connect(peer, host, tls)?;
        self.peer = Some(peer.clone());
        (self.is_connecting, self.sent) = (true, 0);
        Ok(())
    }

    /// The address. `None` while the server's name is being resolved.
    pub(crate) fn peer(&self) -> Option<&Peer> {
        self.peer.as_ref()
    }

    /// Whether the server's name is being resolved.
    pub(crate) fn is_resolving(&self) -> bool {
        self.peer.is_none()
    }

    pub(crate) fn is_connecting(&self) -> bool {
        self.is_connecting
    }

    /// Call this when a connecting socket is writable.
    ///
    /// # Errors
    /// Why connecting failed.
    pub(crate) fn finish_connecting(&mut self) -> io::Result<()> {
        self.socket.connected()?;
        self.is_connecting = false;
        Ok(())
    }

    /// Sends as much as the socket takes.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn send(&mut self) -> io::Result<()> {
        if self.is_connecting {
            return Ok(());
        }
        let end = self.frames.send_end(self.output.len());
        while self.sent < end {
            match self.socket.write(&self.output[self.sent..end]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.sent += count,
                Err(error) => return ignore_retry(error),
            }
        }
        match self.socket.flush() {
            Ok(()) => Ok(()),
            Err(error) => ignore_retry(error),
        }
    }

    /// What to wait for.
    pub(crate) fn interest(&self) -> Interest {
        let end = self.frames.send_end(self.output.len());
        let writes = self.sent < end || self.socket.wants_write();
        match (self.is_connecting, writes) {
            (true, _) => Interest::Write,
            (false, true) => Interest::Both,
            (false, false) => Interest::Read,
        }
    }

    /// Whether there are bytes to send now.
    pub(crate) fn has_output(&self) -> bool {
        self.sent < self.frames.send_end(self.output.len())
    }

    /// What to wait for on the descriptor.
    pub(crate) fn wanted(&self) -> Readiness {
        let interest = self.interest();
        match self.socket {
            // Its descriptor is readable whenever there is something to do.
            Socket::Ucx(_) | Socket::Resolving(_) => Readiness {
                read: true,
                write: false,
            },
            _ => Readiness {
                read: interest != Interest::Write,
                write: interest != Interest::Read,
            },
        }
    }

    /// The socket, if the connection is one over UCX.
    pub(crate) fn ucx(&self) -> Option<&UcxSocket> {
        match &self.socket {
            Socket::Ucx(socket) => Some(socket),
            _ => None,
        }
    }

    /// Receives the bytes that have arrived, up to the size of the buffer. `None` means that there
    /// are none. `Some(true)` means that more may be waiting.
    ///
    /// # Errors
    /// [`Failure::Closed`] or [`Failure::Io`].
    pub(crate) fn receive(&mut self) -> Result<Option<bool>, Failure> {
        if self.begin == self.end {
            (self.begin, self.end) = (0, 0);
        }
        let wanted = self.needed.max(1);
        if self.end == self.input.len() || self.begin + wanted > self.input.len() {
            self.input.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, self.end - self.begin);
            if self.input.len() < INPUT_BYTES {
                self.input.resize(INPUT_BYTES, 0);
            } else if self.end * 2 > self.input.len() && wanted > self.input.len() {
                // The buffer grows as the bytes arrive: an announced length takes no memory.
                let bytes = wanted.min(self.input.len() * 2);
                self.input.resize(bytes, 0);
            }
        }
        let free = self.input.len() - self.end;
        match self.socket.read(&mut self.input[self.end..]) {
            Ok(0) => Err(Failure::Closed),
            Ok(count) => {
                self.end += count;
                Ok(Some(count == free))
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                io::ErrorKind::ConnectionReset
                | io::ErrorKind::BrokenPipe
                | io::ErrorKind::UnexpectedEof => Err(Failure::Closed),
                _ => Err(Failure::Io(error)),
            },
        }
    }

    /// The next received reply, if it is complete. Call [`Connection::consume`] after it.
    ///
    /// # Errors
    /// [`Failure::Malformed`].
    pub(crate) fn reply(&mut self, max_value_bytes: usize) -> Result<Option<Parsed<'_>>, Failure> {
        let skipped = self.skip.min((self.end - self.begin) as u64);
        self.begin += skipped as usize;
        self.skip -= skipped;
        if self.skip > 0 || (self.begin == self.end && !self.parts.is_ready()) {
            self.needed = 0;
            return Ok(None);
        }
        let received = &self.input[self.begin..self.end];
        let begins_part = self.frames.is_enabled() && received.first() == Some(&ANSWER);
        let parsed = if begins_part || self.parts.is_within_part() {
            self.parts.next(received, max_value_bytes)
        } else {
            parse(received, max_value_bytes)
        };
        if let Ok(Parsed::Complete { reply, .. }) = &parsed
            && *reply == (Reply::PartEnd { is_last: true })
        {
            self.frames.answered(&mut self.output);
        }
        match parsed {
            Ok(Parsed::Partial { needed }) => {
                self.needed = needed;
                Ok(None)
            }
            Ok(parsed) => {
                self.needed = 0;
                Ok(Some(parsed))
            }
            Err(NoReply(what)) => Err(Failure::malformed(what, received)),
        }
    }

    /// Removes a reply. `skip` bytes of its value have not been parsed.
    pub(crate) fn consume(&mut self, bytes: usize, skip: u64) {
        self.begin += bytes;
        self.skip = skip;
    }

    /// Prepares the connection for the next request. Returns false if there are bytes that nobody
    /// asked for, or if the answer came before all of the request was sent. Close the connection
    /// then.
    pub(crate) fn end_request(&mut self, now: Instant) -> bool {
        let is_sent = self.sent == self.output.len() && !self.socket.wants_write();
        self.output.clear();
        self.sent = 0;
        if self.output.capacity() > OUTPUT_BYTES_KEPT {
            self.output = Vec::new();
        }
        if self.input.len() > INPUT_BYTES && self.begin == self.end {
            self.input = Vec::new();
            (self.begin, self.end) = (0, 0);
        }
        self.last_used = now;
        is_sent && self.begin == self.end && self.skip == 0
    }

    /// How long no request has used the connection.
    pub(crate) fn idle_time(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.last_used)
    }

    /// Whether the connection can be used for a request. Checks an idle connection: it is not
    /// usable if its server has closed it or has sent something.
    pub(crate) fn is_usable(&mut self, now: Instant) -> bool {
        if self.idle_time(now) < CHECK_AFTER {
            return true;
        }
        if let Some(ucx) = self.ucx() {
            ucx.look_again();
        }
        // With TLS, the server may send tickets at any time. The read consumes them.
        matches!(self.receive(), Ok(None))
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn ignore_retry(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(()),
        _ => Err(error),
    }
}
