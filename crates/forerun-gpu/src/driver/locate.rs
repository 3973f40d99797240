//! Queries the driver about an address.

use super::api::check;
use crate::memory_type::{MemoryType, PointerAttributes};
use crate::{Gpu, GpuError};
use cudarc::driver::sys::{self, CUmemorytype, CUpointer_attribute as Attribute};
use std::ffi::c_void;

impl Gpu {
    /// Asks the driver what kind of memory is at an address. Unknown memory is pageable.
    pub(crate) fn locate_by_driver(&self, address: u64) -> Result<PointerAttributes, GpuError> {
        let _current = self.bind()?;
        let mut memory_type = 0u32;
        let mut ordinal = -1i32;
        let mut managed = 0u32;
        let mut start = 0u64;
        let mut len = 0usize;
        let mut seen = 0u64;
        let mut is_own = 0u32;
        let mut attributes = [
            Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
            Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED,
            Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
            Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE,
            Attribute::CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
            // Whether other processes can open it by `cuIpcGetMemHandle`, as each allocation of
            // `cuMemAlloc`, but nothing that was mapped or is a pool's.
            Attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
        ];
        let mut places: [*mut c_void; 7] = [
            (&raw mut memory_type).cast(),
            (&raw mut ordinal).cast(),
            (&raw mut managed).cast(),
            (&raw mut start).cast(),
            (&raw mut len).cast(),
            (&raw mut seen).cast(),
            (&raw mut is_own).cast(),
        ];
        // Unlike the call for one attribute, this one leaves zeros for addresses that the driver
        // does not know.
        // SAFETY: there are seven attributes, each with a place of the size that its documentation
        // gives.
        check("cuPointerGetAttributes", unsafe {
            sys::cuPointerGetAttributes(
                attributes.len() as u32,
                attributes.as_mut_ptr(),
                places.as_mut_ptr(),
                address,
            )
        })?;
        let (memory, device_address) = if managed != 0 {
            (MemoryType::Managed, address)
        } else if memory_type == CUmemorytype::CU_MEMORYTYPE_HOST as u32 {
            // The address that cuMemHostGetDevicePointer returns, also for addresses inside an
            // allocation.
            (MemoryType::Pinned, seen)
        } else if memory_type == CUmemorytype::CU_MEMORYTYPE_DEVICE as u32 {
            let ordinal = ordinal.max(0) as usize;
            (MemoryType::Device { ordinal }, address)
        } else {
            (MemoryType::Pageable, address)
        };
        let len = len as u64;
        let inside = len != 0 && address >= start && address - start < len;
        Ok(PointerAttributes {
            memory,
            device_address,
            range: (inside && memory != MemoryType::Pageable).then_some((start, len)),
            is_piece: matches!(memory, MemoryType::Device { .. }) && is_own == 0,
        })
    }
}
