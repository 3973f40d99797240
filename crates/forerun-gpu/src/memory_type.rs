//! The kinds of memory between which rows are copied.

/// A kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryType {
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

impl MemoryType {
    /// A description for messages.
    pub(crate) fn description(&self) -> &'static str {
        match self {
            MemoryType::Pageable => "ordinary host memory",
            MemoryType::Pinned => "pinned host memory",
            MemoryType::Device { .. } => "device memory",
            MemoryType::Managed => "managed memory",
        }
    }
}

/// The memory at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PointerAttributes {
    /// The kind of memory.
    pub memory: MemoryType,
    /// The address at which the device sees it; for pageable memory, the address itself.
    pub device_address: u64,
    /// First address and length of the surrounding memory, if known.
    pub range: Option<(u64, u64)>,
    /// Whether the range may be a piece of memory that goes on behind it: memory of a device that
    /// was mapped (`cuMemMap`) or is a pool's. Any other range is an allocation of its own.
    pub is_piece: bool,
}
