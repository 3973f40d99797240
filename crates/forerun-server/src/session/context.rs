//! The state a session works with while it executes commands.

use forerun_cache::{Cache, Expiry};

use crate::counters::Counters;
use crate::output::Output;
use crate::shared::Shared;

/// The server around a session, and the output for its answers.
pub(super) struct Turn<'t> {
    pub shared: &'t Shared,
    pub cache: &'t Cache,
    pub counters: &'t Counters,
    pub out: &'t mut Output,
}

impl<'t> Turn<'t> {
    pub(super) fn new(shared: &'t Shared, counters: &'t Counters, out: &'t mut Output) -> Self {
        Self {
            shared,
            cache: &shared.cache,
            counters,
            out,
        }
    }

    /// Appends an answer.
    #[inline]
    pub(super) fn say(&mut self, reply: &[u8]) {
        self.out.bytes_mut().extend_from_slice(reply);
    }

    /// Appends an answer, unless the client asked for none.
    pub(super) fn say_unless(&mut self, quiet: bool, reply: &[u8]) {
        if !quiet {
            self.say(reply);
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
