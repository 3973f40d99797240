//! A stream of bytes between two peers, used like a socket that never blocks.
//!
//! ```text
//!   control socket   hello ──────────────────────────── number of messages, end     TCP or Unix
//!   channel                message message message …                                UCX
//! ```
//!
//! The control socket stays open for as long as the stream. The system closes it when a peer dies,
//! whatever transport UCX uses. Its end is the end of the stream: a side that closes properly first
//! says how many messages it has sent, so that none is lost on the way.

use forerun_core::sync::Arc;
use forerun_core::sync::atomic::{AtomicBool, Ordering};
use std::fmt;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::ops::Range;

use forerun_core::sync::{Mutex, MutexGuard, PoisonError};

use crate::hub::{ChannelId, Hub};
use crate::message::SharedBytes;

/// The bytes of the last number on the control socket.
const END_BYTES: usize = 4;

/// How often a read at the end of a stream lets UCX work.
const PROGRESS_MAX: usize = 64;

/// A connected stream. `C` is its control socket, which must not block.
pub struct Stream<C: Read + Write> {
    control: C,
    hub: Arc<Mutex<Hub>>,
    channel: ChannelId,
    /// Set by the event loop when the control socket may have something to read.
    control_ready: Arc<AtomicBool>,
    /// What was received of the peer's last number.
    end: Vec<u8>,
    /// Whether the peer has closed the control socket.
    is_closed: bool,
    /// Whether the hub waits for the peer's last messages.
    is_awaited: bool,
}

impl<C: Read + Write> fmt::Debug for Stream<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("channel", &self.channel)
            .finish_non_exhaustive()
    }
}

/// Locks a hub. Its state is consistent even if a thread has panicked.
pub(crate) fn lock(hub: &Mutex<Hub>) -> MutexGuard<'_, Hub> {
    hub.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<C: Read + Write> Stream<C> {
    /// A stream over a connected channel. `rest` is what was received on the control socket after
    /// the hello. The event loop sets `control_ready` when the control socket is readable.
    pub fn new(
        control: C,
        rest: &[u8],
        hub: Arc<Mutex<Hub>>,
        channel: ChannelId,
        control_ready: Arc<AtomicBool>,
    ) -> Stream<C> {
        // Something may have arrived before the event loop knew of the stream.
        // Relaxed: one thread uses the stream and sets the flag; the flag publishes nothing.
        control_ready.store(true, Ordering::Relaxed);
        Stream {
            control,
            hub,
            channel,
            control_ready,
            end: rest.to_vec(),
            is_closed: false,
            is_awaited: false,
        }
    }

    /// The control socket.
    pub fn control(&mut self) -> &mut C {
        &mut self.control
    }

    /// The control socket.
    pub fn control_ref(&self) -> &C {
        &self.control
    }

    /// The hub.
    pub fn hub(&self) -> &Arc<Mutex<Hub>> {
        &self.hub
    }

    /// The channel.
    pub fn channel(&self) -> ChannelId {
        self.channel
    }

    /// Memory of what was received and not read, and of what was written and not sent.
    pub fn buffered_bytes(&self) -> (usize, usize) {
        let mut hub = lock(&self.hub);
        (
            hub.input_bytes(self.channel),
            hub.output_bytes(self.channel),
        )
    }

    /// Whether a read would return bytes, the end or an error now.
    pub fn can_read(&self) -> bool {
        // Relaxed: as in `new`.
        self.control_ready.load(Ordering::Relaxed)
            || self.is_closed
            || lock(&self.hub).has_input(self.channel)
    }

    /// Whether a write would send bytes or return an error now.
    pub fn can_write(&self) -> bool {
        self.is_closed || lock(&self.hub).can_write(self.channel)
    }

    /// Like [`Write::write`], for bytes that stay where they are until they are sent.
    ///
    /// # Errors
    /// As [`Write::write`].
    pub fn write_shared(&mut self, bytes: &SharedBytes, range: Range<usize>) -> io::Result<usize> {
        self.check_open()?;
        lock(&self.hub).write_shared(self.channel, bytes, range)
    }

    /// Reads what has arrived on the control socket.
    fn read_control(&mut self) -> io::Result<()> {
        // Relaxed: as in `new`.
        if !self.control_ready.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.control_ready.store(false, Ordering::Relaxed);
        let mut bytes = [0; END_BYTES + 1];
        while !self.is_closed {
            match self.control.read(&mut bytes) {
                Ok(0) => self.is_closed = true,
                Ok(count) => self.end.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // The peer is gone, as far as this side can see.
                Err(_) => self.is_closed = true,
            }
            if self.end.len() > END_BYTES {
                let what = "bytes follow the end of the stream on the control socket";
                return Err(io::Error::new(ErrorKind::InvalidData, what));
            }
        }
        Ok(())
    }

    /// The number of messages after which the peer has ended the stream.
    fn peer_end(&self) -> Option<u32> {
        let bytes = self.end.first_chunk::<END_BYTES>()?;
        Some(u32::from_le_bytes(*bytes))
    }

    /// The result of a read when no bytes wait.
    fn end_of_input(&mut self) -> io::Result<usize> {
        let mut hub = lock(&self.hub);
        match self.peer_end() {
            Some(count) => {
                let missing = count.wrapping_sub(hub.received(self.channel));
                if missing == 0 {
                    return Ok(0);
                }
                if !self.is_awaited {
                    self.is_awaited = true;
                    hub.expect(self.channel, count);
                }
                Err(ErrorKind::WouldBlock.into())
            }
            None if self.is_closed => Err(ErrorKind::ConnectionReset.into()),
            None => Err(ErrorKind::WouldBlock.into()),
        }
    }

    /// Fails if the peer has closed the control socket: it reads no more.
    fn check_open(&mut self) -> io::Result<()> {
        self.read_control()?;
        match self.is_closed {
            true => Err(ErrorKind::BrokenPipe.into()),
            false => Ok(()),
        }
    }
}

impl<C: Read + Write> Read for Stream<C> {
    /// Reads received bytes. `Ok(0)` means that the peer has ended the stream.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.read_control()?;
        if self.is_closed {
            // The last messages came before the end, so UCX can receive them by now. Other streams
            // may never stop sending.
            let mut hub = lock(&self.hub);
            for _ in 0..PROGRESS_MAX {
                if !hub.progress() {
                    break;
                }
            }
        }
        let read = lock(&self.hub).read(self.channel, into);
        match read {
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.end_of_input(),
            read => read,
        }
    }
}

impl<C: Read + Write> Write for Stream<C> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.check_open()?;
        lock(&self.hub).write(self.channel, parts)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<C: Read + Write> Drop for Stream<C> {
    fn drop(&mut self) {
        let mut hub = lock(&self.hub);
        // A fork has copies of the control socket and of UCX's memory, and must touch neither.
        if hub.is_owned() {
            let sent = hub.sent(self.channel);
            hub.close(self.channel);
            // If the control socket does not take the number, the peer sees a broken connection.
            let _ = self.control.write(&sent.to_le_bytes());
        }
    }
}
