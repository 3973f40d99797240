//! A UCP worker with the channels of its streams, for one event loop.
//!
//! ```text
//!   loop {
//!       while hub.progress() { … }            for as long as polling pays
//!       hub.take_ready(|ready| …)             the streams that can be read or written
//!       if hub.arm()? { wait for the hub's descriptor and for everything else }
//!   }
//! ```
//!
//! Streams of one hub share it behind a mutex. The event loop and the streams usually run on one
//! thread, so the mutex is free.

use std::fmt;
use std::io::{self, ErrorKind, IoSlice};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use forerun_core::sync::time;

use crate::channel::{ChannelFailure, Channels, MESSAGE_BYTES_MAX, WINDOW_MAX};
use crate::context::Context;
use crate::error::UcxError;
use crate::message::{Message, SharedBytes};
use crate::prober::{Probed, Prober};
use crate::worker::{IsGone, Worker};

/// How often arming is tried. The first attempt usually finds events of messages that have been
/// handled already; UCX discards them as it progresses, and does not report a new message until it
/// is armed.
const ARM_ATTEMPTS: usize = 16;

/// How long messages may still be delivered after their stream is closed, in either direction.
const LINGER: Duration = Duration::from_secs(5);
/// How long the control socket may take to say how a stream has ended after UCX has lost the peer.
const END_TIME: Duration = Duration::from_secs(1);
/// How often a hub must be asked while it waits for that.
const LINGER_INTERVAL: Duration = Duration::from_millis(50);

/// A channel of a hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelId(usize);

/// What can be done with a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelReady {
    /// The number that [`Hub::open`] was given.
    pub tag: usize,
    /// A write may succeed or return an error. A read may always do so.
    pub writable: bool,
}

/// A worker and its channels.
pub struct Hub {
    worker: Worker<Channels>,
    address: Vec<u8>,
    awaited: Vec<Awaited>,
    context: Context,
    health: Health,
    /// Whether a peer has ended without a word since the last message to itself was sent.
    is_suspect: bool,
    /// Created when the worker is first suspected.
    prober: Option<Prober>,
}

/// Whether the worker still receives messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    Good,
    /// A message to itself is on its way.
    Probed,
    /// It receives nothing any more.
    Stuck,
}

/// What a channel waits for, until a time.
struct Awaited {
    channel: usize,
    what: Event,
    until: Instant,
}

#[derive(Clone, Copy)]
enum Event {
    /// The peer has closed the stream after this many messages, of which some are on the way.
    Messages(u32),
    /// UCX has lost the peer, and the control socket does not say yet how the stream has ended.
    End,
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").finish_non_exhaustive()
    }
}

impl Hub {
    /// Creates a hub without channels.
    ///
    /// # Errors
    /// [`UcxError::Call`], [`UcxError::Forked`].
    pub fn new(context: &Context) -> Result<Hub, UcxError> {
        let mut worker = Worker::new(context, Channels::default())?;
        let address = worker.address()?;
        Ok(Hub {
            worker,
            address,
            awaited: Vec::new(),
            context: context.clone(),
            health: Health::Good,
            is_suspect: false,
            prober: None,
        })
    }

    /// The address to send to peers.
    pub fn address(&self) -> &[u8] {
        &self.address
    }

    /// Whether the calling process is the one that created the hub. In any other, streams do
    /// nothing.
    pub fn is_owned(&self) -> bool {
        self.worker.is_owned()
    }

    /// Opens a channel that may receive `window` messages ahead. Also returns the key that the peer
    /// must put into its messages.
    pub fn open(&mut self, tag: usize, window: u16) -> (ChannelId, u64) {
        let (at, key) = self.worker.receiver().open(tag, window);
        (ChannelId(at), key)
    }

    /// Connects a channel to its peer. The address must come from a peer that has shown its right
    /// to connect, because UCX trusts it to be well formed.
    ///
    /// # Errors
    /// [`UcxError::Call`], for example if no transport reaches the address; [`UcxError::Closed`] if
    /// the hub is stuck; [`UcxError::Forked`].
    pub fn connect(
        &mut self,
        channel: ChannelId,
        address: &[u8],
        peer_key: u64,
        peer_window: u16,
    ) -> Result<(), UcxError> {
        if self.is_stuck() {
            return Err(UcxError::Closed);
        }
        let endpoint = self.worker.connect(address, channel.0)?;
        match self.worker.receiver().get_mut(channel.0) {
            Some(channel) => channel.connect(endpoint, peer_key, peer_window),
            None => self.worker.close(endpoint, time::now(), None),
        }
        Ok(())
    }

    /// Reads received bytes, in their order.
    ///
    /// # Errors
    /// `WouldBlock` if there are none; another error if the channel has failed.
    pub fn read(&mut self, channel: ChannelId, into: &mut [u8]) -> io::Result<usize> {
        let channels = self.worker.receiver();
        let count = channels.read(channel.0, into);
        let Some(state) = channels.get_mut(channel.0) else {
            return Err(ErrorKind::NotConnected.into());
        };
        if count == 0 {
            return Err(match &state.failure {
                Some(failure) => failed(failure),
                None => ErrorKind::WouldBlock.into(),
            });
        }
        self.report_consumed(channel.0);
        Ok(count)
    }

    /// Tells the peer what was consumed, if it may be waiting for that. While UCX keeps messages
    /// for the peer, the report waits until they are sent: a peer that takes nothing would
    /// otherwise cost a message for each of its own.
    fn report_consumed(&mut self, at: usize) {
        let Some(channel) = self.worker.receiver().get(at) else {
            return;
        };
        let is_usable = channel.failure.is_none() && channel.lost.is_none();
        if let Some(endpoint) = channel.endpoint
            && is_usable
            && channel.owes_report()
            && !self.worker.is_sending(endpoint)
        {
            // If UCX cannot send, it has lost the peer, and later calls say so.
            let _ = self.send(at, |_| {});
        }
    }

    /// Sends copies of as many of the bytes as the peer's credits allow, and returns their number.
    ///
    /// # Errors
    /// `WouldBlock` without credits; another error if the channel has failed.
    pub fn write(&mut self, channel: ChannelId, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut parts = parts.iter().map(|part| &part[..]).filter(|p| !p.is_empty());
        let mut part: &[u8] = parts.next().unwrap_or_default();
        let mut written = 0;
        while !part.is_empty() && self.has_credits(channel)? {
            self.send(channel.0, |message| {
                while !part.is_empty() && message.len() < MESSAGE_BYTES_MAX {
                    let count = part.len().min(MESSAGE_BYTES_MAX - message.len());
                    message.push(&part[..count]);
                    part = &part[count..];
                    if part.is_empty() {
                        part = parts.next().unwrap_or_default();
                    }
                }
                written += message.len();
            })?;
        }
        self.written(channel, written)
    }

    /// Like [`write`](Self::write), for bytes that stay where they are until they are sent.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn write_shared(
        &mut self,
        channel: ChannelId,
        bytes: &SharedBytes,
        range: Range<usize>,
    ) -> io::Result<usize> {
        let mut begin = range.start;
        while begin < range.end && self.has_credits(channel)? {
            let end = range.end.min(begin + MESSAGE_BYTES_MAX);
            self.send(channel.0, |message| {
                message.push_shared(bytes.clone(), begin..end);
            })?;
            begin = end;
        }
        self.written(channel, begin - range.start)
    }

    /// The result of a write.
    fn written(&mut self, channel: ChannelId, count: usize) -> io::Result<usize> {
        match (count, self.worker.receiver().get_mut(channel.0)) {
            (0, Some(channel)) => {
                channel.wants_write = true;
                Err(ErrorKind::WouldBlock.into())
            }
            _ => Ok(count),
        }
    }

    /// Whether a message with data may be sent.
    fn has_credits(&mut self, channel: ChannelId) -> io::Result<bool> {
        match self.worker.receiver().get(channel.0) {
            Some(channel) => match (&channel.failure, &channel.lost) {
                (Some(failure), _) => Err(failed(failure)),
                (None, Some(error)) => Err(failed(&error.clone().into())),
                (None, None) => Ok(channel.credits() > 0),
            },
            None => Err(ErrorKind::NotConnected.into()),
        }
    }

    /// Sends one message with the data that `fill` puts into it.
    fn send(&mut self, at: usize, fill: impl FnOnce(&mut Message)) -> io::Result<()> {
        let mut message = self.worker.message();
        fill(&mut message);
        let channel = self.worker.receiver().get_mut(at);
        let Some((channel, endpoint)) =
            channel.and_then(|channel| channel.endpoint.map(|endpoint| (channel, endpoint)))
        else {
            return Err(ErrorKind::NotConnected.into());
        };
        message.header = channel.next_header(message.len() > 0).to_bytes();
        self.worker.send(endpoint, message).map_err(|error| {
            let shown = failed(&ChannelFailure::from(error.clone()));
            self.lose(at, error);
            shown
        })
    }

    /// Whether received bytes wait to be read.
    pub fn has_input(&mut self, channel: ChannelId) -> bool {
        let channel = self.worker.receiver().get(channel.0);
        channel.is_some_and(|channel| channel.has_input() || channel.failure.is_some())
    }

    /// Whether a write would succeed, or would return an error.
    pub fn can_write(&mut self, channel: ChannelId) -> bool {
        !matches!(self.has_credits(channel), Ok(false))
    }

    /// The number of messages received.
    pub fn received(&mut self, channel: ChannelId) -> u32 {
        let channel = self.worker.receiver().get(channel.0);
        channel.map_or(0, |channel| channel.received())
    }

    /// The number of messages sent.
    pub fn sent(&mut self, channel: ChannelId) -> u32 {
        let channel = self.worker.receiver().get(channel.0);
        channel.map_or(0, |channel| channel.sent())
    }

    /// Memory of the bytes that were received and not read.
    pub fn input_bytes(&mut self, channel: ChannelId) -> usize {
        let channel = self.worker.receiver().get(channel.0);
        channel.map_or(0, |channel| channel.memory_bytes())
    }

    /// Memory of the bytes that were written and that UCX has not sent.
    pub fn output_bytes(&mut self, channel: ChannelId) -> usize {
        let channel = self.worker.receiver().get(channel.0);
        let endpoint = channel.and_then(|channel| channel.endpoint);
        endpoint.map_or(0, |endpoint| self.worker.unsent_bytes(endpoint))
    }

    /// The peer has closed the stream after `count` messages. Returns whether all of them have
    /// arrived. If some of them do not arrive soon, or cannot, the channel fails.
    pub(crate) fn has_arrived(&mut self, channel: ChannelId, count: u32) -> bool {
        let Some(state) = self.worker.receiver().get(channel.0) else {
            return true;
        };
        let received = state.received();
        let missing = count.wrapping_sub(received);
        if missing > u32::from(WINDOW_MAX) {
            self.fail(channel.0, ChannelFailure::End { count, received });
        } else if missing > 0 && !self.awaits(channel.0) {
            self.awaited.push(Awaited {
                channel: channel.0,
                what: Event::Messages(count),
                until: time::now() + LINGER,
            });
        }
        missing == 0
    }

    /// Whether the channel waits for the peer's last messages.
    fn awaits(&self, at: usize) -> bool {
        let is_awaited = |one: &Awaited| one.channel == at && !matches!(one.what, Event::End);
        self.awaited.iter().any(is_awaited)
    }

    /// Closes a channel. What was sent is still delivered if the peer takes it soon.
    pub fn close(&mut self, channel: ChannelId) {
        self.close_until(channel, LINGER, None);
    }

    /// Closes a channel whose peer reads no more.
    pub(crate) fn close_now(&mut self, channel: ChannelId) {
        self.close_until(channel, Duration::ZERO, None);
    }

    /// Closes a channel. What was sent is still delivered if the peer takes it soon. The endpoint
    /// stays until `is_gone` says that the peer has read it: some transports let their peer know at
    /// once that the endpoint is gone, before the peer has read what came before.
    pub(crate) fn close_when(&mut self, channel: ChannelId, is_gone: IsGone) {
        self.close_until(channel, LINGER, Some(is_gone));
    }

    fn close_until(&mut self, channel: ChannelId, linger: Duration, is_gone: Option<IsGone>) {
        let closed = self.worker.receiver().remove(channel.0);
        self.awaited.retain(|one| one.channel != channel.0);
        if let Some(closed) = closed
            && let Some(endpoint) = closed.endpoint
        {
            let until = match (closed.failure, closed.lost) {
                (None, None) => time::now() + linger,
                _ => time::now(),
            };
            self.worker.close(endpoint, until, is_gone);
        }
    }

    /// Sets how long dropping the hub may wait until peers have what was sent before: one second,
    /// unless this is called.
    pub fn set_drop_time(&mut self, time: Duration) {
        self.worker.drop_time = time;
    }

    /// Lets UCX send and receive. Returns whether there was something to do.
    pub fn progress(&mut self) -> bool {
        let has_worked = self.worker.progress();
        if self.worker.take_failures() {
            self.note_failures();
        }
        // Their users may have counted the memory of what was not sent.
        while let Some(at) = self.worker.emptied.pop() {
            self.report_consumed(at);
            self.worker.receiver().look_again(at);
        }
        if !self.awaited.is_empty() {
            self.end_waits();
        }
        match self.health {
            Health::Good if self.is_suspect => self.start_probe(),
            Health::Good | Health::Stuck => {}
            Health::Probed => self.end_probe(has_worked),
        }
        has_worked
    }

    /// Whether the worker receives nothing any more. Its channels have failed; new ones need
    /// another hub.
    pub fn is_stuck(&self) -> bool {
        self.health == Health::Stuck
    }

    /// Whether the hub keeps so much for closed channels, and cannot drop it, that new channels
    /// need another hub. Its open channels can still be used.
    pub fn is_full(&self) -> bool {
        self.worker.is_full()
    }

    /// A peer has ended without a word. It may have left the worker unable to receive.
    pub(crate) fn suspect(&mut self) {
        self.is_suspect = true;
    }

    fn start_probe(&mut self) {
        let prober = match self.prober.take() {
            Some(prober) => Ok(prober),
            None => Prober::new(&self.context, &self.address),
        };
        let key = forerun_core::sync::random_seed();
        self.worker.receiver().probe = Some(key);
        self.is_suspect = false;
        // Without a prober there is no proof.
        if let Ok(mut prober) = prober
            && prober.send(key).is_ok()
        {
            self.prober = Some(prober);
            self.health = Health::Probed;
        }
    }

    fn end_probe(&mut self, has_worked: bool) {
        if self.worker.receiver().probe.is_none() {
            self.health = Health::Good;
            return;
        }
        let probed = self
            .prober
            .as_mut()
            .map(|prober| prober.progress(has_worked));
        if probed == Some(Probed::Stuck) {
            self.health = Health::Stuck;
            self.prober = None;
            let channels = self.worker.receiver().iter_mut();
            let open: Vec<usize> = channels.map(|(at, _)| at).collect();
            for at in open {
                self.fail(at, ChannelFailure::Stuck);
            }
        }
    }

    /// Gives channels the errors of their endpoints.
    fn note_failures(&mut self) {
        let endpoint_of = |(at, channel): (usize, &mut _)| -> Option<(usize, usize)> {
            let channel: &mut crate::channel::Channel = channel;
            Some((at, channel.endpoint?))
        };
        let channels = self.worker.receiver().iter_mut();
        let endpoints: Vec<(usize, usize)> = channels.filter_map(endpoint_of).collect();
        for (at, endpoint) in endpoints {
            if let Some(error) = self.worker.error(endpoint) {
                self.lose(at, error);
            }
        }
    }

    /// UCX has lost a channel's peer. The peer may have ended the stream properly: then the control
    /// socket says so, now or soon.
    fn lose(&mut self, at: usize, error: UcxError) {
        let channels = self.worker.receiver();
        if let Some(channel) = channels.get_mut(at)
            && channel.lost.is_none()
        {
            channel.lost = Some(error);
            channels.look_again(at);
            self.awaited.push(Awaited {
                channel: at,
                what: Event::End,
                until: time::now() + END_TIME,
            });
        }
    }

    fn fail(&mut self, at: usize, failure: ChannelFailure) {
        let channels = self.worker.receiver();
        if let Some(channel) = channels.get_mut(at) {
            channel.failure.get_or_insert(failure);
            channels.list(at);
        }
    }

    /// Ends the channels that have waited for too long.
    fn end_waits(&mut self) {
        let now = time::now();
        let mut overdue = Vec::new();
        let channels = self.worker.receiver();
        self.awaited.retain(|one| {
            let Some(channel) = channels.get(one.channel) else {
                return false;
            };
            let failure = match one.what {
                Event::Messages(count) => match count.wrapping_sub(channel.received()) {
                    0 => return false,
                    missing => ChannelFailure::Missing { missing },
                },
                Event::End => match &channel.lost {
                    None => return false,
                    Some(error) => error.clone().into(),
                },
            };
            if now >= one.until {
                overdue.push((one.channel, failure));
            }
            now < one.until
        });
        for (at, failure) in overdue {
            if let ChannelFailure::Missing { .. } = failure {
                self.suspect();
            }
            self.fail(at, failure);
        }
    }

    /// Whether [`take_ready`](Self::take_ready) may have something to report.
    pub fn has_ready(&mut self) -> bool {
        self.worker.receiver().has_listed()
    }

    /// Calls `tell` with the channels that can be used since the last call.
    pub fn take_ready(&mut self, mut tell: impl FnMut(ChannelReady)) {
        while let Some(report) = self.worker.receiver().next_report() {
            tell(ChannelReady {
                tag: report.tag,
                writable: report.is_writable,
            });
        }
    }

    /// Prepares to wait for the descriptor. False means that UCX has something to do first, or
    /// that it can send no more until a peer takes what it was sent.
    ///
    /// # Errors
    /// [`UcxError::Call`], [`UcxError::Forked`].
    pub fn arm(&mut self) -> Result<bool, UcxError> {
        for _ in 0..ARM_ATTEMPTS {
            if self.worker.arm()? {
                return Ok(true);
            }
            self.progress();
            if self.has_ready() {
                return Ok(false);
            }
        }
        Ok(false)
    }

    /// How long the event loop may wait at most before it calls [`progress`](Self::progress).
    pub fn wait_max(&self) -> Option<Duration> {
        let is_probed = match self.health {
            Health::Good => self.is_suspect,
            Health::Probed => true,
            Health::Stuck => false,
        };
        let waits = is_probed || self.worker.has_closed() || !self.awaited.is_empty();
        waits.then_some(LINGER_INTERVAL)
    }
}

impl AsFd for Hub {
    /// The descriptor that becomes readable after [`arm`](Hub::arm). The hub closes it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.worker.descriptor()
    }
}

fn failed(failure: &ChannelFailure) -> io::Error {
    let kind = match failure {
        ChannelFailure::Ucx(_) | ChannelFailure::Missing { .. } | ChannelFailure::Stuck => {
            ErrorKind::ConnectionReset
        }
        _ => ErrorKind::InvalidData,
    };
    io::Error::new(kind, failure.clone())
}

#[cfg(test)]
#[path = "hub_tests.rs"]
mod tests;
