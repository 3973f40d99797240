//! Requests of the binary protocol.
//!
//! ```text
//!   80 opcode key_len(2) extras_len 0 reserved(2) body_len(4) opaque(4) cas(8) │ extras key value
//!                └── some bytes may be replaced ──────┘        └ its number in the step
//! ```

use std::fmt::Write;

use super::command::shorten;

/// Bytes of a header.
pub(super) const HEADER_BYTES: usize = 24;

/// The version in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PacketVersion {
    Number(u64),
    /// A version that both servers have returned, counted back from the latest. Each server gets
    /// its own number.
    Back(usize),
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Packet {
    pub opcode: u8,
    pub version: PacketVersion,
    pub extras: Vec<u8>,
    pub key: Vec<u8>,
    pub value: Vec<u8>,
    /// Positions in the header, and the bytes that replace those there.
    pub replaced: Vec<(u8, u8)>,
    /// Whether the server ends the connection after its answer, or instead of one.
    pub is_last: bool,
}

impl Packet {
    /// A request without a body.
    pub(super) fn new(opcode: u8) -> Self {
        Self {
            opcode,
            version: PacketVersion::Number(0),
            extras: Vec::new(),
            key: Vec::new(),
            value: Vec::new(),
            replaced: Vec::new(),
            is_last: false,
        }
    }

    /// Appends the bytes for the server whose versions `version` returns.
    pub(super) fn render(&self, out: &mut Vec<u8>, opaque: u32, version: impl Fn(usize) -> u64) {
        let start = out.len();
        let body_len = self.extras.len() + self.key.len() + self.value.len();
        out.extend([0x80, self.opcode]);
        out.extend((self.key.len() as u16).to_be_bytes());
        out.extend([self.extras.len() as u8, 0, 0, 0]);
        out.extend((body_len as u32).to_be_bytes());
        out.extend(opaque.to_be_bytes());
        let cas = match self.version {
            PacketVersion::Number(number) => number,
            PacketVersion::Back(back) => version(back),
        };
        out.extend(cas.to_be_bytes());
        for &(at, byte) in &self.replaced {
            out[start + usize::from(at)] = byte;
        }
        for part in [&self.extras, &self.key, &self.value] {
            out.extend_from_slice(part);
        }
    }

    /// The request in one readable line.
    pub(super) fn describe(&self) -> String {
        let mut text = format!("opcode {:02x}", self.opcode);
        // Writing to a string cannot fail.
        let _ = match self.version {
            PacketVersion::Number(0) => Ok(()),
            PacketVersion::Number(number) => write!(text, " cas {number}"),
            PacketVersion::Back(back) => write!(text, " <cas {back} back>"),
        };
        let parts = [
            ("extras", &self.extras),
            ("key", &self.key),
            ("value", &self.value),
        ];
        for (name, bytes) in parts.into_iter().filter(|(_, bytes)| !bytes.is_empty()) {
            let _ = write!(text, " {name} {}", shorten(bytes));
        }
        for (at, byte) in &self.replaced {
            let _ = write!(text, " header[{at}]={byte}");
        }
        text
    }

    /// The number of 64 bits at the start of the extras: the amount of an increment.
    pub(super) fn delta(&self) -> u64 {
        let bytes = self.extras.first_chunk();
        bytes.map_or(0, |bytes| u64::from_be_bytes(*bytes))
    }

    pub(super) fn is_read(&self) -> bool {
        matches!(
            self.opcode,
            0x00 | 0x09 | 0x0c | 0x0d | 0x1c..=0x1e | 0x23 | 0x24
        )
    }

    pub(super) fn is_arithmetic(&self) -> bool {
        matches!(self.opcode, 0x05 | 0x06 | 0x15 | 0x16)
    }
}
