//! Statistics of a client.

use std::sync::atomic::{AtomicU64, Ordering};

use forerun_core::metrics;

use crate::values::Report;

metrics! {
    /// Counts since the client was created, and its present state.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct ClientStats {
        /// Keys that were looked up and found.
        counter get_hits: u64,
        /// Keys that were looked up and not found.
        counter get_misses: u64,
        /// Keys that were looked up on a server that failed.
        counter get_failed: u64,
        /// Keys whose value was longer than `max_value_bytes`.
        counter get_oversized: u64,
        /// Commands other than lookups. A batch of writes counts once per key.
        counter commands: u64,
        /// Failures of servers, counted once per call and server.
        counter server_failures: u64,
        /// Calls that skipped a server because it had failed before.
        counter ejections: u64,
        /// Servers.
        gauge servers: u64,
        /// Servers that are ejected now.
        gauge ejected_servers: u64,
        /// Sets of connections that no call uses.
        gauge idle_connection_sets: u64,
        /// Keys whose deletes failed and that will be deleted when their server answers.
        gauge failed_deletes: u64,
        /// Failed deletes that were not kept, because `failed_deletes_max` were, and those that the
        /// server refused when they were repeated.
        counter failed_deletes_dropped: u64,
    }
}

/// The counts. Relaxed, here and below: each is an independent number that orders nothing.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    get_hits: AtomicU64,
    get_misses: AtomicU64,
    get_failed: AtomicU64,
    get_oversized: AtomicU64,
    commands: AtomicU64,
    server_failures: AtomicU64,
    ejections: AtomicU64,
}

fn add(counter: &AtomicU64, count: usize) {
    if count > 0 {
        counter.fetch_add(count as u64, Ordering::Relaxed);
    }
}

impl Counters {
    pub(crate) fn looked_up(&self, report: &Report) {
        add(&self.get_hits, report.hits);
        add(&self.get_misses, report.misses);
        add(&self.get_failed, report.failed);
        add(&self.get_oversized, report.oversized);
    }

    pub(crate) fn commands(&self, count: usize) {
        add(&self.commands, count);
    }

    pub(crate) fn server_failed(&self) {
        add(&self.server_failures, 1);
    }

    pub(crate) fn was_ejected(&self) {
        add(&self.ejections, 1);
    }

    /// The counts, with no gauges.
    pub(crate) fn read(&self) -> ClientStats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ClientStats {
            get_hits: load(&self.get_hits),
            get_misses: load(&self.get_misses),
            get_failed: load(&self.get_failed),
            get_oversized: load(&self.get_oversized),
            commands: load(&self.commands),
            server_failures: load(&self.server_failures),
            ejections: load(&self.ejections),
            ..ClientStats::default()
        }
    }
}
