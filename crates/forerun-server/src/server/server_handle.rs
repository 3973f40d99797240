//! Requests to a running server from other threads: write a snapshot, reload the users, drain.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forerun_core::Owner;
use forerun_core::sync::{Mutex, MutexGuard, PoisonError};

use crate::system::Wake;

/// A handle to a server that any thread can use. [`Server::handle`](crate::Server::handle) makes
/// one for a running server. One that is made before the server, by [`ServerHandle::new`], also
/// reaches the server while it starts.
///
/// ```
/// use forerun_cache::{Cache, CacheOptions};
/// use forerun_server::{Listen, Server, ServerOptions};
/// use std::sync::Arc;
/// use std::thread;
///
/// let cache = Arc::new(Cache::new(CacheOptions::default())?);
/// let options = ServerOptions::new(Listen::parse("127.0.0.1:0", 11211)?);
/// let server = Server::start(options, cache)?;
/// let handle = server.handle();
/// let stopper = thread::spawn(move || handle.drain());
/// server.wait()?;
/// # stopper.join().unwrap();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ServerHandle {
    /// A fork of the server's process shares the waker, so requests from a fork are ignored.
    owner: Owner,
    requests: Arc<Requests>,
}

#[derive(Debug, Default)]
struct Requests {
    drain: AtomicBool,
    snapshot: AtomicBool,
    reload_files: AtomicBool,
    /// Wakes the acceptor, once there is one.
    waker: Mutex<Option<Arc<dyn Wake>>>,
}

impl Default for ServerHandle {
    fn default() -> ServerHandle {
        ServerHandle::new()
    }
}

// The flags carry no data, and the wake-up after each store orders them, so relaxed would suffice.
// With release and acquire, correctness does not depend on the kernel.
impl ServerHandle {
    /// Makes a handle for [`Server::start_with_handle`](crate::Server::start_with_handle).
    pub fn new() -> ServerHandle {
        ServerHandle {
            owner: Owner::this_process(),
            requests: Arc::default(),
        }
    }

    /// Lets requests wake the acceptor. Requests that came before must be looked for after this
    /// call.
    pub(crate) fn wake_with(&self, waker: Arc<dyn Wake>) {
        *self.waker() = Some(waker);
    }

    /// Like [`Server::drain`](crate::Server::drain). A server that is still starting does not
    /// start: [`Error::Interrupted`](crate::Error::Interrupted).
    pub fn drain(&self) {
        self.request(&self.requests.drain);
    }

    /// Like [`Server::snapshot`](crate::Server::snapshot).
    pub fn snapshot(&self) {
        self.request(&self.requests.snapshot);
    }

    /// Like [`Server::reload_files`](crate::Server::reload_files).
    pub fn reload_files(&self) {
        self.request(&self.requests.reload_files);
    }

    /// Whether a reload was requested since the last call.
    pub(crate) fn take_reload_files(&self) -> bool {
        self.requests.reload_files.swap(false, Ordering::AcqRel)
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
        if let Some(waker) = &*self.waker() {
            // This fails only if the acceptor's poll is gone. Then no thread is left to serve the
            // request.
            let _ = waker.wake();
        }
    }

    fn waker(&self) -> MutexGuard<'_, Option<Arc<dyn Wake>>> {
        // The value is replaced as a whole, so a panic elsewhere cannot leave half of it.
        let waker = &self.requests.waker;
        waker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
