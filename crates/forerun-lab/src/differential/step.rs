//! The steps of a history.
//!
//! ```text
//!   Step     connection 2, one pipeline, cut into packets of the network
//!     Command   of memcached's text protocol or RESP, or
//!     Packet    of memcached's binary protocol
//! ```

use super::command::Command;
use super::packet::Packet;

/// How the two answers to a step are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CompareMode {
    /// They are equal.
    Whole,
    /// Memcached sends further errors where this server's answer ends, because it reads the data
    /// block of a refused line as commands.
    BlockMayBeRead,
    /// Lines may be in any order.
    Unordered,
    /// The first command is repeated with the cursor that it returned, until that is 0, and finds
    /// the same elements in any order. The others are sent after its first page.
    Scan,
}

/// One pipeline on one connection, which is answered before the next is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub connection: usize,
    pub commands: Vec<Command>,
    /// Requests of the binary protocol, in place of commands.
    pub packets: Vec<Packet>,
    /// Where the bytes are split into packets, in thousandths of their number.
    pub cuts: Vec<u16>,
    /// Empty lines after the commands, for a data block that announces more bytes than it has.
    pub padding: usize,
    /// How long to wait before it is sent, so that items expire.
    pub wait_ms: u64,
    pub compare: CompareMode,
}

impl Step {
    /// Commands in one packet, whose answers are equal.
    pub(super) fn new(connection: usize, commands: Vec<Command>) -> Self {
        Self {
            connection,
            commands,
            packets: Vec::new(),
            cuts: Vec::new(),
            padding: 0,
            wait_ms: 0,
            compare: CompareMode::Whole,
        }
    }

    /// Requests in one packet of the network, whose answers are equal.
    pub(super) fn of_packets(connection: usize, packets: Vec<Packet>) -> Self {
        Self {
            packets,
            ..Self::new(connection, Vec::new())
        }
    }

    /// Whether its connection speaks the binary protocol.
    pub(super) fn is_binary(&self) -> bool {
        !self.packets.is_empty()
    }

    /// Whether nothing is left of it.
    pub(super) fn is_empty(&self) -> bool {
        self.commands.is_empty() && self.packets.is_empty()
    }

    /// Where a step of so many bytes is cut.
    pub(super) fn cuts_of(&self, len: usize) -> Vec<usize> {
        let offset = |cut: &u16| len * usize::from(*cut) / 1000;
        self.cuts.iter().map(offset).collect()
    }
}
