//! The steps of a history: pipelines of either protocol.
//!
//! ```text
//!   Step     connection 2, one pipeline, cut into packets of the network
//!     Command   of the text protocol, or
//!     Packet    of the binary protocol
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
    pub wait_s: u64,
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
            wait_s: 0,
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

    /// The bytes for the server whose versions `version` returns.
    pub(super) fn render(&self, now_s: i64, version: impl Fn(usize) -> u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        for command in &self.commands {
            command.render(&mut bytes, now_s, &version);
        }
        for (packet, opaque) in self.packets.iter().zip(0..) {
            packet.render(&mut bytes, opaque, &version);
        }
        bytes.extend(b"\r\n".repeat(self.padding));
        bytes
    }
}
