//! Tensors of other libraries, through DLPack.
//!
//! ```text
//!   tensor.__dlpack_device__()  ->  kind and number of the device that holds its memory
//!   CPU                         numpy.from_dlpack(tensor): an array over the same memory
//!   another device              refused; the error names the device
//! ```

use numpy::PyUntypedArray;
use pyo3::prelude::*;

use crate::errors::invalid;

/// A kind of device, by its number in DLPack (`DLDeviceType`), and the device's number among those
/// of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Device {
    kind: i32,
    number: i32,
}

const CPU: i32 = 1;
const CUDA: i32 = 2;
const CUDA_HOST: i32 = 3;
const ROCM_HOST: i32 = 11;
const CUDA_MANAGED: i32 = 13;

impl Device {
    /// The device that holds an object's memory.
    fn of(object: &Bound<'_, PyAny>, what: &str) -> PyResult<Device> {
        let reported = object.call_method0("__dlpack_device__")?;
        let (kind, number) = reported
            .call_method0("__iter__")
            .and_then(|_| {
                // The kind may be a member of an enumeration.
                let kind = reported.get_item(0)?.call_method0("__int__")?.extract()?;
                Ok((kind, reported.get_item(1)?.extract()?))
            })
            .map_err(|error| {
                invalid(format!(
                    "cannot tell the device of `{what}`: __dlpack_device__ returned {reported}: \
                     {error}"
                ))
            })?;
        Ok(Device { kind, number })
    }

    /// Whether the CPU can access the memory directly.
    fn is_host(self) -> bool {
        matches!(self.kind, CPU | CUDA_HOST | ROCM_HOST | CUDA_MANAGED)
    }

    /// Whether it is the memory of a GPU that CUDA supports.
    fn is_cuda(self) -> bool {
        self.kind == CUDA
    }
}

/// Whether an object is a tensor in a CUDA device's memory.
pub(crate) fn is_on_cuda(object: &Bound<'_, PyAny>, what: &str) -> PyResult<bool> {
    Ok(!object.is_instance_of::<PyUntypedArray>()
        && object.hasattr("__dlpack_device__")?
        && Device::of(object, what)?.is_cuda())
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.kind {
            CPU => "CPU",
            CUDA => "CUDA device",
            CUDA_HOST => "host memory pinned for CUDA device",
            4 => "OpenCL device",
            7 => "Vulkan device",
            8 => "Metal device",
            10 => "ROCm device",
            ROCM_HOST => "host memory pinned for ROCm device",
            CUDA_MANAGED => "memory managed by CUDA device",
            14 => "oneAPI device",
            kind => return write!(f, "device {} of DLPack's kind {kind}", self.number),
        };
        write!(f, "{kind} {}", self.number)
    }
}

/// An array over the memory of a tensor, which must be in CPU memory.
pub(crate) fn in_host_memory<'py>(
    tensor: &Bound<'py, PyAny>,
    what: &str,
) -> PyResult<Bound<'py, PyUntypedArray>> {
    let device = Device::of(tensor, what)?;
    if !device.is_host() {
        return Err(invalid(format!(
            "`{what}` is on {device}, but must be in CPU memory here"
        )));
    }
    let array = tensor
        .py()
        .import("numpy")?
        .call_method1("from_dlpack", (tensor,));
    let array = array.and_then(|array| Ok(array.cast_into::<PyUntypedArray>()?));
    array.map_err(|error| invalid(format!("`{what}` cannot be imported with DLPack: {error}")))
}
