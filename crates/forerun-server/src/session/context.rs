//! State shared by the sessions of one thread: counters that only this thread writes, and reusable
//! vectors.

use std::sync::Arc;

use crate::auth::UserFile;
use crate::command_counters::CommandCounters;
use crate::counters::Counters;
use crate::resp::read_spans::RespScratch;
use crate::resp::transaction_locks::{Turn, WorkerLock};
use crate::shared::Shared;
use crate::system::Wake;

use super::reads::Scratch;

/// A thread's part of a server. Create one per thread and pass it to every
/// [`Session::receive`](crate::Session::receive) on that thread.
pub struct Context {
    pub(crate) shared: Arc<Shared>,
    pub(crate) counters: Arc<Counters>,
    /// Counts of each command of RESP.
    pub(crate) commands: Arc<CommandCounters>,
    pub(crate) scratch: Scratch,
    pub(crate) resp_scratch: RespScratch,
    /// Wakes the thread when there are lines for its watchers. Without it, `watch` is not possible.
    pub(crate) waker: Option<Arc<dyn Wake>>,
    /// The number of the connection whose session runs, for watchers.
    pub(crate) connection: u64,
    /// Who may log in over RESP. `None`: anybody may send commands.
    pub(crate) users: Option<Arc<UserFile>>,
    /// The thread's lock, if the server has transactions.
    pub(crate) lock: Option<WorkerLock>,
}

impl Context {
    /// Creates a context for the calling thread.
    pub fn new(shared: Arc<Shared>) -> Self {
        let counters = shared.register();
        let commands = shared.register_commands();
        Self {
            shared,
            counters,
            commands,
            scratch: Scratch::default(),
            resp_scratch: RespScratch::default(),
            waker: None,
            connection: 0,
            users: None,
            lock: None,
        }
    }

    /// This thread's counters. The code that reads and writes the sockets counts its bytes here.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Begins commands. While the result exists, no transaction of another thread runs.
    #[inline]
    pub(crate) fn turn(&self) -> Option<Turn<'_>> {
        self.lock.as_ref().map(WorkerLock::turn)
    }

    /// Begins a transaction. While the result exists, no other thread executes a command.
    pub(crate) fn alone(&self) -> Option<Turn<'_>> {
        self.lock.as_ref().map(WorkerLock::alone)
    }

    /// State shared by all sessions.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}
