//! State shared by the sessions of one thread: counters that only this thread writes, and reusable
//! vectors.

use std::sync::Arc;

use crate::counters::Counters;
use crate::shared::Shared;
use crate::system::Wake;

use super::reads::Scratch;

/// A thread's part of a server. Create one per thread and pass it to every
/// [`Session::receive`](crate::Session::receive) on that thread.
pub struct Context {
    pub(crate) shared: Arc<Shared>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) scratch: Scratch,
    /// Wakes the thread when there are lines for its watchers. Without it, `watch` is not possible.
    pub(crate) waker: Option<Arc<dyn Wake>>,
    /// The number of the connection whose session runs, for watchers.
    pub(crate) connection: u64,
}

impl Context {
    /// Creates a context for the calling thread.
    pub fn new(shared: Arc<Shared>) -> Self {
        let counters = shared.register();
        Self {
            shared,
            counters,
            scratch: Scratch::default(),
            waker: None,
            connection: 0,
        }
    }

    /// This thread's counters. The code that reads and writes the sockets counts its bytes here.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// State shared by all sessions.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}
