//! A hash table from u64 keys to rows of bytes in GPU memory. It never rehashes, evicts by score,
//! and keeps working when every slot is in use. On machines without a GPU the same operations run
//! on the CPU.
//!
//! ```text
//!   bucket       width slots: 16, 32, 64 or 128
//!
//!   digests      | d d d d ... d |      u8 per slot: 0 empty, 1 reclaimed, otherwise 8 bits of the key's hash; one request per row
//!   keys         | k | k | ... k |      u64: any value is a valid key
//!   scores       | s | s | ... s |      u64 or u32: the lowest is evicted first
//!   rows         | row | row | ..|      bytes: in device memory, in pinned host memory, or split by a budget
//!   word         | version | pinned | spilled | locked |      u32 per bucket
//! ```
//!
//! A key's hash determines its buckets: its home, and a spill. New entries may go to the spill when
//! at most 3/16 of the home is free. `docs/internals/gpu-table.md` describes the layout and what
//! each lookup reads. `docs/guide/gpu-table.md` lists the operations that may run at the same time.
//!
//! ```
//! use forerun_gpu::table::{GpuTable, TableOptions};
//!
//! let mut table = GpuTable::open(TableOptions::new(10_000, 4))?; // a GPU's, or this CPU's
//! table.insert_or_assign(&[7, u64::MAX], b"row1row2", None)?;
//! let mut rows = [0; 12];
//! let found = table.find(&[u64::MAX, 8, 7], &mut rows)?;
//! assert_eq!(found, [true, false, true]);
//! assert_eq!(&rows, b"row2\0\0\0\0row1");
//! # Ok::<(), forerun_gpu::table::TableError>(())
//! ```

mod allocator;
mod backend;
mod batch;
mod batch_arrays;
mod candidate_slots;
mod cpu;
mod cpu_arrays;
mod cpu_pooled;
mod device_pooled;
mod device_table;
mod error;
mod evict_strategy;
mod file;
mod gpu_table;
mod growth;
mod host_batch;
mod kernel;
#[cfg(all(test, loom))]
mod loom_tests;
mod operations;
mod options;
pub mod params;
mod pooled_lookup;
mod score;
mod staging;
mod stream_table;
mod table_command;
mod testing;
mod traffic;

pub use allocator::{AllocatedMemory, TableAllocator};
// Hidden: for tests, which run a table on a device that fails.
#[doc(hidden)]
pub use backend::{Backend, BufferKind, HostBatch, TableLaunch};
pub use batch::{Answers, Batch, Condition, Element, Entries, LookupMode, Operation, Status};
pub use batch_arrays::{
    BatchArrays, DeviceBatch, EntryArrays, EntryBuffers, PooledArrays, PooledBatch, RawBatch,
    RawEntries, RawPooledBatch,
};
#[cfg(feature = "study")]
pub(crate) use candidate_slots::mix;
pub use error::TableError;
pub use evict_strategy::GpuEvictStrategy;
pub use forerun_core::pooling::{
    Bags, PooledDtype, Pooling, PoolingError, PoolingOptions, RowFormat, UnknownPooledDtype,
    UnknownPooling, UnknownRowFormat,
};
pub use gpu_table::GpuTable;
pub use options::{Candidates, ScoreBytes, TableOptions, Width};
pub use stream_table::StreamTable;
pub use table_command::{Scan, TableCommand};
// Hidden: for the fuzz targets.
#[doc(hidden)]
pub use testing::fuzz_table_file;
pub use traffic::{Requests, Traffic};

/// One digest, key, score and pin per slot.
type Image = (Vec<u8>, Vec<u64>, Vec<u64>, Vec<bool>);
