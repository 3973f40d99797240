//! Writes the cache to its snapshot file and reads it at the start. Only one thread writes at a
//! time.
//!
//! ```text
//!   start   FILE ──> cache, then FILE is removed, because the first command makes it stale
//!   on request, or at an interval
//!           cache ──> FILE.live, a copy that no start reads
//!   end     cache ──> FILE
//! ```
//!
//! FILE therefore exists only while no server uses it. A killed server leaves no file, so the next
//! one starts empty and never serves deleted or replaced values.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use forerun_cache::Cache;
use forerun_core::sync::{Mutex, PoisonError};

use crate::error::Error;
use crate::snapshot::{
    LoadLimits, Pace, load_from_system, probe, remove, set_aside, with_suffix, write_to_system,
};
use crate::snapshot_error::SnapshotError;
use crate::system::System;

use super::options::SnapshotOptions;
use super::server_handle::ServerHandle;

/// Reads the file at the start and writes it on request.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotWriter<S> {
    system: S,
    options: Arc<SnapshotOptions>,
    /// Locked while the file is written.
    writing: Arc<Mutex<()>>,
    /// Set when the server shuts down and waits for a copy that is still being written.
    ending: Arc<AtomicBool>,
}

impl<S: System> SnapshotWriter<S> {
    pub(crate) fn new(system: S, options: SnapshotOptions) -> SnapshotWriter<S> {
        SnapshotWriter {
            system,
            options: Arc::new(options),
            writing: Arc::default(),
            ending: Arc::default(),
        }
    }

    /// Fills the cache from the file, if it exists and is not too old. Fails if the file could not
    /// be written at shutdown, or if a drain is requested.
    pub(crate) fn restore(&self, cache: &Cache, handle: &ServerHandle) -> Result<(), Error> {
        let path = &self.options.path;
        probe(&self.system, path)?;
        let start = self.system.now();
        let limits = LoadLimits {
            max_age_s: self.options.max_age.map(|age| age.as_secs()),
            is_interrupted: Some(&|| handle.is_drain_requested()),
        };
        match load_from_system(&self.system, cache, path, &limits) {
            Ok(None) => tracing::info!(path = %path.display(), "no snapshot, the cache is empty"),
            Ok(Some(read)) => tracing::info!(
                path = %path.display(),
                items = read.items,
                bytes = read.bytes,
                expired = read.expired,
                refused = read.refused,
                ms = self.ms_since(start),
                "loaded the snapshot"
            ),
            Err(error @ SnapshotError::TooOld { .. }) => {
                tracing::warn!(%error, "the snapshot is not loaded, the cache starts empty");
            }
            Err(SnapshotError::Interrupted { .. }) => return Err(Error::Interrupted),
            Err(error) if self.options.ignore_bad => {
                cache.flush_all(cache.now());
                // If the file cannot be renamed, it is removed like a file that was read.
                let kept = set_aside(&self.system, path)?;
                tracing::error!(%error, kept, "cannot use the snapshot, the cache starts empty");
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Removes the file that was read: it is stale as soon as a client can connect.
    pub(crate) fn invalidate(&self) -> Result<(), SnapshotError> {
        remove(&self.system, &self.options.path)
    }

    /// When the next periodic copy is due, if the last one was due at `now`.
    pub(crate) fn next_live(&self, now: Instant) -> Option<Instant> {
        now.checked_add(self.options.live_interval?)
    }

    /// Writes the file at the end of the server.
    pub(crate) fn write_final(&self, cache: &Cache) -> Result<(), SnapshotError> {
        // Relaxed: a flag without data.
        self.ending.store(true, Ordering::Relaxed);
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        self.write(cache, &self.options.path, Pace::Unlimited)
    }

    /// Writes the copy on its own thread, unless one is already being written.
    pub(crate) fn write_live(&self, cache: &Arc<Cache>) {
        let (snapshot_writer, cache) = (self.clone(), cache.clone());
        let write = move || match snapshot_writer.writing.try_lock() {
            Ok(_writing) => {
                // The error is logged where it occurs, and the server continues.
                let pace = Pace::Live {
                    rate: snapshot_writer.options.live_bytes_per_s,
                    hurry: snapshot_writer.ending.clone(),
                };
                let _ = snapshot_writer.write(
                    &cache,
                    &with_suffix(&snapshot_writer.options.path, ".live"),
                    pace,
                );
            }
            Err(_) => tracing::warn!("a snapshot is already being written"),
        };
        if let Err(error) = self.system.spawn("snapshot", Box::new(write)) {
            tracing::error!(%error, "cannot start a thread to write a snapshot");
        }
    }

    fn ms_since(&self, start: Instant) -> u64 {
        self.system.now().duration_since(start).as_millis() as u64
    }

    fn write(&self, cache: &Cache, path: &Path, pace: Pace) -> Result<(), SnapshotError> {
        let start = self.system.now();
        match write_to_system(&self.system, cache, path, pace) {
            Ok(written) => {
                tracing::info!(
                    path = %path.display(),
                    items = written.items,
                    bytes = written.bytes,
                    ms = self.ms_since(start),
                    "wrote the snapshot"
                );
                Ok(())
            }
            Err(error) => {
                tracing::error!(%error, "cannot write the snapshot");
                Err(error)
            }
        }
    }
}
