//! A server without threads. The caller runs the acceptor and the workers step by step.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use forerun_cache::Cache;

use crate::address::Protocol;
use crate::error::Error;
use crate::health::{Health, Phase};
use crate::shared::Shared;
use crate::system::System;

use super::acceptor::Acceptor;
use super::options::ServerOptions;
use super::server_handle::ServerHandle;
use super::server_parts::ServerParts;
use super::worker::Worker;
use super::{ServerError, invalidate};

/// A server that the caller runs step by step. It uses the product's acceptor, workers, sessions
/// and snapshots on the caller's system.
pub struct SteppedServer<S: System> {
    acceptor: Acceptor<S>,
    /// A worker that has ended is dropped together with its connections, as at the end of its
    /// thread.
    workers: Vec<Option<Worker<S>>>,
    shared: Arc<Shared>,
    handle: ServerHandle,
    draining: bool,
}

impl<S: System> SteppedServer<S> {
    /// Like [`Server::start`](crate::Server::start), without threads and metrics.
    ///
    /// # Errors
    /// Any [`Error`].
    pub fn start(system: S, options: &ServerOptions, cache: Arc<Cache>) -> Result<Self, Error> {
        options.check()?;
        let handle = ServerHandle::new();
        let health = Arc::new(Health::starting());
        let parts = ServerParts::assemble(system, options, cache, &handle, health.clone())?;
        invalidate(parts.snapshot_writer.as_ref(), &handle)?;
        health.enter(Phase::Serving);
        Ok(SteppedServer {
            acceptor: parts.acceptor,
            workers: parts.workers.into_iter().map(Some).collect(),
            shared: parts.shared,
            handle,
            draining: false,
        })
    }

    /// The state that all sessions share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Like [`Server::drain`](crate::Server::drain).
    pub fn drain(&self) {
        self.handle.drain();
    }

    /// Like [`Server::snapshot`](crate::Server::snapshot).
    pub fn snapshot(&self) {
        self.handle.snapshot();
    }

    /// Runs one step of the acceptor: it polls once and does the work that is due. If a drain was
    /// requested, it starts the drain.
    ///
    /// # Errors
    /// The error of the poll.
    pub fn step_acceptor(&mut self) -> io::Result<()> {
        if self.draining {
            return Ok(());
        }
        if self.acceptor.is_drain_due() {
            self.draining = true;
            self.acceptor.begin_drain();
            return Ok(());
        }
        self.acceptor.step()
    }

    /// Maximum time that the acceptor's next poll waits. `None` when the acceptor is only waiting
    /// for the workers to end.
    pub fn acceptor_timeout(&self) -> Option<Duration> {
        (!self.draining).then(|| self.acceptor.timeout())
    }

    /// Runs one step of a worker: it polls once and gives its connections their turns. Does nothing
    /// if the worker has ended.
    ///
    /// # Errors
    /// The error of the poll.
    pub fn step_worker(&mut self, number: usize) -> io::Result<()> {
        let slot = &mut self.workers[number];
        if let Some(worker) = slot {
            if !worker.is_done() {
                worker.step()?;
            }
            if worker.is_done() {
                *slot = None;
            }
        }
        Ok(())
    }

    /// Maximum time that a worker's next poll waits. `None` if only an event ends the wait, or if
    /// the worker has ended.
    pub fn worker_timeout(&self, number: usize) -> Option<Duration> {
        let worker = self.workers[number].as_ref()?;
        if worker.is_done() {
            Some(Duration::ZERO)
        } else {
            worker.timeout()
        }
    }

    /// Whether a worker has ended.
    pub fn has_ended(&self, number: usize) -> bool {
        self.workers[number].is_none()
    }

    /// Whether a worker has begun to drain and has not ended.
    pub fn is_draining(&self, number: usize) -> bool {
        let worker = self.workers[number].as_ref();
        worker.is_some_and(Worker::is_draining)
    }

    /// What each client of a worker speaks, and the memory of its connection's buffers in bytes.
    pub fn buffer_bytes(&self, number: usize) -> Vec<(Protocol, usize)> {
        let worker = self.workers[number].as_ref();
        worker.map_or(Vec::new(), |worker| worker.buffer_bytes().collect())
    }

    /// Writes the last snapshot after all workers have ended.
    ///
    /// # Errors
    /// [`ServerError::Snapshot`].
    pub fn finish(self) -> Result<(), ServerError> {
        self.acceptor.write_snapshot()
    }
}
