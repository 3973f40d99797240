//! Calls that an event loop drives.

use std::future::Future;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use forerun_core::sync::time;

use crate::calls::Calls;
use crate::ring_client::Client;
use crate::wait::EventLoop;

/// A call that an event loop drives: [`Client::start`].
///
/// The event loop calls [`advance`](Pending::advance) whenever the descriptor ([`AsFd`]) is
/// readable, and when [`timeout`](Pending::timeout) has passed. Neither call blocks. Dropping a
/// pending call closes its connections, so no later call can read its answers. It does not count as
/// a server failure.
pub struct Pending<T> {
    /// `None` once it has ended.
    future: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    event_loop: EventLoop,
    deadline: Instant,
}

impl<T> std::fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pending")
            .field("is_done", &self.future.is_none())
            .finish_non_exhaustive()
    }
}

impl<T> Pending<T> {
    /// Continues the call as far as possible without waiting. Returns the result once.
    pub fn advance(&mut self) -> Option<T> {
        let future = self.future.as_mut()?.as_mut();
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => {
                self.future = None;
                Some(result)
            }
            Poll::Pending => None,
        }
    }

    /// The time after which to advance the call even if its descriptor is not readable. The servers
    /// that have not answered by then have failed.
    pub fn timeout(&self) -> Duration {
        self.deadline.saturating_duration_since(time::now())
    }
}

impl<T> AsFd for Pending<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event_loop.as_fd()
    }
}

impl Client {
    /// Prepares a call for an event loop. `call` makes one call of [`Calls`]. The client sends
    /// nothing before the first [`Pending::advance`].
    ///
    /// ```no_run
    /// # use forerun_client::{Client, ClientOptions, ServerAddress};
    /// # use std::sync::Arc;
    /// # let servers = [ServerAddress::tcp("localhost", 11211)];
    /// let client = Arc::new(Client::new(servers, ClientOptions::default())?);
    /// let mut pending = client.start(|calls| async move { calls.get("key").await })?;
    /// let found = loop {
    ///     if let Some(found) = pending.advance() {
    ///         break found?;
    ///     }
    ///     // An event loop waits here, and does other work.
    ///     std::thread::sleep(std::time::Duration::from_millis(1));
    /// };
    /// # drop(found);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The system's error, if no epoll instance can be made.
    pub fn start<T, F>(
        self: &Arc<Client>,
        call: impl FnOnce(Calls<Arc<Client>, EventLoop>) -> F,
    ) -> io::Result<Pending<T>>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let event_loop = EventLoop::new()?;
        let calls = Calls::new(Arc::clone(self), event_loop.clone());
        Ok(Pending {
            future: Some(Box::pin(call(calls))),
            event_loop,
            deadline: time::now() + self.timeout(),
        })
    }
}
