//! Backends run a table's kernels: they provide device memory, and launch kernels in order.
//!
//! ```text
//!   DeviceTable ── Backend ─┬─ GpuBackend     a device and three of its streams
//!                           └─ in tests  the shim, in a separate process
//!
//!   lookups       copy in ─ launch ─ copy out ─ wait     those that may run beside writers
//!   others        copy in ─ launch ─ copy out ─ wait     writers, scans, and all other calls
//!   allocations   fill with zeros ─ wait                 memory that nothing uses yet
//! ```
//!
//! No call uses the default stream, where other libraries put work, and every call waits for its
//! own work. So nothing is in flight between calls: memory can be freed, and two calls that do not
//! overlap on the host do not overlap on the device.

use super::allocator::{AllocatedMemory, GivenMemory, TableAllocator};
use super::error::TableError;
use super::params::TableOp;
use crate::driver::{
    DeviceBuffer, HostMemory, Launch, PinnedBuffer, Stream, copy_from_device, copy_to_device,
    fill_device,
};
use crate::{Gpu, GpuError};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use forerun_core::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum blocks per multiprocessor. This is more than run at a time, so that a multiprocessor
/// that finishes early gets another block. The kernel loops over the rest of the work.
pub(crate) const BLOCKS_EACH: u32 = 64;

/// Where an allocation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferKind {
    /// In device memory, with unspecified content.
    Device,
    /// In device memory, zeros at first.
    Zeroed,
    /// In pinned host memory that the device can reach.
    PinnedHost,
}

/// A launch of a kernel by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableLaunch {
    /// The name in `kernels/table.list`.
    pub kernel: &'static str,
    /// Number of blocks of the grid.
    pub blocks: u32,
    /// Threads per block.
    pub threads: u32,
}

/// The input and output of a launch in host memory, staged in one piece of device memory.
pub struct HostBatch<'a> {
    /// Its device address.
    pub address: u64,
    /// Bytes to copy in, from the start.
    pub input_bytes: u64,
    /// Bytes to copy back. They may overlap those copied in.
    pub output: Range<u64>,
    /// Writes the bytes to copy in.
    pub fill: &'a mut dyn FnMut(&mut [u8]),
    /// Gets the bytes copied back.
    pub take: &'a mut dyn FnMut(&[u8]),
}

/// Runs the kernels of a table. A call returns when the device has done its work, even if it fails.
///
/// Addresses are the device's. An implementation promises that an allocation stays where it is
/// until it is freed, and that a launch runs the kernel with that name.
pub trait Backend: Send {
    /// Allocates this many bytes (at least 1), aligned to 256.
    ///
    /// # Errors
    /// Out of memory.
    fn allocate(&self, bytes: u64, kind: BufferKind) -> Result<u64, TableError>;
    /// Frees an allocation.
    fn free(&self, address: u64);
    /// Copies to the device.
    ///
    /// # Errors
    /// The device's error.
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), TableError>;
    /// Copies from the device.
    ///
    /// # Errors
    /// The device's error.
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), TableError>;
    /// Runs a kernel.
    ///
    /// # Errors
    /// The device's error.
    fn launch(&self, launch: TableLaunch, op: &TableOp) -> Result<(), TableError>;
    /// Copies a batch in, launches a kernel and copies the answers back.
    ///
    /// # Errors
    /// The device's error.
    fn run(
        &self,
        launch: TableLaunch,
        op: &TableOp,
        batch: HostBatch<'_>,
    ) -> Result<(), TableError> {
        let mut input = vec![0; batch.input_bytes as usize];
        (batch.fill)(&mut input);
        self.write(batch.address, &input)?;
        self.launch(launch, op)?;
        let mut output = vec![0; (batch.output.end - batch.output.start) as usize];
        if !output.is_empty() {
            self.read(batch.address + batch.output.start, &mut output)?;
        }
        (batch.take)(&output);
        Ok(())
    }
    /// The maximum useful number of blocks of a kernel.
    fn blocks_max(&self) -> u32;
    /// The device, if there is one.
    fn gpu(&self) -> Option<&Gpu>;
}

enum Buffer {
    Device(DeviceBuffer),
    Pinned(PinnedBuffer),
    Given(GivenMemory),
}

impl Buffer {
    fn len(&self) -> u64 {
        match self {
            Buffer::Device(buffer) => buffer.len() as u64,
            Buffer::Pinned(buffer) => buffer.len() as u64,
            Buffer::Given(memory) => memory.bytes(),
        }
    }
}

/// A stream for batches in host memory.
struct Lane {
    stream: Stream,
    /// The host's side of a batch, as large as the largest so far.
    pinned: Mutex<Option<PinnedBuffer>>,
}

impl Lane {
    fn new(gpu: &Gpu) -> Result<Lane, GpuError> {
        Ok(Lane {
            stream: Stream::new(gpu)?,
            pinned: Mutex::default(),
        })
    }
}

/// A device, and streams for the calls.
pub(crate) struct GpuBackend {
    lookups: Lane,
    /// Writers, and everything but batches.
    others: Lane,
    /// Fills new memory with zeros, for lookups and writers.
    allocations: Stream,
    /// Allocates instead of the driver.
    allocator: Option<Arc<dyn TableAllocator>>,
    /// Allocations by device address.
    held: Mutex<BTreeMap<u64, Buffer>>,
}

impl GpuBackend {
    pub(crate) fn new(
        gpu: &Gpu,
        allocator: Option<Arc<dyn TableAllocator>>,
    ) -> Result<GpuBackend, GpuError> {
        Ok(GpuBackend {
            lookups: Lane::new(gpu)?,
            others: Lane::new(gpu)?,
            allocations: Stream::new(gpu)?,
            allocator,
            held: Mutex::default(),
        })
    }

    fn gpu(&self) -> &Gpu {
        self.others.stream.gpu()
    }

    fn launch_on(
        &self,
        stream: &Stream,
        launch: TableLaunch,
        op: &TableOp,
    ) -> Result<(), TableError> {
        let kernel = self.gpu().kernel(launch.kernel)?;
        let grid = Launch {
            blocks: launch.blocks,
            threads: launch.threads,
            shared_bytes: 0,
        };
        // SAFETY: the kernels of table.list take a TableOp, whose layout both sides assert. Its
        // addresses come from `allocate`. The memory is not freed before the caller, which waits
        // for the stream, has returned. `DeviceTable` lays out each array with the length that the
        // count requires.
        Ok(unsafe { kernel.launch(stream, grid, op) }?)
    }

    /// Allocates with the given allocator.
    fn allocate_with(
        &self,
        allocator: &Arc<dyn TableAllocator>,
        bytes: u64,
        kind: BufferKind,
    ) -> Result<(u64, Buffer), GpuError> {
        let memory = match kind {
            BufferKind::Device | BufferKind::Zeroed => AllocatedMemory::Device,
            BufferKind::PinnedHost => AllocatedMemory::PinnedHost,
        };
        let given = GivenMemory::new(self.gpu(), allocator, memory, bytes)?;
        let address = given.address();
        if kind == BufferKind::Zeroed {
            // SAFETY: the allocator guarantees the bytes, and nothing uses them yet.
            unsafe { fill_device(&self.allocations, address, 0, bytes as usize) }?;
            self.allocations.synchronize()?;
        }
        Ok((address, Buffer::Given(given)))
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<u64, Buffer>> {
        // A panic elsewhere leaves the map consistent.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts both copies of a batch and the launch on a stream. The caller waits for it before it
    /// uses `memory` again.
    fn enqueue(
        &self,
        stream: &Stream,
        launch: TableLaunch,
        op: &TableOp,
        batch: &HostBatch<'_>,
        memory: &mut PinnedBuffer,
    ) -> Result<(), TableError> {
        let input = 0..batch.input_bytes as usize;
        // SAFETY: the device's bytes are inside an allocation, and the host's inside `memory`. The
        // caller holds the locks of both and waits before anything else uses them.
        unsafe { memory.copy_to(stream, batch.address, input) }?;
        self.launch_on(stream, launch, op)?;
        let output = batch.output.start as usize..batch.output.end as usize;
        if !output.is_empty() {
            let from = batch.address + batch.output.start;
            // SAFETY: as above.
            unsafe { memory.copy_from(stream, from, output) }?;
        }
        Ok(())
    }

    /// Checks that an allocation contains a range of device addresses.
    ///
    /// The copies themselves are made without the lock, so that lookups do not wait for them. The
    /// caller frees no allocation while it uses it.
    fn expect_allocated(&self, address: u64, bytes: u64) -> Result<(), GpuError> {
        self.gpu().expect_process()?;
        let held = self.held();
        let found = held.range(..=address).next_back();
        match found {
            Some((start, held)) if held.len() >= (address - start).saturating_add(bytes) => Ok(()),
            _ => Err(GpuError::OutOfBounds {
                offset: address,
                len: bytes,
                buffer_len: found.map_or(0, |(_, held)| held.len()),
            }),
        }
    }
}

impl Backend for GpuBackend {
    fn allocate(&self, bytes: u64, kind: BufferKind) -> Result<u64, TableError> {
        let gpu = GpuBackend::gpu(self);
        gpu.expect_process()?;
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        let (address, held) = match kind {
            _ if let Some(allocator) = &self.allocator => {
                self.allocate_with(allocator, bytes, kind)?
            }
            BufferKind::Device | BufferKind::Zeroed => {
                let buffer = DeviceBuffer::new(gpu, len)?;
                if kind == BufferKind::Zeroed {
                    buffer.fill_on(&self.allocations, 0)?;
                }
                (buffer.address(), Buffer::Device(buffer))
            }
            BufferKind::PinnedHost => {
                let buffer = PinnedBuffer::new(gpu, len)?;
                (buffer.device_address(), Buffer::Pinned(buffer))
            }
        };
        self.held().insert(address, held);
        Ok(address)
    }

    fn free(&self, address: u64) {
        // In a fork, another thread may have held the lock, and there is no memory to free.
        if self.gpu().expect_process().is_err() {
            return;
        }
        let freed = self.held().remove(&address);
        // Without the lock: the driver waits for all work on the device.
        drop(freed);
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), TableError> {
        self.expect_allocated(address, bytes.len() as u64)?;
        // SAFETY: the device's bytes are inside an allocation, which the caller does not free
        // meanwhile.
        Ok(unsafe { copy_to_device(&self.others.stream, address, bytes) }?)
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), TableError> {
        self.expect_allocated(address, bytes.len() as u64)?;
        // SAFETY: as above.
        Ok(unsafe { copy_from_device(&self.others.stream, address, bytes) }?)
    }

    fn launch(&self, launch: TableLaunch, op: &TableOp) -> Result<(), TableError> {
        self.launch_on(&self.others.stream, launch, op)?;
        Ok(self.others.stream.synchronize()?)
    }

    fn run(
        &self,
        launch: TableLaunch,
        op: &TableOp,
        batch: HostBatch<'_>,
    ) -> Result<(), TableError> {
        let bytes = batch.input_bytes.max(batch.output.end) as usize;
        // Only lookups are prepared for writers beside them.
        let lane = match op.concurrent_writers {
            0 => &self.others,
            _ => &self.lookups,
        };
        // A panic elsewhere leaves the buffer usable: each batch fills it again.
        let mut pinned = lane.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = match &mut *pinned {
            Some(memory) if memory.len() >= bytes => memory,
            smaller => {
                // Free the old one before the new one is allocated.
                *smaller = None;
                let len = bytes.next_power_of_two().max(1 << 16);
                smaller.insert(PinnedBuffer::new(GpuBackend::gpu(self), len)?)
            }
        };
        (batch.fill)(&mut memory.as_mut_slice()[..batch.input_bytes as usize]);
        self.expect_allocated(batch.address, bytes as u64)?;
        let enqueued = self.enqueue(&lane.stream, launch, op, &batch, memory);
        // Wait even after a failure: a copy may be in progress.
        let waited = lane.stream.synchronize();
        enqueued?;
        waited?;
        let output = batch.output.start as usize..batch.output.end as usize;
        (batch.take)(&memory.as_slice()[output]);
        Ok(())
    }

    fn blocks_max(&self) -> u32 {
        GpuBackend::gpu(self).info().multiprocessors * BLOCKS_EACH
    }

    fn gpu(&self) -> Option<&Gpu> {
        Some(GpuBackend::gpu(self))
    }
}
