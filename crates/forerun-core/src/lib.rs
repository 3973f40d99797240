//! The foundation of all Forerun crates.
//!
//! - [`touch`] and [`interleave`]: every cache miss is an await, so that several lookups wait at
//!   the same time;
//! - [`prefetch_ahead`]: the keys of a batch, prefetched before their turn;
//! - [`arch`]: prefetch, the cache line size, and the instruction set, which is chosen at run time;
//! - [`CachePadded`]: a value in cache lines of its own;
//! - [`above_standard_streams`]: open files that nothing printed can reach;
//! - [`hashing`]: a seeded permutation of 64-bit keys;
//! - [`Owner`], [`ProcessBound`] and [`PerProcess`]: which process a handle belongs to;
//! - [`epoch`]: epoch-based reclamation that survives a fork;
//! - [`LatencyHistogram`]: how long calls take; [`prometheus_text()`]: statistics for Prometheus;
//! - [`memory_limit`] and [`MemoryPressure`]: how much memory the process may use, and whether it
//!   is scarce;
//! - [`pooling`]: sums of the rows of bags of keys, and the formats of rows;
//! - [`region`]: zeroed memory from `mmap`, with huge pages if the kernel grants them;
//! - [`size`]: sizes as people write them, such as `2GiB`;
//! - [`split_mix64`]: a random generator with one word of state;
//! - [`sync`]: the locks, threads and clocks of all crates, which test builds can replace;
//! - [`start_write_out`]: a file's bytes, begun to be written to the device before a sync.

#![cfg_attr(tsan, feature(test))]

pub mod arch;
mod cache_padded;
mod descriptors;
mod duration_buckets;
pub mod epoch;
pub mod hashing;
mod interleave;
mod latency;
// Hidden because the macro `metrics!` names its items; users see those that are exported below.
#[doc(hidden)]
pub mod metrics;
mod names;
mod panic_message;
pub mod pooling;
mod prefetch_ahead;
mod process;
mod process_memory;
mod prometheus_text;
pub mod region;
mod setters;
pub mod size;
mod split_mix;
pub mod sync;
mod touch;
mod uninhabited_stream;
mod write_out;

pub use arch::CACHE_LINE_BYTES;
pub use cache_padded::CachePadded;
pub use descriptors::{above_standard_streams, open_above_standard_streams};
pub use duration_buckets::DurationBuckets;
pub use interleave::{
    Driver, MemoryOnly, Wait, block_on, block_on_with, interleave, interleave_with,
};
pub use latency::{Latency, LatencyHistogram};
pub use metrics::{Metric, MetricKind, Metrics};
pub use panic_message::panic_message;
pub use prefetch_ahead::prefetch_ahead;
pub use process::{Forked, LeakedInFork, Owner, PerProcess, ProcessBound};
#[cfg(feature = "study")]
pub use process_memory::study as memory_study;
pub use process_memory::{
    MemoryLimit, MemoryLimitSource, MemoryPressure, memory_limit, physical_memory_bytes,
};
pub use prometheus_text::prometheus_text;
pub use region::{Atomics, Backing, CacheLine, CacheLines, Pages, Region, RegionError};
pub use split_mix::split_mix64;
pub use touch::{Touch, suspend, touch};
pub use write_out::start_write_out;
