//! A running server: its threads and sockets, from the start to the end.
//!
//! ```text
//!   acceptor         accepts, hands connections to the workers in turn; the cache's clock, snapshots, the end
//!   worker           a thread with a poll and connections; it reads, answers, writes, and never waits for one of them
//!   connection       transport, input, session, output
//!   connections      who is connected: the limit, counts, a list
//!   snapshot_writer  the snapshot file
//!   control          requests from other threads: drain, snapshot, reload users
//!   host             what sessions ask the server
//!   parts            all of these before they have threads
//! ```

mod acceptor;
mod connection;
mod connections;
mod control;
mod host;
mod options;
mod parts;
mod snapshot_writer;
#[cfg(feature = "simulation")]
mod stepped;
mod worker;

use forerun_core::sync::{
    mpsc::channel,
    thread::{self, JoinHandle},
    time,
};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use forerun_cache::Cache;
use forerun_core::ProcessBound;

use crate::error::Error;
use crate::metrics::{Endpoint, Metrics};
use crate::net::Address;
use crate::shared::Shared;
use crate::snapshot::SnapshotError;
use crate::system::Os;

use control::Control;
pub use options::{ServerOptions, SnapshotOptions};
use parts::Parts;
use snapshot_writer::SnapshotWriter;
#[cfg(feature = "simulation")]
pub use stepped::Stepped;
use worker::Message;

/// A server that runs, in threads of its own.
///
/// ```
/// use forerun_cache::{Cache, CacheOptions};
/// use forerun_server::{Listen, Server, ServerOptions};
/// use std::sync::Arc;
///
/// let cache = Arc::new(Cache::new(CacheOptions::default())?);
/// let options = ServerOptions::new(Listen::parse("127.0.0.1:0", 11211)?);
/// let server = Server::start(options, cache)?;
/// println!("listening on {}", server.addresses()[0]);
/// server.drain();
/// server.wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Dropping it asks it to drain and does not wait. In a fork of its process, a server is asked for nothing, and dropping it
/// does nothing.
#[derive(Debug)]
pub struct Server {
    addresses: Vec<Address>,
    shared: Arc<Shared>,
    control: Control,
    metrics: Option<ProcessBound<Endpoint>>,
    acceptor: ProcessBound<Option<JoinHandle<Result<(), Ended>>>>,
}

/// Why a server ended before it was asked to, or not as it was asked to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Ended {
    /// The system failed a thread in what no connection can cause.
    #[error("the server ended by a fault of the system")]
    Io(#[source] io::Error),
    /// A thread panicked, which is a bug.
    #[error("a thread of the server panicked")]
    Panic,
    /// It runs in another process, of which this one is a fork. There it goes on.
    #[error(transparent)]
    Forked(#[from] forerun_core::Forked),
    /// All was served, and the snapshot at the end could not be written.
    #[error(transparent)]
    Snapshot(SnapshotError),
}

impl Server {
    /// Reads what is to be read, binds the listeners, and serves.
    ///
    /// # Errors
    /// Any [`Error`]; then nothing is bound, no thread is left, and the snapshot is as it was.
    pub fn start(options: ServerOptions, cache: Arc<Cache>) -> Result<Server, Error> {
        let Parts {
            mut acceptor,
            workers,
            snapshot_writer,
            shared,
            control,
            addresses,
        } = Parts::assemble(Os, &options, cache)?;
        let start = |what| move |source| Error::Start { what, source };
        let metrics = match options.metrics {
            Some(address) => Some(Endpoint::start(address, Metrics::new(shared.clone()))?),
            None => None,
        };
        for (number, worker) in workers.into_iter().enumerate() {
            let control = control.clone();
            let run = move || {
                // However a worker ends, the server does not go on without it.
                let _end = DrainOnDrop(control);
                worker.run()
            };
            let thread = thread::Builder::new().name(format!("worker-{number}"));
            match thread.spawn(run) {
                Ok(thread) => acceptor.threads.push(thread),
                Err(source) => {
                    acceptor.abandon();
                    return Err(start("a thread")(source));
                }
            }
        }
        let handles = acceptor.workers.clone();
        let (let_in, may_let_in) = channel();
        let serve = move || match may_let_in.recv() {
            Ok(()) => acceptor.run(),
            Err(_) => {
                acceptor.abandon();
                Ok(())
            }
        };
        let thread = thread::Builder::new().name("acceptor".to_owned());
        let acceptor = thread.spawn(serve).map_err(|source| {
            // The acceptor was dropped with the closure, so its workers are told here.
            for worker in &handles {
                worker.send(Message::Drain(time::now()));
            }
            start("a thread")(source)
        })?;
        // Nothing but this can fail any more, and nobody is let in before it: a start that fails leaves the snapshot, and
        // no command is answered while there is one.
        if let Some(Err(error)) = snapshot_writer.as_ref().map(SnapshotWriter::invalidate) {
            drop(let_in);
            // It has a worker's panic to tell at most, and no worker has done anything.
            let _ = acceptor.join();
            return Err(error.into());
        }
        // It fails only if the acceptor is gone, which its handle reports.
        let _ = let_in.send(());
        for address in &addresses {
            tracing::info!(%address, "listening");
        }
        Ok(Server {
            addresses,
            shared,
            control,
            metrics: metrics.map(ProcessBound::new),
            acceptor: ProcessBound::new(Some(acceptor)),
        })
    }

    /// Where it listens, in the order asked for, with the ports it was given.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Where its metrics are served, with the port that was given.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        let endpoint = self.metrics.as_ref()?;
        Some(*endpoint.constant(|endpoint| &endpoint.address))
    }

    /// What its sessions share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Asks it to end: no new connections, what was received is answered, the snapshot is written. It returns at once.
    pub fn drain(&self) {
        self.control.drain();
    }

    /// Asks for a copy of the cache's content now, beside its work, in a file named like the snapshot's with `.live` behind
    /// it. No server starts with that file unless it is told to: what it holds may have been deleted since. Returns at once;
    /// without a snapshot file it does nothing.
    pub fn snapshot(&self) {
        self.control.snapshot();
    }

    /// Asks it to read the file of users again; connections that have authenticated stay. It returns at once; a file that
    /// cannot be used is logged and changes nothing.
    pub fn reload_users(&self) {
        self.control.reload_users();
    }

    /// What can ask it to drain from another thread, while this one waits.
    pub fn remote(&self) -> Remote {
        Remote(self.control.clone())
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// [`Ended`].
    pub fn wait(mut self) -> Result<(), Ended> {
        match self.acceptor.get_mut()?.take().map(JoinHandle::join) {
            Some(Ok(ended)) => ended,
            Some(Err(_)) => Err(Ended::Panic),
            None => Ok(()),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.control.drain();
    }
}

/// Asks things of a server from any thread.
#[derive(Clone, Debug)]
pub struct Remote(Control);

impl Remote {
    /// As [`Server::drain`].
    pub fn drain(&self) {
        self.0.drain();
    }

    /// As [`Server::snapshot`].
    pub fn snapshot(&self) {
        self.0.snapshot();
    }

    /// As [`Server::reload_users`].
    pub fn reload_users(&self) {
        self.0.reload_users();
    }
}

struct DrainOnDrop(Control);

impl Drop for DrainOnDrop {
    fn drop(&mut self) {
        self.0.drain();
    }
}
