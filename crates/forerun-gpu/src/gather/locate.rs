//! What memory lies at an address.

use super::error::GatherError;

/// A kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Memory {
    /// Host memory that no driver knows of.
    Pageable,
    /// Host memory that the device can reach.
    Pinned,
    /// A device's own.
    Device {
        /// Its number.
        ordinal: usize,
    },
    /// Memory that the driver moves between host and device.
    Managed,
}

impl Memory {
    /// In words.
    pub(crate) fn description(&self) -> &'static str {
        match self {
            Memory::Pageable => "ordinary host memory",
            Memory::Pinned => "pinned host memory",
            Memory::Device { .. } => "device memory",
            Memory::Managed => "managed memory",
        }
    }
}

/// What lies at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// The kind.
    pub memory: Memory,
    /// What the device calls the address; for pageable memory the address itself.
    pub device_address: u64,
    /// First address and length of the memory around it, as far as is known.
    pub range: Option<(u64, u64)>,
}

/// Something that knows what lies where: the driver, or a list of buffers.
pub trait Locate {
    /// What lies at `address`. What is not known is pageable.
    ///
    /// # Errors
    /// [`GatherError::Unknown`], if the question cannot be answered.
    fn locate(&self, address: u64) -> Result<Location, GatherError>;
}

/// A list of buffers.
#[derive(Clone, Debug, Default)]
pub struct KnownMemory {
    ranges: Vec<(u64, u64, Memory, u64)>,
}

impl KnownMemory {
    /// Adds `len` bytes at `address`, which the device calls `device_address`.
    pub fn add(&mut self, address: u64, len: u64, memory: Memory, device_address: u64) {
        self.ranges.push((address, len, memory, device_address));
    }
}

impl Locate for KnownMemory {
    fn locate(&self, address: u64) -> Result<Location, GatherError> {
        // The end counts as inside: it is where an empty part of a buffer lies.
        let inside = |&&(start, len, ..): &&(u64, u64, Memory, u64)| {
            address >= start && address - start <= len
        };
        // Where one buffer's end is another's start, the start is meant.
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
