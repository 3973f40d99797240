//! How a call waits for its servers.
//!
//! ```text
//!   Block       poll(2) in the caller's thread                     never pending
//!   EventLoop   an epoll instance that an event loop watches       pending until a socket is ready
//! ```

use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use forerun_core::sync::time;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;

/// What a call waits for on a socket, or what the socket is ready for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// Something can be read, or the connection has failed.
    pub read: bool,
    /// Something can be written.
    pub write: bool,
}

/// A socket, and what a call waits for on it.
pub type Watched<'a> = (BorrowedFd<'a>, Readiness);

/// Waits until sockets are ready.
pub trait Wait {
    /// Whether a waiting call asks the function of `Client::interrupt_if`.
    const ASKS: bool;

    /// Waits until one of the sockets is ready or the time has come. Returns what each socket is
    /// ready for.
    fn wait(
        &self,
        sockets: &[Watched<'_>],
        until: Instant,
    ) -> impl Future<Output = io::Result<Vec<Readiness>>> + Send;
}

/// Waits in the caller's thread.
#[derive(Clone, Copy, Debug)]
pub struct Block;

impl Wait for Block {
    const ASKS: bool = true;

    async fn wait(&self, sockets: &[Watched<'_>], until: Instant) -> io::Result<Vec<Readiness>> {
        let flags_of = |wanted: &Readiness| {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, wanted.read);
            flags.set(PollFlags::OUT, wanted.write);
            flags
        };
        let mut descriptors: Vec<PollFd<'_>> = sockets
            .iter()
            .map(|(socket, wanted)| PollFd::from_borrowed_fd(*socket, flags_of(wanted)))
            .collect();
        let left = until.saturating_duration_since(time::now());
        if !left.is_zero() {
            match poll(&mut descriptors, Timespec::try_from(left).ok().as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // The read reports errors and hang-ups.
        let ready = descriptors.iter().map(|descriptor| Readiness {
            read: !(descriptor.revents() - PollFlags::OUT).is_empty(),
            write: descriptor.revents().contains(PollFlags::OUT),
        });
        Ok(ready.collect())
    }
}

/// The result of a future that waits with [`Block`].
pub(crate) fn block<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => unreachable!("it waits in this thread"),
    }
}

/// Waits in an event loop, which watches the descriptor of an epoll instance. The descriptor is
/// readable when a socket of the call is ready.
#[derive(Clone, Debug)]
pub struct EventLoop {
    epoll: Arc<OwnedFd>,
}

impl EventLoop {
    pub(crate) fn new() -> io::Result<EventLoop> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(EventLoop {
            epoll: Arc::new(forerun_core::above_standard_streams(epoll)?),
        })
    }

    /// Watches a socket until it is ready once. A socket that has been ready cannot wake the event
    /// loop again until it is watched again.
    fn watch(&self, index: usize, (socket, wanted): &Watched<'_>) -> io::Result<()> {
        let mut flags = epoll::EventFlags::ONESHOT;
        flags.set(epoll::EventFlags::IN, wanted.read);
        flags.set(epoll::EventFlags::OUT, wanted.write);
        let data = epoll::EventData::new_u64(index as u64);
        match epoll::modify(&*self.epoll, socket, data, flags) {
            // The socket is new to this call.
            Err(Errno::NOENT) => Ok(epoll::add(&*self.epoll, socket, data, flags)?),
            result => Ok(result?),
        }
    }

    /// The sockets that are ready now.
    fn ready(&self, sockets: usize) -> io::Result<Option<Vec<Readiness>>> {
        let mut events = Vec::with_capacity(sockets);
        let buffer = rustix::buffer::spare_capacity(&mut events);
        match epoll::wait(&*self.epoll, buffer, Some(&Timespec::default())) {
            Ok(0) | Err(Errno::INTR) => return Ok(None),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let mut ready = vec![Readiness::default(); sockets];
        for event in events {
            let (flags, data) = (event.flags, event.data);
            ready[data.u64() as usize] = Readiness {
                read: !(flags - epoll::EventFlags::OUT).is_empty(),
                write: flags.contains(epoll::EventFlags::OUT),
            };
        }
        Ok(Some(ready))
    }
}

impl AsFd for EventLoop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Wait for EventLoop {
    const ASKS: bool = false;

    async fn wait(&self, sockets: &[Watched<'_>], until: Instant) -> io::Result<Vec<Readiness>> {
        for (index, socket) in sockets.iter().enumerate() {
            self.watch(index, socket)?;
        }
        poll_fn(|_| match self.ready(sockets.len()) {
            Ok(Some(ready)) => Poll::Ready(Ok(ready)),
            Ok(None) if time::now() >= until => {
                Poll::Ready(Ok(vec![Readiness::default(); sockets.len()]))
            }
            // The event loop polls again when the descriptor is readable.
            Ok(None) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        })
        .await
    }
}
