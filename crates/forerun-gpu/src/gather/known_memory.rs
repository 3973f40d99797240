//! The kind of memory at an address.

use super::error::GatherError;

/// A kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Memory {
    /// Host memory that the driver does not know.
    Pageable,
    /// Host memory that the device can reach.
    Pinned,
    /// Device memory.
    Device {
        /// The device's number.
        ordinal: usize,
    },
    /// Memory that the driver migrates between host and device.
    Managed,
}

impl Memory {
    /// A description for messages.
    pub(crate) fn description(&self) -> &'static str {
        match self {
            Memory::Pageable => "ordinary host memory",
            Memory::Pinned => "pinned host memory",
            Memory::Device { .. } => "device memory",
            Memory::Managed => "managed memory",
        }
    }
}

/// The memory at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// The kind of memory.
    pub memory: Memory,
    /// The device's address of it; for pageable memory the address itself.
    pub device_address: u64,
    /// First address and length of the surrounding memory, if known.
    pub range: Option<(u64, u64)>,
}

/// A source of locations: the driver, or a list of buffers.
pub trait Locate {
    /// The memory at `address`. Unknown memory is pageable.
    ///
    /// # Errors
    /// [`GatherError::Unknown`] if there is no answer.
    fn locate(&self, address: u64) -> Result<Location, GatherError>;
}

/// A list of buffers.
#[derive(Clone, Debug, Default)]
pub struct KnownMemory {
    ranges: Vec<(u64, u64, Memory, u64)>,
}

impl KnownMemory {
    /// Adds `len` bytes at `address`, with `device_address` as the device's address.
    pub fn add(&mut self, address: u64, len: u64, memory: Memory, device_address: u64) {
        self.ranges.push((address, len, memory, device_address));
    }
}

impl Locate for KnownMemory {
    fn locate(&self, address: u64) -> Result<Location, GatherError> {
        // The end counts as inside, because an empty part of a buffer may be there.
        let inside = |&&(start, len, ..): &&(u64, u64, Memory, u64)| {
            address >= start && address - start <= len
        };
        // Where one buffer ends and another starts, take the one that starts.
        let best = self
            .ranges
            .iter()
            .filter(inside)
            .min_by_key(|&&(start, ..)| address - start);
        Ok(match best {
            Some(&(start, len, memory, device)) => Location {
                memory,
                device_address: device + (address - start),
                range: Some((start, len)),
            },
            None => Location {
                memory: Memory::Pageable,
                device_address: address,
                range: None,
            },
        })
    }
}
