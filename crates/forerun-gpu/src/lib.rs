//! A hash table in GPU memory, row gathers between pinned host memory and the GPU, and the CUDA
//! layer below both.
//!
//! - [`Gpu`] opens a device, or returns a typed error if there is none. The driver's library is
//!   loaded at run time: this crate builds on machines without CUDA, and everything but its GPU
//!   part runs there.
//! - [`PinnedBuffer`], [`Registered`] and [`DeviceBuffer`] hold bytes. [`Stream`], [`Event`] and
//!   [`Graph`] order work on the device. [`Gpu::scope`] makes their use safe.
//! - [`gather()`](gather::gather) and [`scatter()`](gather::scatter) copy scattered rows from the
//!   host to the device and back. [`gather::cpu`] does the same on the CPU.
//! - [`hot_pool`] holds the rows of a large pinned pool that are in use now in a small pool on the
//!   device, as sparse attention needs.
//! - [`table::GpuTable`] is a hash table from u64 keys to rows that evicts by score. Without a GPU
//!   it runs on the CPU.
//!
//! The kernels are in `kernels/`, without any host code.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod copy_version;
mod cubin;
mod driver;
mod error;
pub mod gather;
mod gather_error;
pub mod hot_pool;
mod layout;
mod memory_type;
#[cfg(feature = "study")]
// Hidden: for the benches.
#[doc(hidden)]
pub mod study;
pub mod table;

pub use driver::{
    BatchTransfer, Command, DeviceBuffer, DeviceInfo, DeviceSlice, Event, Gpu, Graph, HostMemory,
    PcieLink, Piece, PinnedBuffer, Registered, Scope, Stream, Transfer,
};
pub use error::{CudaVersion, GpuError};
pub use forerun_core::Pages;
