//! A table's memory from another library, such as PyTorch's caching allocator.
//!
//! ```text
//!   allocate(memory, bytes) ─ checked: device, alignment ─ the table uses it ─ the device is idle ─ free
//! ```

use super::batch_arrays::ArrayUse;
use crate::gather::Locate;
use crate::memory_type::MemoryType;
use crate::{Gpu, GpuError};
use std::fmt;
use std::sync::Arc;

/// A kind of memory that a table needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AllocatedMemory {
    /// Memory of the table's device.
    Device,
    /// Pinned host memory that the table's device can reach, for rows beyond
    /// [`device_row_bytes_max`](super::TableOptions::device_row_bytes_max).
    PinnedHost,
}

impl AllocatedMemory {
    fn name(self) -> &'static str {
        match self {
            AllocatedMemory::Device => "device memory of the given allocator",
            AllocatedMemory::PinnedHost => "pinned host memory of the given allocator",
        }
    }
}

/// Allocates a table's arrays and its staging memory:
/// [`GpuTable::on_gpu_with`](super::GpuTable::on_gpu_with). It is called when a table is made, when
/// it grows, when a batch in host memory is larger than all before it, and when the table is
/// dropped; never for an operation on a stream.
///
/// HierarchicalKV's `BaseAllocator` has the same purpose.
///
/// # Safety
/// Memory that `allocate` returns must have that many bytes and stay allocated until `free`, and
/// nothing else may use it. Both may be called by any thread.
pub unsafe trait TableAllocator: Send + Sync {
    /// Allocates `bytes`, at least 1, at a multiple of 256, and returns the address, or `None` for
    /// lack of memory. Pinned memory has the host's address. No work is put on a stream, so the
    /// memory must be free of earlier work by the time this returns.
    fn allocate(&self, memory: AllocatedMemory, bytes: u64) -> Option<u64>;

    /// Frees an allocation. The device has no work on it.
    fn free(&self, memory: AllocatedMemory, address: u64);
}

/// What divides an address that a table's memory may have.
const ALIGN: u64 = 256;

/// Memory that an allocator gave, freed on drop.
pub(super) struct GivenMemory {
    gpu: Gpu,
    allocator: Arc<dyn TableAllocator>,
    memory: AllocatedMemory,
    /// As the allocator gave it.
    given: u64,
    /// As the device sees it.
    address: u64,
    bytes: u64,
}

impl GivenMemory {
    pub(super) fn new(
        gpu: &Gpu,
        allocator: &Arc<dyn TableAllocator>,
        memory: AllocatedMemory,
        bytes: u64,
    ) -> Result<GivenMemory, GpuError> {
        let what = memory.name();
        let Some(given) = allocator.allocate(memory, bytes) else {
            return Err(GpuError::OutOfMemory {
                bytes: usize::try_from(bytes).unwrap_or(usize::MAX),
                memory: what,
            });
        };
        // From here on the memory is freed, also where it is refused.
        let mut held = GivenMemory {
            gpu: gpu.clone(),
            allocator: allocator.clone(),
            memory,
            given,
            address: given,
            bytes,
        };
        let needs = ArrayUse {
            align: ALIGN,
            ..ArrayUse::bytes(what, bytes)
        };
        held.address = needs.place(given, gpu, gpu.info().ordinal)?;
        let found = gpu.locate(given)?.memory;
        let is_pinned = found == MemoryType::Pinned;
        if is_pinned != (memory == AllocatedMemory::PinnedHost) {
            return Err(GpuError::WrongMemory {
                what,
                address: given,
                found: found.description(),
            });
        }
        Ok(held)
    }

    pub(super) fn address(&self) -> u64 {
        self.address
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for GivenMemory {
    fn drop(&mut self) {
        // A fork has no device whose memory could be freed.
        if self.gpu.expect_process().is_err() {
            return;
        }
        // As the driver does before it frees memory. An error means that the context is lost with
        // all work on it.
        let _ = self.gpu.synchronize();
        self.allocator.free(self.memory, self.given);
    }
}

impl fmt::Debug for GivenMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GivenMemory({:#x}, {} bytes)", self.address, self.bytes)
    }
}
