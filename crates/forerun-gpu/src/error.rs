//! Errors of the GPU layer.

use crate::gather_error::GatherError;
use std::fmt;

/// A version of CUDA, as the driver reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CudaVersion(
    /// 1,000 times the major plus 10 times the minor number: 13.0 is 13000.
    pub u32,
);

impl fmt::Display for CudaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

/// Why a GPU operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// This machine has no driver library.
    #[error("there is no NVIDIA driver: the library libcuda cannot be loaded")]
    NoDriver,
    /// The library is the toolkit's stub, which has all functions but does nothing.
    #[error(
        "there is no NVIDIA driver: the library libcuda is the toolkit's stub, made for linking"
    )]
    StubDriver,
    /// The driver finds no device.
    #[error("the NVIDIA driver found no device")]
    NoDevice,
    /// There is no device with this number.
    #[error("there is no device {ordinal}: this machine has {devices}, numbered from 0")]
    NoSuchDevice {
        /// The requested device.
        ordinal: usize,
        /// The number of devices.
        devices: usize,
    },
    /// The driver is older than the kernels and calls require.
    #[error(
        "the NVIDIA driver is too old: it supports CUDA {found}, but CUDA {needed} or later is \
         required"
    )]
    DriverTooOld {
        /// The supported version.
        found: CudaVersion,
        /// The required version.
        needed: CudaVersion,
    },
    /// The driver is older than the kernels' compiler, so it does not load their code.
    #[error(
        "the NVIDIA driver is too old for the kernels of this program: it supports CUDA {found}, \
         but CUDA {needed} or later is required. Install a newer driver, or NVRTC of CUDA {found} \
         or older: {nvrtc}"
    )]
    KernelsTooNew {
        /// The supported version.
        found: CudaVersion,
        /// The required version.
        needed: CudaVersion,
        /// Why compiling the kernels on this machine did not help.
        nvrtc: String,
    },
    /// The device is older than the kernels require.
    #[error(
        "{name} has compute capability {}.{}, but {}.{} or later is required",
        found.0, found.1, needed.0, needed.1
    )]
    DeviceTooOld {
        /// The device.
        name: String,
        /// Its compute capability, major and minor.
        found: (u32, u32),
        /// The required compute capability.
        needed: (u32, u32),
    },
    /// A function that only newer drivers have.
    #[error("this NVIDIA driver has no function {name}")]
    MissingFunction {
        /// The function.
        name: &'static str,
    },
    /// An allocation failed for lack of memory.
    #[error("cannot allocate {bytes} bytes of {memory}")]
    OutOfMemory {
        /// The requested bytes.
        bytes: usize,
        /// The kind of memory: `device memory`, `pinned host memory`.
        memory: &'static str,
    },
    /// This process is a fork, and its parent opened the device or loaded the driver. The driver
    /// does not work in a fork of a process that uses it. Nothing was done.
    #[error(
        "CUDA cannot be used in a fork of a process that uses it; start a new process instead \
         (\"spawn\"): {0}"
    )]
    Forked(forerun_core::Forked),
    /// A read or write is outside the buffer.
    #[error("bytes {offset} to {offset}+{len} are outside a buffer of {buffer_len} bytes")]
    OutOfBounds {
        /// The first byte.
        offset: u64,
        /// The number of bytes.
        len: u64,
        /// The buffer's length.
        buffer_len: u64,
    },
    /// An address that must not be null is null.
    #[error("{what}: the address is null")]
    NullAddress {
        /// What should be there.
        what: &'static str,
    },
    /// An address is not a multiple of the size of what is there.
    #[error("{what}: {address:#x} is not a multiple of {align} bytes")]
    Misaligned {
        /// What should be there.
        what: &'static str,
        /// The address.
        address: u64,
        /// What must divide it.
        align: u64,
    },
    /// Memory that the device cannot use, or not for this.
    #[error("{what}: {address:#x} is {found}, which the device cannot use")]
    WrongMemory {
        /// What should be there.
        what: &'static str,
        /// The address.
        address: u64,
        /// The kind of memory that is there.
        found: &'static str,
    },
    /// An array extends beyond the end of its memory.
    #[error("{what}: {bytes} bytes at {address:#x} are not one piece of memory")]
    PastMemory {
        /// The array.
        what: &'static str,
        /// The address of its first byte.
        address: u64,
        /// Its length in bytes.
        bytes: u64,
    },
    /// An operation combines things of different devices.
    #[error("{what} belongs to device {found}, but the work runs on device {expected}")]
    OtherDevice {
        /// The object on the wrong device.
        what: &'static str,
        /// The object's device.
        found: usize,
        /// The work's device.
        expected: usize,
    },
    /// The kernels could not be compiled or loaded.
    #[error("cannot load the kernels: {0}")]
    Kernels(String),
    /// The gather or scatter is invalid, or its memory is of the wrong kind.
    #[error(transparent)]
    Refused(#[from] GatherError),
    /// The driver rejected a call, or reported that earlier work had failed.
    #[error("{call} failed: {name} ({code}), {text}")]
    Driver {
        /// The function of the driver.
        call: &'static str,
        /// The error number.
        code: u32,
        /// The error's name.
        name: String,
        /// The driver's explanation.
        text: String,
    },
}

impl GpuError {
    /// Whether the error only means that this machine has no usable GPU: no driver, or no device.
    pub fn is_absent(&self) -> bool {
        matches!(
            self,
            GpuError::NoDriver | GpuError::StubDriver | GpuError::NoDevice
        )
    }
}

// Not `#[from]`: that would make `Forked` the source too, and the message already contains it.
impl From<forerun_core::Forked> for GpuError {
    fn from(forked: forerun_core::Forked) -> GpuError {
        GpuError::Forked(forked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuda_versions_display_and_compare() {
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
