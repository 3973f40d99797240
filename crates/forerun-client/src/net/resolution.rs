//! A name that a thread resolves. Calls wait for its end as they wait for a socket.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// A name that is being resolved. The descriptor is readable from the end on.
#[derive(Debug)]
pub(crate) struct Resolution(OwnedFd);

impl Resolution {
    /// Begins.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn new() -> io::Result<Resolution> {
        let open = || Ok(Resolution(eventfd(0, EventfdFlags::CLOEXEC)?));
        forerun_core::open_above_standard_streams(open)
    }

    /// Wakes the calls that wait.
    pub(crate) fn end(&self) {
        // Nobody reads the number, so this is the only write, and it succeeds.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

impl AsFd for Resolution {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
