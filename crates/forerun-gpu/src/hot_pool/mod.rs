//! Hot pools: the rows of a large pool in host memory that are in use now, in a small pool on the
//! device.
//!
//! ```text
//!   host rows (pinned)   0 1 2 3 4 5 6 7 8 9 ...          a row per token and layer
//!                            |   |       |
//!   table of a request   | 2 | 8 | 4 | 7 |                slots, each with the position that it holds
//!                          ^       ^
//!   positions            4 2 4 9                          read in this step, such as the top-k of sparse attention
//!   answers              the rows of 4, 2, 4: hits; 9 takes the slot of the least recently used row
//! ```
//!
//! One launch resolves a batch: it finds the row of each position, marks it as used, evicts others
//! for those that are missing, fetches them from pinned memory, and answers with rows. It is one
//! kernel, reads everything from memory when it runs, and can be captured in a graph. Layers that
//! read the same positions replay the plan of the first one, without a search.
//!
//! | file               | holds |
//! |--------------------|-------|
//! | `options.rs`       | the shape of a pool and the layout of its state; `params.rs`: the kernels' argument |
//! | `call.rs`          | checks a call, and turns it into that argument |
//! | `twin.rs`          | the kernels' algorithms on the CPU; `cpu_launch.rs` runs them on the argument |
//! | `pool.rs`          | the pool in host memory |
//! | `device_pool.rs`   | the pool on a device |
//! | `host_rows.rs`     | which host row holds which key, backed by a store |
//! | `sglang.rs`        | SGLang's tables, which its own kernel can use too |
//!
//! The method is that of HiSparse in SGLang (pull request 20343) and vLLM (pull request 46326). The
//! kernels are in `kernels/hot_pool/`.

mod call;
mod cpu_launch;
mod device_pool;
mod error;
mod host_rows;
#[cfg(all(test, loom))]
mod loom_tests;
mod options;
#[cfg(test)]
mod options_tests;
pub mod params;
mod pool;
mod sglang;
mod twin;

pub use device_pool::{DeviceHotPlan, DeviceHotPool, DeviceHotPoolBatch, HotPoolCommand};
pub use error::HotPoolError;
pub use host_rows::{AcquireError, HostRows, RowStore};
pub use options::{Eviction, HotPoolOptions, LRU_SLOTS_MAX};
pub use pool::{HotPlan, HotPool, HotPoolBatch, HotPoolCounts};
pub use sglang::{PlannedCopy, SwapIn, Tensor};
