//! The C interface of [`forerun_gpu::table`]: `include/forerun_gpu.h`, which documents each
//! function, and `include/forerun/hash_table.hpp`, a C++ class with HierarchicalKV's names over it.
//!
//! ```text
//!   C, C++ ── forerun_gpu.h ─┬─ operations.rs    by key, scans, bags          failure.rs   results and messages
//!                            ├─ tables.rs        a table and its size         structs.rs   the header's structs
//!                            └─ memory.rs        memory for callers that have no CUDA run time
//!                                    │
//!                           StreamTable: on a GPU one launch on the caller's stream, on the CPU at once
//! ```
//!
//! Nothing panics into the caller. `tests/` compiles the header, compares its structs with those
//! here, and runs programs in C and C++ on the CPU.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![allow(
    clippy::missing_safety_doc,
    reason = "the header states what callers guarantee"
)]

mod failure;
mod handle;
mod memory;
mod operations;
mod structs;
mod tables;

pub use failure::forerun_gpu_last_error;
pub use handle::Table;
pub use memory::{
    forerun_gpu_copy_in, forerun_gpu_copy_out, forerun_gpu_fill, forerun_gpu_memory_alloc,
    forerun_gpu_memory_free,
};
pub use operations::{
    forerun_gpu_accumulate_or_assign, forerun_gpu_assign, forerun_gpu_assign_rows,
    forerun_gpu_assign_scores, forerun_gpu_clear, forerun_gpu_erase, forerun_gpu_erase_if,
    forerun_gpu_export_batch, forerun_gpu_find, forerun_gpu_find_and_update,
    forerun_gpu_find_or_insert, forerun_gpu_find_pooled, forerun_gpu_insert_and_evict,
    forerun_gpu_insert_or_assign, forerun_gpu_lock, forerun_gpu_pooled_sums_bytes,
    forerun_gpu_restore, forerun_gpu_size_if, forerun_gpu_unlock,
};
pub use structs::{Allocator, BagArrays, Condition, EntryArrays, KeyArrays, Options};
pub use tables::{
    forerun_gpu_capacity, forerun_gpu_device, forerun_gpu_load, forerun_gpu_options_init,
    forerun_gpu_reserve, forerun_gpu_reserve_for, forerun_gpu_save, forerun_gpu_set_max_capacity,
    forerun_gpu_size, forerun_gpu_table_create, forerun_gpu_table_destroy, forerun_gpu_version,
};
