//! What the sessions of one thread share: counters that no other thread writes, and vectors that
//! are reused.

use std::sync::Arc;

use crate::counters::Counters;
use crate::session::Scratch;
use crate::shared::Shared;

/// A thread's own part of a server. Create one for each thread, and pass it to each
/// [`Session::receive`](crate::Session::receive) of that thread.
pub struct Context {
    pub(crate) shared: Arc<Shared>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) scratch: Scratch,
}

impl Context {
    /// A context for the calling thread.
    pub fn new(shared: Arc<Shared>) -> Self {
        let counters = shared.register();
        Self {
            shared,
            counters,
            scratch: Scratch::default(),
        }
    }

    /// This thread's counters. The code that reads and writes the sockets counts their bytes here.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// What all sessions share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}
