//! The CUDA driver, reached at run time.
//!
//! ```text
//!   api.rs      whether there is a driver; its answers as errors; functions that older ones lack
//!   gpu.rs      a device with its context, and what it is
//!   module.rs   kernels of one compiled image, and their launch
//!   memory.rs   device buffers          pinned.rs   pinned and registered host memory
//!   stream.rs   streams and events      graph.rs    commands captured once, replayed often
//!   command.rs  what can be put on a stream, and the scope in which that is safe
//!   locate.rs   what the driver knows of an address
//!   transfer.rs contiguous copies, and the driver's batch of copies
//! ```
//!
//! The driver's library is loaded when it is first asked for, so all of this builds and links
//! without CUDA. Nothing below [`api::load`] runs before that has said that there is a driver.
//!
//! # Which memory may be touched when
//! Work on a stream runs after the call that put it there has returned, while Rust's borrows end
//! with calls. [`Gpu::scope`] closes the gap as `std::thread::scope` does for threads: what is put
//! on a stream within a scope borrows its memory for longer than the scope lasts, and the scope
//! does not end before the device has. Device memory is never seen by a Rust reference, hence all
//! of [`DeviceBuffer`]'s methods take `&self`: kernels and copies that use it at the same time may
//! mix each other's bytes, and nothing worse.

pub(crate) mod api;
mod command;
mod gpu;
mod graph;
mod locate;
mod memory;
mod module;
mod pinned;
mod stream;
mod transfer;

pub(crate) use command::sealed;
pub use command::{Command, Scope};
pub use gpu::{DeviceInfo, Gpu, PcieLink};
pub use graph::Graph;
pub use memory::{DeviceBuffer, DeviceSlice};
pub(crate) use module::{Kernel, Launch};
pub use pinned::{HostMemory, PinnedBuffer, Registered};
pub use stream::{Event, Stream};
pub use transfer::{BatchTransfer, Piece, Transfer};
