//! A running server: its threads and sockets, from start to end.
//!
//! ```text
//!   acceptor         accepts connections and assigns them to workers in turn; cache clock, snapshots, shutdown
//!   worker           a thread with a poll and connections; it reads, answers, writes, and never blocks on one of them
//!   connection       transport, input, session, output
//!   connections      the open connections: limit, counts, list
//!   snapshot_writer  the snapshot file
//!   control          requests from other threads: drain, snapshot, reload users
//!   host             answers the questions of sessions
//!   parts            assembles all of these before threads start
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

use crate::address::Address;
use crate::error::Error;
use crate::metrics::{Endpoint, Metrics};
use crate::os::Os;
use crate::shared::Shared;
use crate::snapshot_error::SnapshotError;

use control::Control;
pub use options::{ServerOptions, SnapshotOptions};
use parts::Parts;
pub(crate) use snapshot_writer::SnapshotWriter;
#[cfg(feature = "simulation")]
pub use stepped::Stepped;
use worker::Message;

/// A running server with its own threads.
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
/// Dropping it starts a drain but does not wait for its end. In a fork of the process, all requests
/// and the drop do nothing.
#[derive(Debug)]
pub struct Server {
    addresses: Vec<Address>,
    shared: Arc<Shared>,
    control: Control,
    metrics: Option<ProcessBound<Endpoint>>,
    acceptor: ProcessBound<Option<JoinHandle<Result<(), Ended>>>>,
}

/// Why a server ended early or with an error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Ended {
    /// A system call of a thread failed. No connection can cause this.
    #[error("the server ended: a system call failed")]
    Io(#[source] io::Error),
    /// A thread panicked, which is a bug.
    #[error("a thread of the server panicked")]
    Panic,
    /// This process is a fork. The server keeps running in the process that started it.
    #[error(transparent)]
    Forked(#[from] forerun_core::Forked),
    /// The last snapshot could not be written. Everything else ended normally.
    #[error(transparent)]
    Snapshot(SnapshotError),
}

impl Server {
    /// Reads the files that the options name, binds the listeners, and serves.
    ///
    /// # Errors
    /// Any [`Error`]. In that case nothing stays bound, no thread is left, and the snapshot is
    /// unchanged.
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
                // If a worker ends for any reason, the server ends too.
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
        let (accept, may_accept) = channel();
        let serve = move || match may_accept.recv() {
            Ok(()) => acceptor.run(),
            Err(_) => {
                acceptor.abandon();
                Ok(())
            }
        };
        let thread = thread::Builder::new().name("acceptor".to_owned());
        let acceptor = thread.spawn(serve).map_err(|source| {
            // The acceptor was dropped with the closure, so tell its workers here.
            for worker in &handles {
                worker.send(Message::Drain(time::now()));
            }
            start("a thread")(source)
        })?;
        // This is the last step that can fail, and no connection is accepted before it. So a failed
        // start leaves the snapshot in place, and no command is answered while the snapshot exists.
        if let Some(Err(error)) = snapshot_writer.as_ref().map(SnapshotWriter::invalidate) {
            drop(accept);
            // The result could only be a worker's panic, and no worker has done anything.
            let _ = acceptor.join();
            return Err(error.into());
        }
        // This fails only if the acceptor is gone. Its handle reports that.
        let _ = accept.send(());
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

    /// The listen addresses in the order of the options, with the ports that the system assigned.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// The address of the metrics server, with the port that the system assigned.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        let endpoint = self.metrics.as_ref()?;
        Some(*endpoint.constant(|endpoint| &endpoint.address))
    }

    /// The state that all sessions share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Starts a drain and returns at once: the server accepts no more connections, answers what it
    /// has received, writes the snapshot, and ends.
    pub fn drain(&self) {
        self.control.drain();
    }

    /// Starts to write the cache to a file and returns at once. The server keeps serving. The file
    /// has the snapshot's name with `.live` appended. No server loads it on its own, because its
    /// items may have been deleted since. Without a snapshot file this does nothing.
    pub fn snapshot(&self) {
        self.control.snapshot();
    }

    /// Asks the server to read the file of users again and returns at once. Connections that have
    /// authenticated stay open. If the file cannot be used, the server logs that and keeps its
    /// users.
    pub fn reload_users(&self) {
        self.control.reload_users();
    }

    /// A handle for other threads, for example to drain the server while this one waits.
    pub fn remote(&self) -> Remote {
        Remote(self.control.clone())
    }

    /// Waits until the server has ended.
    ///
    /// # Errors
    /// See [`Ended`].
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

/// A handle to a server that any thread can use.
#[derive(Clone, Debug)]
pub struct Remote(Control);

impl Remote {
    /// Like [`Server::drain`].
    pub fn drain(&self) {
        self.0.drain();
    }

    /// Like [`Server::snapshot`].
    pub fn snapshot(&self) {
        self.0.snapshot();
    }

    /// Like [`Server::reload_users`].
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
