//! Counters, and what [`Table::stats`](crate::Table::stats) tells.

use crate::latency::{Latencies, Latency};
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counts since the table was opened.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counts { $($(#[$doc])* pub $name: u64),* }

        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub(crate) $name: Counter),* }

        impl Counters {
            pub(crate) fn counts(&self) -> Counts {
                Counts { $($name: self.$name.get()),* }
            }
        }
    };
}

counters! {
    /// Batches looked up.
    find_batches,
    /// Keys looked up.
    find_keys,
    /// Rows found in the device tier.
    device_hits,
    /// Rows found in the host tier.
    host_hits,
    /// Rows found in the store.
    store_hits,
    /// Keys found nowhere.
    misses,
    /// Keys that a tier failed to answer.
    failed_keys,
    /// Rows written: inserted, updated, imported.
    written_rows,
    /// Keys erased, whether they were there or not.
    erased_keys,
    /// Rows that were brought up from the store.
    promoted_rows,
    /// Rows that were to come up and did not: they changed meanwhile, no room was made, or too many
    /// waited.
    unpromoted_rows,
    /// Rows that left the host tier for want of room.
    demoted_rows,
    /// Rows of the host tier that were copied to the device.
    device_promoted_rows,
    /// Rows that were to come up to the device and did not: their scores were too low for it, they
    /// had left the host tier meanwhile, or too many waited.
    device_unpromoted_rows,
    /// Rows that left the device for want of room, and went to the host tier unless it had them.
    device_demoted_rows,
    /// Of these and of flushed ones, rows that the store did not have yet and that were written to
    /// it.
    written_back_rows,
    /// Moves in the background that failed: rows stayed where they were.
    failed_moves,
}

/// One counter.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: usize) {
        if count > 0 {
            // Relaxed: a count orders nothing.
            self.0.fetch_add(count as u64, Ordering::Relaxed);
        }
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How long calls took, as it is counted.
#[derive(Debug, Default)]
pub(crate) struct Clocks {
    pub(crate) find: Latencies,
    pub(crate) device: Latencies,
    pub(crate) host: Latencies,
    pub(crate) store: Latencies,
    pub(crate) write: Latencies,
}

/// What a device tier is and holds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceStats {
    /// What it lies on: `GPU 0, NVIDIA H100`, or `the CPU`.
    pub name: String,
    /// Whether that is a GPU.
    pub is_gpu: bool,
    /// Rows in it: copies of rows that lie below as well.
    pub rows: u64,
    /// Rows that it has slots for: whole buckets, so at least as many as were asked for. A GPU's
    /// table leaves some free.
    pub capacity_rows: u64,
    /// Why it is left out, if it has failed. The tiers below go on without it.
    pub failure: Option<String>,
}

/// What a table holds, and did since it was opened.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// What happened how often.
    pub counts: Counts,
    /// Bytes a row.
    pub row_bytes: u64,
    /// Rows in the host tier.
    pub host_rows: u64,
    /// Rows that the host tier may hold.
    pub host_capacity_rows: u64,
    /// Of these, rows that the store does not have yet.
    pub host_dirty_rows: u64,
    /// Bytes of memory for rows, their index and notes when the tier is full.
    pub host_bytes: u64,
    /// Of these, bytes that are in use now.
    pub host_used_bytes: u64,
    /// The device tier, if the table was built with one.
    pub device: Option<DeviceStats>,
    /// A batch of lookups, from call to answer.
    pub find: Latency,
    /// Its part in the device tier.
    pub find_device: Latency,
    /// Its part in the host tier.
    pub find_host: Latency,
    /// Its part in the store, where it came to that.
    pub find_store: Latency,
    /// A batch of writes.
    pub write: Latency,
    /// The store's own.
    pub store: Option<Box<forerun_db::Stats>>,
}

impl Stats {
    /// Bytes of memory in use now in the host tier and in the store below it: rows, their index and
    /// notes, the store's memtables, and the pages that it caches.
    pub fn memory_bytes(&self) -> u64 {
        let store = self.store.as_ref().map_or(0, |store| {
            store.cache.used_bytes as u64 + store.memtables_used_bytes as u64
        });
        self.host_used_bytes + store
    }

    /// The share of the keys that the device tier answered, of those looked up.
    pub fn device_hit_rate(&self) -> f64 {
        self.share(self.counts.device_hits)
    }

    /// The share of the keys that the host tier answered, of those looked up.
    pub fn host_hit_rate(&self) -> f64 {
        self.share(self.counts.host_hits)
    }

    fn share(&self, hits: u64) -> f64 {
        hits as f64 / self.counts.find_keys.max(1) as f64
    }

    /// Bytes of rows that were given to callers.
    pub fn found_bytes(&self) -> u64 {
        let counts = &self.counts;
        (counts.device_hits + counts.host_hits + counts.store_hits) * self.row_bytes
    }

    /// Bytes of rows that moved between the tiers: up, and down to where they were not yet.
    pub fn moved_bytes(&self) -> u64 {
        let counts = &self.counts;
        let between_host_and_store = counts.promoted_rows + counts.written_back_rows;
        let between_device_and_host = counts.device_promoted_rows + counts.device_demoted_rows;
        (between_host_and_store + between_device_and_host) * self.row_bytes
    }
}
