//! Finds the kind of memory at an address: asks the driver, or searches a list of buffers.

use crate::gather_error::GatherError;
use crate::memory_type::{MemoryType, PointerAttributes};

/// A source of locations: the driver, or a list of buffers.
pub trait Locate {
    /// The memory at `address`. Unknown memory is pageable.
    ///
    /// # Errors
    /// [`GatherError::Unknown`] if there is no answer.
    fn locate(&self, address: u64) -> Result<PointerAttributes, GatherError>;
}

/// A list of buffers.
#[derive(Clone, Debug, Default)]
pub struct KnownMemory {
    /// Ascending by address, then by length.
    ranges: Vec<(u64, u64, MemoryType, u64)>,
}

impl KnownMemory {
    /// Adds `len` bytes at `address`, with `device_address` as the device's address.
    pub fn add(&mut self, address: u64, len: u64, memory: MemoryType, device_address: u64) {
        let before = self
            .ranges
            .partition_point(|&(start, length, ..)| (start, length) < (address, len));
        self.ranges
            .insert(before, (address, len, memory, device_address));
    }
}

impl Locate for KnownMemory {
    fn locate(&self, address: u64) -> Result<PointerAttributes, GatherError> {
        // The end counts as inside, because an empty part of a buffer may be there.
        let inside = |&&(start, len, ..): &&(u64, u64, MemoryType, u64)| address - start <= len;
        // Where one buffer ends and another starts, take the one that starts.
        let after = self.ranges.partition_point(|range| range.0 <= address);
        let best = self.ranges[..after].iter().rev().find(inside);
        Ok(match best {
            Some(&(start, len, memory, device)) => PointerAttributes {
                memory,
                device_address: device + (address - start),
                range: Some((start, len)),
            },
            None => PointerAttributes {
                memory: MemoryType::Pageable,
                device_address: address,
                range: None,
            },
        })
    }
}
