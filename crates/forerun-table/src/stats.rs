//! Counters, and what [`Table::stats`](crate::Table::stats) reports.

use std::sync::atomic::{AtomicU64, Ordering};

use forerun_core::{Latency, LatencyHistogram, metrics};

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident),* $(,)?) => {
        metrics! {
            /// Counts since the table was opened.
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            #[cfg_attr(feature = "serde", derive(serde::Serialize))]
            #[non_exhaustive]
            pub struct Counts { $($(#[doc = $doc])+ counter $name: u64,)* }
        }

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
    /// Keys found in no tier.
    misses,
    /// Keys that a tier failed to answer.
    failed_keys,
    /// Rows written: inserted, updated, imported.
    written_rows,
    /// Keys erased, whether they had a row or not.
    erased_keys,
    /// Rows promoted from the store.
    promoted_rows,
    /// Rows that were admitted but not promoted: they changed in between, the tier had no free
    /// slot, or too many were queued.
    unpromoted_rows,
    /// Rows evicted from the host tier.
    demoted_rows,
    /// Rows of the host tier copied to the device.
    device_promoted_rows,
    /// Rows that were admitted to the device but not promoted: their scores were too low, they had
    /// already left the host tier, or too many were queued.
    device_unpromoted_rows,
    /// Rows evicted from the device. They go to the host tier unless it has them already.
    device_demoted_rows,
    /// Flushed or evicted rows that the store did not have yet and that were written to it.
    written_back_rows,
    /// Background moves that failed. Their rows stayed where they were.
    failed_moves,
}

/// One counter.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: usize) {
        if count > 0 {
            // Relaxed: the counts order nothing.
            self.0.fetch_add(count as u64, Ordering::Relaxed);
        }
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Histograms of call durations.
#[derive(Debug, Default)]
pub(crate) struct Clocks {
    pub(crate) find: LatencyHistogram,
    pub(crate) device: LatencyHistogram,
    pub(crate) host: LatencyHistogram,
    pub(crate) store: LatencyHistogram,
    pub(crate) write: LatencyHistogram,
}

metrics! {
    /// Description and contents of a device tier.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize))]
    #[non_exhaustive]
    pub struct DeviceStats {
        /// The device's name: `GPU 0, NVIDIA H100`, or `the CPU`.
        other name: String,
        /// Whether the device is a GPU.
        other is_gpu: bool,
        /// Rows in the tier. All are copies of rows in a tier below.
        gauge rows: u64,
        /// Slots in the tier: whole buckets, so at least the requested number. A GPU's table keeps
        /// some of them free.
        gauge capacity_rows: u64,
        /// Why the tier is disabled, if it has failed. The tiers below keep working.
        other failure: Option<String>,
    }
}

metrics! {
    /// A table's contents, and its activity since it was opened.
    #[derive(Clone, Debug, Default)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize))]
    #[non_exhaustive]
    pub struct TableStats {
        /// Number of events of each kind.
        flat counts: Counts,
        /// Bytes per row.
        gauge row_bytes: u64,
        /// Rows in the host tier.
        gauge host_rows: u64,
        /// Capacity of the host tier in rows.
        gauge host_capacity_rows: u64,
        /// Rows in the host tier that the store does not have yet.
        gauge host_dirty_rows: u64,
        /// Bytes for rows, index and metadata when the host tier is full.
        gauge host_bytes: u64,
        /// Bytes of these in use now.
        gauge host_used_bytes: u64,
        /// The maximum of [`memory_bytes`](TableStats::memory_bytes): the sum of the limits of the
        /// host tier, and of the store's memtables and page cache. The exceptions are listed at
        /// [`Builder::memory_bytes`](crate::Builder::memory_bytes).
        gauge memory_limit_bytes: u64,
        /// The device tier, if the table was built with one.
        group device: Option<DeviceStats>,
        /// Duration of a batch of lookups, from call to answer.
        group find: Latency,
        /// The device tier's share of it.
        group find_device: Latency,
        /// The host tier's share of it.
        group find_host: Latency,
        /// The store's share of it, for batches that read the store.
        group find_store: Latency,
        /// Duration of a batch of writes.
        group write: Latency,
        /// The store's own statistics.
        group store: Option<Box<forerun_db::Stats>>,
    }
}

impl TableStats {
    /// Bytes of memory in use now by the host tier and the store below it: rows, index and
    /// metadata, the store's memtables and its cached pages.
    pub fn memory_bytes(&self) -> u64 {
        let store = self.store.as_ref().map_or(0, |store| {
            store.cache.used_bytes as u64 + store.memtables_used_bytes as u64
        });
        self.host_used_bytes + store
    }

    /// Share of the looked-up keys that the device tier answered.
    pub fn device_hit_rate(&self) -> f64 {
        self.share(self.counts.device_hits)
    }

    /// Share of the looked-up keys that the host tier answered.
    pub fn host_hit_rate(&self) -> f64 {
        self.share(self.counts.host_hits)
    }

    fn share(&self, hits: u64) -> f64 {
        hits as f64 / self.counts.find_keys.max(1) as f64
    }

    /// Bytes of rows returned to callers.
    pub fn found_bytes(&self) -> u64 {
        let counts = &self.counts;
        (counts.device_hits + counts.host_hits + counts.store_hits) * self.row_bytes
    }

    /// Bytes of rows moved between tiers: promoted ones, and demoted ones that the lower tier did
    /// not have.
    pub fn moved_bytes(&self) -> u64 {
        let counts = &self.counts;
        let between_host_and_store = counts.promoted_rows + counts.written_back_rows;
        let between_device_and_host = counts.device_promoted_rows + counts.device_demoted_rows;
        (between_host_and_store + between_device_and_host) * self.row_bytes
    }
}
