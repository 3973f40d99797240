//! Answers of the binary protocol that the batch of reads and the storage commands compose.
//!
//! ```text
//!   get, gat      header │ flags(4) │ the key, if asked for │ value
//!   touch         header │ flags(4)
//!   a miss        header │ "Not found", or the key, if asked for         nothing if quiet
//!   stored        header                                                 nothing if quiet
//! ```

use forerun_cache::{Item, StoreMode, StoreResult};

use crate::protocol::binary::header::RequestId;
use crate::protocol::binary::reply::{
    BodyLengths, Status, push_error, push_error_text, push_header,
};

use super::command_context::CommandContext;

/// How to answer a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReadAnswer {
    pub(super) id: RequestId,
    /// Whether the answer repeats the key.
    pub(super) keyed: bool,
    /// Whether a miss has no answer.
    pub(super) quiet: bool,
    /// Whether the answer has the value.
    pub(super) with_value: bool,
}

/// How to answer a storage command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StoreAnswer {
    pub(super) id: RequestId,
    pub(super) quiet: bool,
    /// The command's own mode. With a version, the item is stored as by `cas`, whatever the mode.
    pub(super) mode: StoreMode,
}

impl ReadAnswer {
    /// Appends the answer to a hit.
    #[inline]
    pub(super) fn push_hit(self, context: &mut CommandContext<'_>, key: &[u8], item: &Item<'_>) {
        let key = if self.keyed { key } else { b"" };
        let value_len = if self.with_value {
            item.value().len()
        } else {
            0
        };
        let lengths = BodyLengths {
            extras: 4,
            key: key.len(),
            value: value_len,
        };
        let out = context.out.bytes_mut();
        push_header(out, self.id, Status::Success, lengths, item.cas());
        out.extend_from_slice(&item.flags().to_be_bytes());
        out.extend_from_slice(key);
        if self.with_value {
            context.push_data(item);
        }
    }

    /// Appends the answer to a miss.
    pub(super) fn push_miss(self, context: &mut CommandContext<'_>, key: &[u8]) {
        let out = context.out.bytes_mut();
        match (self.quiet, self.keyed) {
            (true, _) => {}
            (false, false) => push_error(out, self.id, Status::NotFound),
            (false, true) => {
                let lengths = BodyLengths {
                    key: key.len(),
                    ..BodyLengths::default()
                };
                push_header(out, self.id, Status::NotFound, lengths, 0);
                out.extend_from_slice(key);
            }
        }
    }
}

impl StoreAnswer {
    /// Appends the answer to a value that the cache has stored, or not stored because of the item
    /// that it has.
    pub(super) fn push(self, context: &mut CommandContext<'_>, stored: StoreResult) {
        let out = context.out.bytes_mut();
        let status = match (stored, self.mode) {
            (StoreResult::Stored { cas }, _) => {
                if !self.quiet {
                    push_header(out, self.id, Status::Success, BodyLengths::default(), cas);
                }
                return;
            }
            (StoreResult::Exists, _) => Status::Exists,
            (StoreResult::NotFound, _) => Status::NotFound,
            (_, StoreMode::Add) => Status::Exists,
            (_, StoreMode::Replace) => Status::NotFound,
            (_, StoreMode::Set | StoreMode::Append | StoreMode::Prepend) => Status::NotStored,
        };
        push_error(out, self.id, status);
    }

    /// Appends the answer to a value that is too large.
    pub(super) fn push_too_large(self, context: &mut CommandContext<'_>) {
        push_error(context.out.bytes_mut(), self.id, Status::TooLarge);
    }

    /// Appends the answer to a value for which there is no memory.
    pub(super) fn push_no_memory(self, context: &mut CommandContext<'_>) {
        let text = b"Out of memory allocating item";
        push_error_text(context.out.bytes_mut(), self.id, Status::OutOfMemory, text);
    }
}
