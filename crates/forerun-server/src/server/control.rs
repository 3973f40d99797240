//! What the outside asks of a running server: a snapshot, another look at its users, or its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::system::Wake;
use forerun_core::Owner;

/// Asks things of the acceptor, from any thread.
#[derive(Clone, Debug)]
pub(crate) struct Control {
    /// A fork of the server's process asks for nothing: it shares the waker.
    owner: Owner,
    asked: Arc<Asked>,
    waker: Arc<dyn Wake>,
}

#[derive(Debug, Default)]
struct Asked {
    drain: AtomicBool,
    snapshot: AtomicBool,
    reload_users: AtomicBool,
}

// The flags carry no data with them, and the wake-up that follows orders them: relaxed would do, the pair of release
// and acquire says so without an argument about the kernel.
impl Control {
    pub(crate) fn new(waker: Arc<dyn Wake>) -> Control {
        Control {
            owner: Owner::this_process(),
            asked: Arc::default(),
            waker,
        }
    }

    /// Asks for the end: connections are answered and closed, the snapshot written.
    pub(crate) fn drain(&self) {
        self.ask(&self.asked.drain);
    }

    /// Asks for a snapshot now.
    pub(crate) fn snapshot(&self) {
        self.ask(&self.asked.snapshot);
    }

    /// Asks for the file of users to be read again.
    pub(crate) fn reload_users(&self) {
        self.ask(&self.asked.reload_users);
    }

    /// Whether that was asked for since this was last called.
    pub(crate) fn take_reload_users(&self) -> bool {
        self.asked.reload_users.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn drain_asked(&self) -> bool {
        self.asked.drain.load(Ordering::Acquire)
    }

    /// Whether a snapshot was asked for since this was last called.
    pub(crate) fn take_snapshot(&self) -> bool {
        self.asked.snapshot.swap(false, Ordering::AcqRel)
    }

    fn ask(&self, flag: &AtomicBool) {
        if !self.owner.is_this_process() {
            return;
        }
        flag.store(true, Ordering::Release);
        // It fails only where the acceptor's poll is gone: nothing is left to ask.
        let _ = self.waker.wake();
    }
}
