//! What a command can use while a session executes it.

use forerun_cache::{Cache, Expiry};

use crate::counters::Counters;
use crate::output::Output;
use crate::shared::Shared;

/// The server's shared state, and the output for the answer.
pub(super) struct CommandContext<'a> {
    pub shared: &'a Shared,
    pub cache: &'a Cache,
    pub counters: &'a Counters,
    pub out: &'a mut Output,
}

impl<'a> CommandContext<'a> {
    pub(super) fn new(shared: &'a Shared, counters: &'a Counters, out: &'a mut Output) -> Self {
        Self {
            shared,
            cache: &shared.cache,
            counters,
            out,
        }
    }

    /// Appends to the answer.
    #[inline]
    pub(super) fn push(&mut self, reply: &[u8]) {
        self.out.bytes_mut().extend_from_slice(reply);
    }

    /// Appends a reply, unless the client asked for none.
    pub(super) fn push_unless(&mut self, quiet: bool, reply: &[u8]) {
        if !quiet {
            self.push(reply);
        }
    }

    /// Seconds until `expiry`, as the flag `t` reports them; -1 means never.
    pub(super) fn seconds_left(&self, expiry: Expiry) -> i64 {
        match expiry {
            Expiry::Never => -1,
            Expiry::At(second) => i64::from(second.saturating_sub(self.cache.now())),
        }
    }
}
