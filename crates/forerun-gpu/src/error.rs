//! What can go wrong between this program and a GPU.

use crate::gather::GatherError;
use std::fmt;

/// A version of CUDA, as the driver tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CudaVersion(
    /// A thousand times the major and ten times the minor number: 13.0 is 13000.
    pub u32,
);

impl fmt::Display for CudaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

/// Why something on the GPU was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// The driver's library is not on this machine.
    #[error("there is no NVIDIA driver: the library libcuda cannot be loaded")]
    NoDriver,
    /// The library is the toolkit's stand-in, which has all functions and does nothing.
    #[error(
        "there is no NVIDIA driver: the library libcuda is the toolkit's stub, made for linking"
    )]
    StubDriver,
    /// There is a driver and no device for it.
    #[error("the NVIDIA driver found no device")]
    NoDevice,
    /// The devices are numbered from 0, and there are not that many.
    #[error("there is no device {ordinal}: this machine has {devices}, numbered from 0")]
    NoSuchDevice {
        /// The device asked for.
        ordinal: usize,
        /// How many there are.
        devices: usize,
    },
    /// The driver is older than what the kernels and calls were made for.
    #[error(
        "the NVIDIA driver is too old: it serves CUDA {found}, and CUDA {needed} or later is needed"
    )]
    DriverTooOld {
        /// What it serves.
        found: CudaVersion,
        /// What is needed.
        needed: CudaVersion,
    },
    /// The device is older than what the kernels were made for.
    #[error(
        "{name} has compute capability {}.{}, and {}.{} or later is needed",
        found.0, found.1, needed.0, needed.1
    )]
    DeviceTooOld {
        /// The device.
        name: String,
        /// Its compute capability, major and minor.
        found: (u32, u32),
        /// What is needed.
        needed: (u32, u32),
    },
    /// A function that only newer drivers have.
    #[error("this NVIDIA driver has no function {name}")]
    MissingFunction {
        /// The function.
        name: &'static str,
    },
    /// No room for an allocation.
    #[error("no room for {bytes} bytes of {memory}")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
        /// Where: `device memory`, `pinned host memory`.
        memory: &'static str,
    },
    /// The device was opened, or the driver loaded, by another process, of which this one is a
    /// fork. The driver does not work in a fork of a process that uses it. Nothing was done.
    #[error(
        "CUDA cannot be used in a fork of a process that uses it; begin the process anew (\"spawn\"): {0}"
    )]
    Forked(#[from] forerun_core::Forked),
    /// A read or write beyond a buffer.
    #[error("bytes {offset} to {offset}+{len} lie outside a buffer of {buffer_len} bytes")]
    OutOfBounds {
        /// The first byte.
        offset: u64,
        /// How many.
        len: u64,
        /// The buffer's length.
        buffer_len: u64,
    },
    /// Two things made on different devices were to work together.
    #[error("{what} belongs to device {found}, and the work runs on device {expected}")]
    OtherDevice {
        /// What.
        what: &'static str,
        /// Its device.
        found: usize,
        /// The work's device.
        expected: usize,
    },
    /// The kernels could not be compiled or loaded.
    #[error("the kernels cannot be made ready: {0}")]
    Kernels(String),
    /// The gather or scatter makes no sense, or its memory is not what it must be.
    #[error(transparent)]
    Refused(#[from] GatherError),
    /// The driver refused a call, or found that earlier work had failed.
    #[error("{call} failed: {name} ({code}), {text}")]
    Driver {
        /// The driver's function.
        call: &'static str,
        /// The driver's number.
        code: u32,
        /// The number's name.
        name: String,
        /// The driver's explanation.
        text: String,
    },
}

impl GpuError {
    /// Whether it only says that this machine has no GPU to use: no driver, or no device.
    pub fn is_absent(&self) -> bool {
        matches!(
            self,
            GpuError::NoDriver | GpuError::StubDriver | GpuError::NoDevice
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_read_as_they_are_spoken_of() {
        assert_eq!(CudaVersion(13_000).to_string(), "13.0");
        assert_eq!(CudaVersion(12_080).to_string(), "12.8");
        assert!(CudaVersion(12_080) < CudaVersion(13_000));
    }

    #[test]
    fn only_a_missing_driver_or_device_counts_as_no_gpu() {
        for error in [GpuError::NoDriver, GpuError::StubDriver, GpuError::NoDevice] {
            assert!(error.is_absent(), "{error}");
        }
        let present = GpuError::NoSuchDevice {
            ordinal: 4,
            devices: 1,
        };
        assert!(!present.is_absent());
        assert_eq!(
            present.to_string(),
            "there is no device 4: this machine has 1, numbered from 0"
        );
    }
}
