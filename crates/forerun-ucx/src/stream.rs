//! A stream of bytes between two peers, used like a socket that never blocks.
//!
//! ```text
//!   control socket   hello ──────────────────────────── number of messages, end     TCP or Unix
//!   channel                message message message …                                UCX
//! ```
//!
//! The control socket stays open for as long as the stream. The system closes it when a peer dies,
//! whatever transport UCX uses. Its end is the end of the stream: a side that closes properly first
//! says how many messages it has sent, so that none is lost on the way. UCX may report that a peer
//! is gone before the control socket does, and without saying why; the control socket is believed.

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

/// A control socket. It must not block.
pub trait ControlSocket: Read + Write + Send + 'static {}

impl<T: Read + Write + Send + 'static> ControlSocket for T {}

/// A connected stream. `C` is its control socket.
pub struct Stream<C: ControlSocket> {
    /// Taken when the stream is dropped.
    control: Option<C>,
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
    /// Whether a read has returned the end.
    has_ended: bool,
}

impl<C: ControlSocket> fmt::Debug for Stream<C> {
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

impl<C: ControlSocket> Stream<C> {
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
            control: Some(control),
            hub,
            channel,
            control_ready,
            end: rest.to_vec(),
            is_closed: false,
            is_awaited: false,
            has_ended: false,
        }
    }

    /// The control socket.
    pub fn control(&mut self) -> &mut C {
        self.control.as_mut().expect("only drop takes it")
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
            || lock(&self.hub).has_input(self.channel)
            || (self.is_ended_by_peer() && !self.awaits_messages())
    }

    /// Whether the peer has closed the stream and some of its messages have not arrived.
    fn awaits_messages(&self) -> bool {
        let received = || lock(&self.hub).received(self.channel);
        self.is_awaited && self.peer_end().is_some_and(|count| count != received())
    }

    /// Whether a write would send bytes or return an error now.
    pub fn can_write(&self) -> bool {
        self.is_ended_by_peer() || lock(&self.hub).can_write(self.channel)
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
        if self.control_ready.load(Ordering::Relaxed) {
            self.receive_control();
        }
        if self.end.len() > END_BYTES {
            let what = "bytes follow the end of the stream on the control socket";
            return Err(io::Error::new(ErrorKind::InvalidData, what));
        }
        Ok(())
    }

    fn receive_control(&mut self) {
        // Relaxed: as in `new`.
        self.control_ready.store(false, Ordering::Relaxed);
        let mut bytes = [0; END_BYTES + 1];
        while !self.is_closed && self.end.len() <= END_BYTES {
            match self.control().read(&mut bytes) {
                Ok(0) => self.is_closed = true,
                Ok(count) => self.end.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // The peer is gone, as far as this side can see.
                Err(_) => self.is_closed = true,
            }
        }
    }

    /// The number of messages after which the peer has ended the stream.
    fn peer_end(&self) -> Option<u32> {
        let bytes = self.end.first_chunk::<END_BYTES>()?;
        Some(u32::from_le_bytes(*bytes))
    }

    /// Whether the peer has ended the stream, properly or not. It reads no more then.
    fn is_ended_by_peer(&self) -> bool {
        self.is_closed || self.peer_end().is_some()
    }

    /// The result of a read when no bytes wait.
    fn end_of_input(&mut self) -> io::Result<usize> {
        match self.peer_end() {
            Some(count) => {
                self.has_ended = lock(&self.hub).has_arrived(self.channel, count);
                self.is_awaited = !self.has_ended;
                if self.has_ended {
                    Ok(0)
                } else {
                    Err(ErrorKind::WouldBlock.into())
                }
            }
            None if self.is_closed => {
                lock(&self.hub).suspect();
                Err(ErrorKind::ConnectionReset.into())
            }
            None => Err(ErrorKind::WouldBlock.into()),
        }
    }

    /// Fails if the peer has ended the stream.
    fn check_open(&mut self) -> io::Result<()> {
        self.read_control()?;
        if !self.is_ended_by_peer() {
            return Ok(());
        }
        if self.peer_end().is_none() {
            lock(&self.hub).suspect();
        }
        Err(ErrorKind::BrokenPipe.into())
    }
}

impl<C: ControlSocket> Read for Stream<C> {
    /// Reads received bytes. `Ok(0)` means that the peer has ended the stream.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.has_ended {
            return Ok(0);
        }
        self.read_control()?;
        if self.is_ended_by_peer() {
            // The last messages came before the end, so UCX can receive them by now. Other streams
            // may never stop sending.
            let count = self.peer_end();
            let mut hub = lock(&self.hub);
            for _ in 0..PROGRESS_MAX {
                if count == Some(hub.received(self.channel)) || !hub.progress() {
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

impl<C: ControlSocket> Write for Stream<C> {
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

impl<C: ControlSocket> Drop for Stream<C> {
    fn drop(&mut self) {
        let mut hub = lock(&self.hub);
        // A fork has copies of the control socket and of UCX's memory, and must touch neither.
        if !hub.is_owned() {
            return;
        }
        let Some(mut control) = self.control.take() else {
            return;
        };
        let end = hub.sent(self.channel).to_le_bytes();
        // If the control socket does not take the number, the peer sees a broken connection.
        let is_sent = control.write(&end).is_ok_and(|count| count == END_BYTES);
        if is_sent && !self.is_ended_by_peer() {
            let is_gone = Box::new(move || has_ended(&mut control));
            hub.close_when(self.channel, is_gone);
        } else {
            hub.close_now(self.channel);
        }
    }
}

/// Whether the peer has ended its side, properly or not.
fn has_ended(control: &mut impl Read) -> bool {
    let read = control
        .read(&mut [0; END_BYTES])
        .map_err(|error| error.kind());
    !matches!(read, Err(ErrorKind::WouldBlock | ErrorKind::Interrupted))
}
