//! Requests to a running server from other threads: write a snapshot, reload the users, drain.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::system::Wake;
use forerun_core::Owner;

/// Sends requests to the acceptor from any thread.
#[derive(Clone, Debug)]
pub(crate) struct Control {
    /// A fork of the server's process shares the waker, so requests from a fork are ignored.
    owner: Owner,
    requests: Arc<Requests>,
    waker: Arc<dyn Wake>,
}

#[derive(Debug, Default)]
struct Requests {
    drain: AtomicBool,
    snapshot: AtomicBool,
    reload_users: AtomicBool,
}

// The flags carry no data, and the wake-up that follows orders them, so relaxed would suffice.
// Release and acquire make this correct without an argument about the kernel.
impl Control {
    pub(crate) fn new(waker: Arc<dyn Wake>) -> Control {
        Control {
            owner: Owner::this_process(),
            requests: Arc::default(),
            waker,
        }
    }

    /// Requests a drain.
    pub(crate) fn drain(&self) {
        self.request(&self.requests.drain);
    }

    /// Requests a snapshot.
    pub(crate) fn snapshot(&self) {
        self.request(&self.requests.snapshot);
    }

    /// Requests a reload of the file of users.
    pub(crate) fn reload_users(&self) {
        self.request(&self.requests.reload_users);
    }

    /// Whether a reload was requested since the last call.
    pub(crate) fn take_reload_users(&self) -> bool {
        self.requests.reload_users.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn is_drain_requested(&self) -> bool {
        self.requests.drain.load(Ordering::Acquire)
    }

    /// Whether a snapshot was requested since the last call.
    pub(crate) fn take_snapshot(&self) -> bool {
        self.requests.snapshot.swap(false, Ordering::AcqRel)
    }

    fn request(&self, flag: &AtomicBool) {
        if !self.owner.is_this_process() {
            return;
        }
        flag.store(true, Ordering::Release);
        // This fails only if the acceptor's poll is gone. Then nobody is left to serve the request.
        let _ = self.waker.wake();
    }
}
