//! Destinations of rows.

use crate::Gpu;
use crate::driver::{DeviceBuffer, DeviceSlice};
use std::fmt;

/// The destination of rows: a device's memory, or ordinary memory if the CPU replaces the device.
pub enum Destination<'a> {
    /// To a device's memory.
    Device(DeviceSlice<'a>),
    /// To ordinary memory.
    Memory(&'a mut [u8]),
}

impl Destination<'_> {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Destination::Device(slice) => slice.len(),
            Destination::Memory(bytes) => bytes.len(),
        }
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The device that holds it, if one does.
    pub fn gpu(&self) -> Option<&Gpu> {
        match self {
            Destination::Device(slice) => Some(slice.gpu()),
            Destination::Memory(_) => None,
        }
    }
}

impl fmt::Debug for Destination<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Destination::Device(slice) => slice.fmt(f),
            Destination::Memory(bytes) => write!(f, "Memory({} bytes)", bytes.len()),
        }
    }
}

impl<'a> From<DeviceSlice<'a>> for Destination<'a> {
    fn from(slice: DeviceSlice<'a>) -> Destination<'a> {
        Destination::Device(slice)
    }
}

impl<'a> From<&'a DeviceBuffer> for Destination<'a> {
    fn from(buffer: &'a DeviceBuffer) -> Destination<'a> {
        Destination::Device(buffer.into())
    }
}

impl<'a> From<&'a mut [u8]> for Destination<'a> {
    fn from(bytes: &'a mut [u8]) -> Destination<'a> {
        Destination::Memory(bytes)
    }
}
