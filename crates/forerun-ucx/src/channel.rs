//! One stream's bytes as messages: their headers, their order, and how many may be on the way.
//!
//! ```text
//!   0   8  key        chosen by the receiver; names the channel and proves that the sender knows it
//!   8   4  number     how many messages with data the sender has sent before, modulo 2^32
//!  12   4  consumed   how many messages with data the sender has read in full, modulo 2^32
//!  16      data       0 to 8 KiB; without data, the message only reports what was consumed
//! ```
//!
//! All numbers are little-endian. A sender may have as many messages that were not reported as
//! consumed as the receiver's window has, so a receiver holds at most `window` times 8 KiB for a
//! channel. A receiver believes nothing: a message that breaks these rules ends its channel, and a
//! message with an unknown key is dropped.

use std::collections::VecDeque;

use slab::Slab;

use crate::callbacks::Receive;
use crate::error::UcxError;
use crate::message::HEADER_BYTES;

/// The longest data of a message. With its headers it fits into one fragment of shared memory.
pub const MESSAGE_BYTES_MAX: usize = 8 << 10;

/// The largest window, in messages.
pub(crate) const WINDOW_MAX: u16 = 64;

/// The part of a key that is the channel's position. The rest is random.
const INDEX_BITS: u32 = 24;

/// Empty buffers that are kept for the next channel that needs one.
const SPARE_BUFFERS_MAX: usize = 16;
/// A larger buffer is freed when it is empty.
const BUFFER_BYTES_KEPT: usize = 64 << 10;
/// When this many bytes of a buffer are read, the others move to its beginning.
const READ_BYTES_KEPT: usize = 32 << 10;

/// Why a channel has ended against its user's wish.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelFailure {
    /// A message is missing or came twice.
    #[error("a message over UCX has number {found}, where {expected} comes next")]
    Order {
        /// Its number.
        found: u32,
        /// The next number.
        expected: u32,
    },
    /// The peer sent more than the window allows.
    #[error("the peer has sent more messages over UCX than its {window} credits allow")]
    Credits {
        /// The window.
        window: u16,
    },
    /// The peer's message is too long.
    #[error("a message over UCX has {bytes} bytes, more than {MESSAGE_BYTES_MAX}")]
    Long {
        /// Its length.
        bytes: usize,
    },
    /// The peer reports messages as consumed that were never sent.
    #[error("the peer has counted more messages over UCX than it was sent")]
    Consumed,
    /// The peer wants a rendezvous.
    #[error("the peer has offered a message over UCX instead of sending it")]
    Rendezvous,
    /// The peer has closed the stream after fewer messages than it has sent, or after more than its
    /// credits allow.
    #[error("the peer has closed the stream after {count} messages, of which {received} arrived")]
    End {
        /// How many messages it counts.
        count: u32,
        /// How many messages have arrived.
        received: u32,
    },
    /// The peer has closed the stream, and some of its messages have not arrived.
    #[error("the peer has closed the stream, and {missing} of its messages have not arrived")]
    Missing {
        /// How many.
        missing: u32,
    },
    /// The worker receives nothing any more, because the process of one of its peers was killed
    /// while it wrote a message.
    #[error("UCX receives no messages any more: a peer was killed while it wrote one")]
    Stuck,
    /// UCX cannot send.
    #[error(transparent)]
    Ucx(#[from] UcxError),
}

/// A message's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) key: u64,
    pub(crate) number: u32,
    pub(crate) consumed: u32,
}

impl Header {
    pub(crate) fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&self.key.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.number.to_le_bytes());
        bytes[12..].copy_from_slice(&self.consumed.to_le_bytes());
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Header> {
        let (key, rest) = bytes.split_first_chunk()?;
        let (number, rest) = rest.split_first_chunk()?;
        let (consumed, rest) = rest.split_first_chunk()?;
        rest.is_empty().then_some(Header {
            key: u64::from_le_bytes(*key),
            number: u32::from_le_bytes(*number),
            consumed: u32::from_le_bytes(*consumed),
        })
    }
}

/// One direction's counts are modulo 2^32; differences are exact, because windows are small.
pub(crate) struct Channel {
    key: u64,
    /// The number that the user gave it.
    pub(crate) tag: usize,
    /// What was received and not read.
    input: Vec<u8>,
    begin: usize,
    /// The unread bytes of each unread message.
    unread: VecDeque<usize>,
    window: u16,
    received: u32,
    /// How many messages the peer knows to be consumed.
    reported: u32,
    /// The endpoint, once the peer's address is known.
    pub(crate) endpoint: Option<usize>,
    pub(crate) peer_key: u64,
    peer_window: u16,
    sent: u32,
    /// How many of the sent messages the peer has consumed.
    peer_consumed: u32,
    pub(crate) failure: Option<ChannelFailure>,
    /// The endpoint's error. It fails the channel unless the control socket soon says how the
    /// stream has ended.
    pub(crate) lost: Option<UcxError>,
    /// Whether a write had to wait.
    pub(crate) wants_write: bool,
    is_writable: bool,
    /// Whether the user must look at the channel again.
    looks_again: bool,
    is_listed: bool,
}

impl Channel {
    /// How many messages were read in full.
    fn consumed(&self) -> u32 {
        self.received.wrapping_sub(self.unread.len() as u32)
    }

    /// How many messages were received.
    pub(crate) fn received(&self) -> u32 {
        self.received
    }

    /// How many messages were sent.
    pub(crate) fn sent(&self) -> u32 {
        self.sent
    }

    /// How many more messages may be sent now.
    pub(crate) fn credits(&self) -> u32 {
        let in_flight = self.sent.wrapping_sub(self.peer_consumed);
        u32::from(self.peer_window).saturating_sub(in_flight)
    }

    /// Sends on as a peer might that ignores its credits.
    #[cfg(test)]
    pub(crate) fn pretend_credits(&mut self) {
        self.peer_consumed = self.sent;
    }

    /// Whether received bytes wait.
    pub(crate) fn has_input(&self) -> bool {
        self.begin < self.input.len()
    }

    /// Memory of the received bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.input.capacity()
    }

    /// The peer's side, once it is known.
    pub(crate) fn connect(&mut self, endpoint: usize, peer_key: u64, peer_window: u16) {
        self.endpoint = Some(endpoint);
        self.peer_key = peer_key;
        self.peer_window = peer_window.min(WINDOW_MAX);
    }

    /// The header of the next message.
    pub(crate) fn next_header(&mut self, has_data: bool) -> Header {
        let header = Header {
            key: self.peer_key,
            number: self.sent,
            consumed: self.consumed(),
        };
        self.reported = header.consumed;
        self.sent = self.sent.wrapping_add(u32::from(has_data));
        header
    }

    /// Whether the peer may be waiting to hear what was consumed.
    pub(crate) fn owes_report(&self) -> bool {
        let unreported = self.consumed().wrapping_sub(self.reported);
        unreported >= u32::from(self.window / 2).max(1)
    }

    fn arrived(&mut self, header: Header, data: Option<&[u8]>, spare: &mut Vec<Vec<u8>>) {
        if self.failure.is_some() {
            return;
        }
        if let Err(failure) = self.accept(header, data, spare) {
            self.failure = Some(failure);
        }
    }

    fn accept(
        &mut self,
        header: Header,
        data: Option<&[u8]>,
        spare: &mut Vec<Vec<u8>>,
    ) -> Result<(), ChannelFailure> {
        let data = data.ok_or(ChannelFailure::Rendezvous)?;
        if header.number != self.received {
            return Err(ChannelFailure::Order {
                found: header.number,
                expected: self.received,
            });
        }
        let in_flight = self.sent.wrapping_sub(self.peer_consumed);
        let newly = header.consumed.wrapping_sub(self.peer_consumed);
        if newly > in_flight {
            return Err(ChannelFailure::Consumed);
        }
        self.peer_consumed = header.consumed;
        self.is_writable |= newly > 0 && self.wants_write;
        if data.is_empty() {
            return Ok(());
        }
        if data.len() > MESSAGE_BYTES_MAX {
            return Err(ChannelFailure::Long { bytes: data.len() });
        }
        // The peer counts what was reported to it, not what was read since.
        let unreported = self.received.wrapping_sub(self.reported);
        if unreported >= u32::from(self.window) {
            return Err(ChannelFailure::Credits {
                window: self.window,
            });
        }
        if self.input.capacity() == 0 {
            self.input = spare.pop().unwrap_or_default();
        }
        if self.begin >= READ_BYTES_KEPT {
            self.input.drain(..self.begin);
            self.begin = 0;
        }
        self.received = self.received.wrapping_add(1);
        self.unread.push_back(data.len());
        self.input.extend_from_slice(data);
        Ok(())
    }
}

/// The channels of a worker.
#[derive(Default)]
pub(crate) struct Channels {
    slots: Slab<Channel>,
    /// The channels that may have something to report.
    listed: Vec<usize>,
    spare: Vec<Vec<u8>>,
    /// The key of a message that the hub has sent itself, until it arrives.
    pub(crate) probe: Option<u64>,
}

/// A channel to report to its user.
pub(crate) struct Report {
    pub(crate) tag: usize,
    pub(crate) is_writable: bool,
}

impl Channels {
    /// Opens a channel that may receive `window` messages ahead, and returns its position and its
    /// key.
    pub(crate) fn open(&mut self, tag: usize, window: u16) -> (usize, u64) {
        let entry = self.slots.vacant_entry();
        let at = entry.key();
        // A key's position wraps around beyond 2^24 channels, and `find` compares the whole key.
        let random = forerun_core::sync::random_seed() << INDEX_BITS;
        let key = random | (at as u64 & ((1 << INDEX_BITS) - 1));
        entry.insert(Channel {
            key,
            tag,
            input: Vec::new(),
            begin: 0,
            unread: VecDeque::new(),
            window: window.clamp(1, WINDOW_MAX),
            received: 0,
            reported: 0,
            endpoint: None,
            peer_key: 0,
            peer_window: 0,
            sent: 0,
            peer_consumed: 0,
            failure: None,
            lost: None,
            wants_write: false,
            is_writable: false,
            looks_again: false,
            is_listed: false,
        });
        (at, key)
    }

    pub(crate) fn get(&self, at: usize) -> Option<&Channel> {
        self.slots.get(at)
    }

    pub(crate) fn get_mut(&mut self, at: usize) -> Option<&mut Channel> {
        self.slots.get_mut(at)
    }

    pub(crate) fn remove(&mut self, at: usize) -> Option<Channel> {
        let channel = self.slots.try_remove(at)?;
        self.listed.retain(|listed| *listed != at);
        Some(channel)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut Channel)> {
        self.slots.iter_mut()
    }

    /// Reads received bytes and returns their number.
    pub(crate) fn read(&mut self, at: usize, into: &mut [u8]) -> usize {
        let Some(channel) = self.slots.get_mut(at) else {
            return 0;
        };
        let count = into.len().min(channel.input.len() - channel.begin);
        into[..count].copy_from_slice(&channel.input[channel.begin..channel.begin + count]);
        channel.begin += count;
        let mut left = count;
        while let Some(first) = channel.unread.front_mut() {
            let step = left.min(*first);
            *first -= step;
            left -= step;
            if *first > 0 {
                break;
            }
            channel.unread.pop_front();
        }
        if channel.begin == channel.input.len() {
            channel.begin = 0;
            let mut buffer = std::mem::take(&mut channel.input);
            buffer.clear();
            if self.spare.len() < SPARE_BUFFERS_MAX && buffer.capacity() <= BUFFER_BYTES_KEPT {
                self.spare.push(buffer);
            }
        }
        count
    }

    /// Puts a channel on the list.
    pub(crate) fn list(&mut self, at: usize) {
        if let Some(channel) = self.slots.get_mut(at)
            && !channel.is_listed
        {
            channel.is_listed = true;
            self.listed.push(at);
        }
    }

    /// Lets the user of a channel look at it again: UCX has sent its messages or lost its peer.
    pub(crate) fn look_again(&mut self, at: usize) {
        if let Some(channel) = self.slots.get_mut(at) {
            channel.looks_again = true;
            self.list(at);
        }
    }

    /// Whether the list has channels.
    pub(crate) fn has_listed(&self) -> bool {
        !self.listed.is_empty()
    }

    /// Takes a channel off the list.
    pub(crate) fn next_report(&mut self) -> Option<Report> {
        while let Some(at) = self.listed.pop() {
            let Some(channel) = self.slots.get_mut(at) else {
                continue;
            };
            channel.is_listed = false;
            let has_failed = channel.failure.is_some();
            let is_writable = std::mem::take(&mut channel.is_writable) || has_failed;
            // The user looks at the channel again as if it could write.
            let is_writable = is_writable | std::mem::take(&mut channel.looks_again);
            if is_writable || channel.has_input() {
                channel.wants_write &= !is_writable;
                return Some(Report {
                    tag: channel.tag,
                    is_writable,
                });
            }
        }
        None
    }
}

impl Receive for Channels {
    fn message(&mut self, header: &[u8], data: Option<&[u8]>) {
        let Some(header) = Header::parse(header) else {
            return;
        };
        if self.probe == Some(header.key) {
            self.probe = None;
            return;
        }
        let at = (header.key & ((1 << INDEX_BITS) - 1)) as usize;
        // A message with another key belongs to a channel that is closed, or is a guess.
        let Some(channel) = self.slots.get_mut(at) else {
            return;
        };
        if channel.key == header.key {
            channel.arrived(header, data, &mut self.spare);
            self.list(at);
        }
    }
}

#[cfg(test)]
#[path = "channel_tests.rs"]
mod tests;
