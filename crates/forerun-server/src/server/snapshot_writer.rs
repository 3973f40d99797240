//! Writes the cache's content to its snapshot file and reads it at the start, one writer at a time.
//!
//! ```text
//!   start   FILE ──> cache, then FILE is removed: from the first command on it would be out of date
//!   asked   cache ──> FILE.live, a copy of one moment, which no start reads
//!   end     cache ──> FILE
//! ```
//!
//! So FILE exists only while no server runs on it, and a server that is killed leaves none: the
//! next one starts empty and never serves what was deleted or replaced.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use forerun_cache::Cache;
use forerun_core::sync::{Mutex, PoisonError};

use crate::error::Error;
use crate::snapshot::{
    Pace, SnapshotError, beside, probe, read_from_system, remove, write_to_system,
};
use crate::system::System;

use super::options::SnapshotOptions;

/// Reads the file at the start and writes it when asked to.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotWriter<S> {
    system: S,
    options: Arc<SnapshotOptions>,
    /// Held while the file is written.
    writing: Arc<Mutex<()>>,
    /// The server ends, and waits for a copy that is being written.
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

    /// Fills the cache from the file, if there is one. Fails where the file could not be written at
    /// the end.
    pub(crate) fn restore(&self, cache: &Cache) -> Result<(), Error> {
        let path = &self.options.path;
        probe(&self.system, path)?;
        let start = self.system.now();
        match read_from_system(&self.system, cache, path) {
            Ok(None) => tracing::info!(path = %path.display(), "no snapshot: the cache is empty"),
            Ok(Some(read)) => tracing::info!(
                path = %path.display(),
                items = read.items,
                bytes = read.bytes,
                expired = read.expired,
                refused = read.refused,
                ms = self.ms_since(start),
                "snapshot read"
            ),
            Err(error) if self.options.ignore_bad => {
                cache.flush_all(cache.now());
                let bad = beside(path, ".bad");
                // Where it cannot be kept it is removed, as one that was read would be.
                let kept = self.system.rename(path, &bad).is_ok();
                tracing::error!(%error, kept, "the snapshot cannot be used: the cache is empty");
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Removes the file that was read: what it holds is out of date once a client is let in.
    pub(crate) fn invalidate(&self) -> Result<(), SnapshotError> {
        remove(&self.system, &self.options.path)
    }

    /// Writes the file at the server's end.
    pub(crate) fn keep(&self, cache: &Cache) -> Result<(), SnapshotError> {
        // Relaxed: a flag that carries nothing with it.
        self.ending.store(true, Ordering::Relaxed);
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        self.write(cache, &self.options.path, Pace::Unlimited)
    }

    /// Writes the copy beside the file in a thread of its own, unless it is being written already.
    pub(crate) fn keep_beside(&self, cache: &Arc<Cache>) {
        let (snapshot_writer, cache) = (self.clone(), cache.clone());
        let write = move || match snapshot_writer.writing.try_lock() {
            Ok(_writing) => {
                // The error is logged where it occurred; the server goes on.
                let pace = Pace::Beside {
                    rate: snapshot_writer.options.live_bytes_per_s,
                    hurry: snapshot_writer.ending.clone(),
                };
                let _ = snapshot_writer.write(
                    &cache,
                    &beside(&snapshot_writer.options.path, ".live"),
                    pace,
                );
            }
            Err(_) => tracing::warn!("a snapshot is being written already"),
        };
        if let Err(error) = self.system.spawn("snapshot", Box::new(write)) {
            tracing::error!(%error, "no thread to write a snapshot");
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
                    "snapshot written"
                );
                Ok(())
            }
            Err(error) => {
                tracing::error!(%error, "the snapshot cannot be written");
                Err(error)
            }
        }
    }
}
