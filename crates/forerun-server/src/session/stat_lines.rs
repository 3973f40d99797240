//! The statistics of an answer, in the format of the client's protocol.
//!
//! ```text
//!   text     STAT name value\r\n … END\r\n
//!   binary   header(key_len, body_len) name value … header(0, 0)
//! ```

use std::fmt::Display;
use std::io::Write;

use crate::protocol::binary::header::RequestId;
use crate::protocol::binary::reply::{BodyLengths, Status, header, push_success};

use super::command_context::CommandContext;

/// Statistics that are collected for one answer.
#[derive(Debug, Default)]
pub(super) struct Lines {
    bytes: Vec<u8>,
    /// The request of a client of the binary protocol.
    binary: Option<RequestId>,
}

impl Lines {
    /// Statistics for a client of the binary protocol.
    pub(super) fn binary(id: RequestId) -> Self {
        Self {
            binary: Some(id),
            ..Self::default()
        }
    }

    /// Adds a statistic.
    pub(super) fn put(&mut self, name: impl Display, value: impl Display) {
        self.put_bytes(name, |bytes| {
            // Writing to a vector cannot fail.
            let _ = write!(bytes, "{value}");
        });
    }

    /// Adds a statistic whose value `push_value` appends.
    pub(super) fn put_bytes(&mut self, name: impl Display, push_value: impl FnOnce(&mut Vec<u8>)) {
        let bytes = &mut self.bytes;
        let Some(id) = self.binary else {
            let _ = write!(bytes, "STAT {name} ");
            push_value(bytes);
            return bytes.extend_from_slice(b"\r\n");
        };
        // The lengths are known once the name and the value are there.
        let start = bytes.len();
        push_success(bytes, id, b"", 0);
        let key_start = bytes.len();
        let _ = write!(bytes, "{name}");
        let value_start = bytes.len();
        push_value(bytes);
        let lengths = BodyLengths {
            key: value_start - key_start,
            value: bytes.len() - value_start,
            ..BodyLengths::default()
        };
        let header = header(id, Status::Success, lengths, 0);
        bytes[start..key_start].copy_from_slice(&header);
    }

    /// Appends the statistics and their end to the client's answers.
    pub(super) fn end(mut self, context: &mut CommandContext<'_>) {
        match self.binary {
            None => self.bytes.extend_from_slice(b"END\r\n"),
            Some(id) => push_success(&mut self.bytes, id, b"", 0),
        }
        context.push(&self.bytes);
    }
}
