//! Storage requests. They share the path of the text protocol's, without the end of a data block.

use std::borrow::Cow;

use forerun_cache::StoreMode;

use crate::protocol::binary::parsed_request::Request;
use crate::protocol::numbers::Expiration;
use crate::session::binary_answers::StoreAnswer;
use crate::session::command_context::CommandContext;
use crate::session::storage::{Answer, StoreCommand};
use crate::session::{Session, Step};

impl Session {
    /// `set`, `add`, `replace`, `append` and `prepend`. The part of the value that has arrived
    /// follows the first `head_len` bytes of `rest`.
    pub(super) fn binary_store(
        &mut self,
        request: &Request<'_>,
        mode: StoreMode,
        rest: &[u8],
        at: &mut usize,
        context: &mut CommandContext<'_>,
        head_len: usize,
    ) -> Step {
        let compare_cas = request.compare_cas();
        let is_extension = matches!(mode, StoreMode::Append | StoreMode::Prepend);
        let command = StoreCommand {
            key: Cow::Borrowed(request.key),
            // An extension has no extras, and keeps the item's flags and time.
            flags: request.extra_u32(0),
            expiry: context
                .shared
                .expiry(Expiration::of_u32(request.extra_u32(4))),
            // A version makes the others a compare-and-swap.
            mode: if compare_cas.is_some() && !is_extension {
                StoreMode::Set
            } else {
                mode
            },
            compare_cas,
            new_cas: None,
            stale_if_older: false,
            vivify: None,
            answer: Answer::Binary(StoreAnswer {
                id: request.id,
                quiet: request.quiet,
                mode,
            }),
        };
        let value = &rest[head_len..];
        self.store(command, request.value_len, value, context, at, head_len)
    }
}
