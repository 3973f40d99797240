//! The CUDA driver, loaded at run time.
//!
//! ```text
//!   api.rs            loading the driver; its results as errors; functions that older drivers lack
//!   gpu.rs            a device with its context and properties
//!   image.rs          loading the kernels: machine code, PTX or NVRTC's
//!   module.rs         one loaded image, its kernels, and their launch
//!   device_memory.rs  device buffers
//!   pinned.rs         pinned and registered host memory
//!   stream.rs         streams and events
//!   graph.rs          commands captured once, replayed often
//!   capture.rs        the graph that a stream is being captured into
//!   scope.rs          commands for streams, and the scope that makes them safe
//!   locate.rs         what the driver knows about an address
//!   transfer.rs       contiguous copies, and the driver's batch of copies
//! ```
//!
//! The driver's library is loaded on first use, so all of this builds and links without CUDA. No
//! function of the driver is called before [`api::load`] has succeeded.
//!
//! # Memory safety
//! Work on a stream runs after the call that put it there has returned, whereas Rust's borrows end
//! with calls. [`Gpu::scope`] closes that gap as `std::thread::scope` does for threads: a command
//! that is put on a stream within a scope borrows its memory for longer than the scope lasts, and
//! the scope does not end before the device has finished. No Rust reference ever points to device
//! memory, so all methods of [`DeviceBuffer`] take `&self`: kernels and copies that use it at the
//! same time may mix each other's bytes, but do nothing worse.

pub(crate) mod api;
mod capture;
mod device_memory;
mod gpu;
mod graph;
mod image;
mod locate;
mod module;
mod pinned;
mod scope;
mod stream;
mod transfer;

pub use device_memory::{DeviceBuffer, DeviceSlice};
pub(crate) use device_memory::{copy_from_device, copy_to_device, fill_device};
pub use gpu::{DeviceInfo, Gpu, PcieLink};
pub use graph::Graph;
pub(crate) use module::{Kernel, Launch};
pub use pinned::{HostMemory, PinnedBuffer, Registered};
pub(crate) use scope::sealed;
pub use scope::{Command, Scope};
pub use stream::{Event, Stream};
pub(crate) use transfer::BatchCall;
pub use transfer::{BatchTransfer, Piece, Transfer};
