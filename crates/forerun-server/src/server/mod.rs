//! A running server: its threads and sockets, from start to end.
//!
//! ```text
//!   acceptor         accepts connections for the workers; cache clock, snapshots, shutdown
//!   worker           one thread, one poll, many connections; never blocks on one of them
//!   worker_handle    the acceptor's side of a worker
//!   connection       transport, input, session, output
//!   client_session   its session, in the protocol of its listener
//!   turn             the phases of a connection, and what it returns after a turn
//!   authenticate     the first commands of a connection that must authenticate
//!   queued           what a connection waits for in its worker
//!   handshakes       which connections have yet to complete TLS or authentication
//!   linger           how a connection ends after an error, so that the client can read it
//!   connections      the open connections: limit, counts, list
//!   buffers          the memory of their buffers, and its limit
//!   snapshot_writer  the snapshot file
//!   snapshot_lock    one server at a time has that file
//!   server_handle    requests from other threads: drain, snapshot, reload files
//!   running_server   answers the questions of sessions
//!   server_parts     assembles all of these before threads start
//! ```

mod acceptor;
mod authenticate;
mod buffers;
pub(crate) mod client_session;
mod connection;
mod connections;
mod handshakes;
mod linger;
mod options;
mod queued;
mod running_server;
mod server_handle;
mod server_parts;
mod snapshot_lock;
mod snapshot_writer;
#[cfg(feature = "simulation")]
mod stepped_server;
mod turn;
mod worker;
mod worker_handle;

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

use crate::address::{Address, Protocol};
use crate::error::Error;
use crate::health::{Health, Phase};
use crate::metrics::{Endpoint, Exporter};
use crate::os_system::OsSystem;
use crate::shared::Shared;
use crate::snapshot_error::SnapshotError;
use crate::system::System;

pub use options::{OnVerbosity, ServerOptions, SnapshotOptions};
pub use server_handle::ServerHandle;
use server_parts::ServerParts;
use snapshot_lock::SnapshotLock;
pub(crate) use snapshot_writer::SnapshotWriter;
#[cfg(feature = "simulation")]
pub use stepped_server::SteppedServer;
use worker_handle::Message;

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
    protocols: Vec<Protocol>,
    shared: Arc<Shared>,
    handle: ServerHandle,
    metrics: Option<ProcessBound<Endpoint>>,
    acceptor: ProcessBound<Option<JoinHandle<Result<(), ServerError>>>>,
}

/// Why a server ended early or with an error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
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
        Server::start_with_handle(options, cache, ServerHandle::new())
    }

    /// Like [`start`](Self::start), with a handle that was made before. A drain that it requests
    /// while the snapshot is loaded ends the start soon; other requests wait until the server has
    /// started. A handle is for one server.
    ///
    /// # Errors
    /// As [`start`](Self::start), and [`Error::Interrupted`].
    pub fn start_with_handle(
        options: ServerOptions,
        cache: Arc<Cache>,
        handle: ServerHandle,
    ) -> Result<Server, Error> {
        let options = options.with_absolute_paths();
        options.check()?;
        let snapshot = options.snapshot.as_ref();
        let snapshot_lock = snapshot
            .map(|of| SnapshotLock::take(&of.path))
            .transpose()?;
        let health = Arc::new(Health::starting());
        // A load of the snapshot takes minutes if the cache is large. Health checks need answers
        // meanwhile.
        let exporter = Exporter::new(cache.clone(), health.clone());
        let started = exporter.started();
        let metrics = match options.metrics {
            Some(address) => Some(Endpoint::start(address, exporter)?),
            None => None,
        };
        let ServerParts {
            mut acceptor,
            workers,
            snapshot_writer,
            shared,
            addresses,
        } = ServerParts::assemble(OsSystem, &options, cache, &handle, health.clone())?;
        let start = |what| move |source| Error::Start { what, source };
        for (number, worker) in workers.into_iter().enumerate() {
            let handle = handle.clone();
            let run = move || {
                // If a worker ends for any reason, the server ends too.
                let _end = DrainOnDrop(handle);
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
        let serve = move || {
            // Until the last snapshot is written.
            let _snapshot_lock = snapshot_lock;
            match may_accept.recv() {
                Ok(()) => acceptor.run(),
                Err(_) => {
                    acceptor.abandon();
                    Ok(())
                }
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
        // This is the last step that can fail, and the server accepts no connection before it. A
        // failed start therefore leaves the snapshot in place, and the server answers no command
        // while the snapshot exists.
        if let Err(error) = invalidate(snapshot_writer.as_ref(), &handle) {
            drop(accept);
            // The only possible failure is a worker's panic, and no worker has done anything yet.
            let _ = acceptor.join();
            return Err(error);
        }
        // Set only once, here.
        let _ = started.set(shared.clone());
        health.enter(Phase::Serving);
        // This fails only if the acceptor is gone. The acceptor's handle reports that.
        let _ = accept.send(());
        for address in &addresses {
            tracing::info!(%address, "listening");
        }
        Ok(Server {
            addresses,
            protocols: options
                .listen
                .iter()
                .map(|listen| listen.protocol)
                .collect(),
            shared,
            handle,
            metrics: metrics.map(ProcessBound::new),
            acceptor: ProcessBound::new(Some(acceptor)),
        })
    }

    /// The listen addresses in the order of the options, with the ports that the system assigned.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// What the clients of each of these addresses speak, in the same order.
    pub fn protocols(&self) -> &[Protocol] {
        &self.protocols
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

    /// Starts a drain and returns at once: the server accepts no more connections, answers the
    /// requests it has received, writes the snapshot, and ends.
    pub fn drain(&self) {
        self.handle.drain();
    }

    /// Starts to write the cache to a file and returns at once. The server keeps serving. The file
    /// has the snapshot's name with `.live` appended. No server loads this file by default, because
    /// items in it may have been deleted since. Without a snapshot file this does nothing.
    pub fn snapshot(&self) {
        self.handle.snapshot();
    }

    /// Asks the server to read the file of users and the files of certificates again and returns at
    /// once. Open connections stay open: authenticated users stay authenticated, and TLS
    /// connections keep the certificate that they began with. If a file cannot be used, the server
    /// logs that and keeps its users or its certificates.
    pub fn reload_files(&self) {
        self.handle.reload_files();
    }

    /// A handle for other threads, for example to drain the server while this one waits.
    pub fn handle(&self) -> ServerHandle {
        self.handle.clone()
    }

    /// Waits until the server has ended.
    ///
    /// # Errors
    /// See [`ServerError`].
    pub fn wait(mut self) -> Result<(), ServerError> {
        match self.acceptor.get_mut()?.take().map(JoinHandle::join) {
            Some(Ok(ended)) => ended,
            Some(Err(_)) => Err(ServerError::Panic),
            None => Ok(()),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.handle.drain();
    }
}

/// Removes the snapshot that was read, unless the server was asked to end: it then stays for the
/// next start.
fn invalidate<S: System>(
    snapshot_writer: Option<&SnapshotWriter<S>>,
    handle: &ServerHandle,
) -> Result<(), Error> {
    if handle.is_drain_requested() {
        return Err(Error::Interrupted);
    }
    match snapshot_writer {
        Some(snapshot_writer) => Ok(snapshot_writer.invalidate()?),
        None => Ok(()),
    }
}

struct DrainOnDrop(ServerHandle);

impl Drop for DrainOnDrop {
    fn drop(&mut self) {
        self.0.drain();
    }
}
