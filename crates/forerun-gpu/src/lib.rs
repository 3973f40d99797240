//! A hash table in a GPU's memory, row gathers between pinned host memory and the GPU, and the
//! ground that both stand on.
//!
//! - [`Gpu`] opens a device, or says in a typed error why there is none. The driver's library is
//!   loaded at run time: this crate builds, and all but the GPU's part of it runs, on a machine
//!   without CUDA.
//! - [`PinnedBuffer`], [`Registered`] and [`DeviceBuffer`] hold bytes; [`Stream`], [`Event`] and
//!   [`Graph`] order work on the device; [`Gpu::scope`] makes that safe.
//! - [`gather()`](gather::gather) and [`scatter()`](gather::scatter) copy scattered rows from the
//!   host to the device and back; [`gather::cpu`] does the same on the CPU.
//! - [`table::GpuTable`] is a hash table from u64 keys to rows that evicts by score; without a GPU
//!   it runs on the CPU.
//! - [`RandomReads`] tells what the device's memory gives at random places.
//! - [`MatrixProduct`] keeps a device busy while something else is measured.
//!
//! Kernels stand in `kernels/`, free of host code.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod cubin;
mod driver;
mod error;
pub mod gather;
mod product;
mod random_reads;
pub mod table;

pub use driver::{
    BatchTransfer, Command, DeviceBuffer, DeviceInfo, DeviceSlice, Event, Gpu, Graph, HostMemory,
    PcieLink, Piece, PinnedBuffer, Registered, Scope, Stream, Transfer,
};
pub use error::{CudaVersion, GpuError};
pub use product::MatrixProduct;
pub use random_reads::{RandomReads, RequestBytes};
