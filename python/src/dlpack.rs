//! Tensors of other libraries, through DLPack.
//!
//! ```text
//!   tensor.__dlpack_device__()  ->  kind and number of the device that holds its memory
//!   CPU                             an array over the same memory
//!   CUDA                            cuda.rs
//!   another device                  refused; the error names the device
//!
//!   tensor.__dlpack__(max_version=(1, 0))  ->  a capsule  ->  Exported: address, shape, type
//! ```
//!
//! NumPy has no bfloat16 and no type of 8 bits with an exponent. An element of such a type is a
//! record with one field, which has the type's name, so that its bytes can be used and nothing
//! takes them for a number.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, dtype};
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyCapsuleMethods, PyDict, PyInt, PyList};

use crate::errors::{invalid, reworded};
use crate::new_objects::{ViewOf, view};
use crate::python_calls::{call, call_method};

/// `DLTensor` of DLPack's header.
#[repr(C)]
pub(crate) struct DlTensor {
    pub(crate) data: *mut c_void,
    pub(crate) device_kind: i32,
    pub(crate) device_number: i32,
    pub(crate) dimensions: i32,
    pub(crate) code: u8,
    pub(crate) bits: u8,
    pub(crate) lanes: u16,
    pub(crate) shape: *const i64,
    pub(crate) strides: *const i64,
    pub(crate) byte_offset: u64,
}

/// `DLManagedTensorVersioned` of DLPack's header.
#[repr(C)]
struct VersionedTensor {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: *const c_void,
    flags: u64,
    tensor: DlTensor,
}

/// The name of a capsule whose pointer is a `DLManagedTensor`, which begins with a `DLTensor`.
const DLTENSOR: &CStr = c"dltensor";
/// The name of a capsule whose pointer is a `DLManagedTensorVersioned`.
const DLTENSOR_VERSIONED: &CStr = c"dltensor_versioned";

/// The major version of DLPack whose structures these are.
const MAJOR: u32 = 1;
/// The flag of memory that must not be written.
const READ_ONLY: u64 = 1;

/// The maximum number of dimensions that is accepted.
const DIMENSIONS_MAX: i32 = 64;

/// DLPack's type codes.
pub(crate) const SIGNED: u8 = 0;
pub(crate) const UNSIGNED: u8 = 1;
pub(crate) const FLOAT: u8 = 2;
pub(crate) const BFLOAT: u8 = 4;
const COMPLEX: u8 = 5;
pub(crate) const BOOLEAN: u8 = 6;
/// The codes of the types with 8 bits that NumPy lacks, from 7 on.
const OF_8_BITS: [&str; 8] = [
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
];

/// The description of a tensor, and its memory, which stays allocated as long as this exists. The
/// capsule keeps its name, so the producer gets the memory back when the capsule is dropped.
pub(crate) struct Exported<'py> {
    capsule: Bound<'py, PyCapsule>,
    data: *mut c_void,
    pub(crate) device_number: i32,
    pub(crate) shape: Vec<u64>,
    /// In elements. `None` if it is contiguous.
    pub(crate) strides: Option<Vec<i64>>,
    pub(crate) code: u8,
    pub(crate) element_bits: u64,
    pub(crate) is_read_only: bool,
}

impl<'py> Exported<'py> {
    /// Exports a tensor. If it is on a GPU, `stream` is the one on which it will be used.
    pub(crate) fn new(
        object: &Bound<'py, PyAny>,
        what: &str,
        stream: Option<i64>,
    ) -> PyResult<Exported<'py>> {
        let (capsule, knows_versions) = capsule_of(object, what, stream)?;
        // SAFETY: by the contract of DLPack, a capsule with one of the two names holds the
        // structure of that name. It lives as long as the capsule, and no Python code runs while it
        // is read. A structure of another major version is only asked for its version.
        let (tensor, is_read_only) = unsafe {
            if capsule.is_valid_checked(Some(DLTENSOR_VERSIONED)) {
                let pointer = capsule.pointer_checked(Some(DLTENSOR_VERSIONED))?;
                let versioned = pointer.cast::<VersionedTensor>();
                let major = (*versioned.as_ptr()).major;
                if major != MAJOR {
                    return Err(invalid(format!(
                        "`{what}` is described by version {major} of DLPack, not by {MAJOR}"
                    )));
                }
                let versioned = versioned.as_ref();
                (&versioned.tensor, versioned.flags & READ_ONLY != 0)
            } else if capsule.is_valid_checked(Some(DLTENSOR)) {
                let pointer = capsule.pointer_checked(Some(DLTENSOR))?;
                // This structure has no flag. A library that knows the versions and uses it all the
                // same may have immutable arrays, as JAX does.
                (pointer.cast::<DlTensor>().as_ref(), knows_versions)
            } else {
                return Err(invalid(format!(
                    "__dlpack__ of `{what}` did not return a capsule \"dltensor\""
                )));
            }
        };
        let wrong = |why: String| Err(invalid(format!("`{what}`: {why}")));
        let dimensions = match tensor.dimensions {
            0..=DIMENSIONS_MAX => tensor.dimensions as usize,
            other => return wrong(format!("a tensor of {other} dimensions")),
        };
        if dimensions > 0 && tensor.shape.is_null() {
            return wrong("a tensor without a shape".to_owned());
        }
        let extents = |from: *const i64| match dimensions {
            0 => &[][..],
            // SAFETY: as above. There are as many extents as dimensions, and as many strides if
            // they are not null.
            _ => unsafe { std::slice::from_raw_parts(from, dimensions) },
        };
        let shape: Option<Vec<u64>> = extents(tensor.shape)
            .iter()
            .map(|&extent| u64::try_from(extent).ok())
            .collect();
        let Some(shape) = shape else {
            return wrong("a tensor with a negative extent".to_owned());
        };
        let strides = (!tensor.strides.is_null()).then(|| extents(tensor.strides).to_vec());
        Ok(Exported {
            data: tensor.data.wrapping_byte_add(tensor.byte_offset as usize),
            device_number: tensor.device_number,
            shape,
            strides,
            code: tensor.code,
            element_bits: u64::from(tensor.bits) * u64::from(tensor.lanes),
            is_read_only,
            capsule,
        })
    }

    /// The address of the first element.
    pub(crate) fn address(&self) -> u64 {
        self.data as u64
    }

    /// What keeps the memory allocated.
    pub(crate) fn keep(&self) -> Py<PyAny> {
        self.capsule.clone().into_any().unbind()
    }

    /// Whether the elements lie one after the other.
    pub(crate) fn is_contiguous(&self) -> bool {
        let Some(strides) = &self.strides else {
            return true;
        };
        let mut expected = 1;
        let is_empty = self.shape.contains(&0);
        is_empty
            || self
                .shape
                .iter()
                .zip(strides)
                .rev()
                .all(|(&extent, &stride)| {
                    let fits = extent == 1 || u64::try_from(stride) == Ok(expected);
                    expected = expected.saturating_mul(extent);
                    fits
                })
    }

    /// NumPy's type for the elements, if they have a size that NumPy can use.
    fn dtype(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyArrayDescr>>> {
        let named = |name: &str| PyArrayDescr::new(py, name).map(Some);
        let record = |name: &str, bits: &str| {
            PyArrayDescr::new(py, PyList::new(py, [(name, bits)])?).map(Some)
        };
        Ok(Some(match (self.code, self.element_bits) {
            (SIGNED, 8) => dtype::<i8>(py),
            (SIGNED, 16) => dtype::<i16>(py),
            (SIGNED, 32) => dtype::<i32>(py),
            (SIGNED, 64) => dtype::<i64>(py),
            (UNSIGNED, 8) => dtype::<u8>(py),
            (UNSIGNED, 16) => dtype::<u16>(py),
            (UNSIGNED, 32) => dtype::<u32>(py),
            (UNSIGNED, 64) => dtype::<u64>(py),
            (FLOAT, 16) => return named("float16"),
            (FLOAT, 32) => dtype::<f32>(py),
            (FLOAT, 64) => dtype::<f64>(py),
            (COMPLEX, 64) => return named("complex64"),
            (COMPLEX, 128) => return named("complex128"),
            (BOOLEAN, 8) => dtype::<bool>(py),
            (BFLOAT, 16) => return record("bfloat16", "u2"),
            (code, 8) => {
                let name = usize::from(code)
                    .checked_sub(7)
                    .and_then(|at| OF_8_BITS.get(at));
                return name.map_or(Ok(None), |name| record(name, "u1"));
            }
            _ => return Ok(None),
        }))
    }

    /// An array over the memory, which must be in CPU memory.
    fn into_array(self, what: &str) -> PyResult<Bound<'py, PyUntypedArray>> {
        let py = self.capsule.py();
        let Some(dtype) = self.dtype(py)? else {
            return Err(invalid(format!(
                "`{what}` has elements of {} bits of DLPack's type {}, which arrays cannot hold",
                self.element_bits, self.code
            )));
        };
        let (Some(shape), Some(strides_bytes)) = self.in_bytes(dtype.itemsize()) else {
            return Err(invalid(format!("`{what}` is larger than memory")));
        };
        let start = if self.shape.contains(&0) {
            // Nothing is read or written there, and it may be null.
            NonNull::<u64>::dangling().as_ptr().cast()
        } else {
            self.data
        };
        if start.is_null() {
            return Err(invalid(format!("`{what}` has no memory")));
        }
        let is_read_only = self.is_read_only;
        let owner = Bound::new(py, MemoryOwner(self.capsule.unbind()))?.into_any();
        let memory = ViewOf {
            start,
            dtype,
            shape,
            strides_bytes,
            is_read_only,
        };
        // SAFETY: the capsule, which the owner holds, keeps the memory of all elements allocated.
        unsafe { view(memory, owner) }
    }

    /// The extents, and the bytes from one element to the next, unless they are larger than memory.
    fn in_bytes(&self, element_bytes: usize) -> (Option<Vec<usize>>, Option<Vec<isize>>) {
        let shape: Option<Vec<usize>> = self.shape.iter().map(|&at| at.try_into().ok()).collect();
        let mut step = isize::try_from(element_bytes).ok();
        let strides = match &self.strides {
            Some(strides) => strides
                .iter()
                .map(|&stride| isize::try_from(stride).ok()?.checked_mul(step?))
                .collect(),
            None => {
                let contiguous = self.shape.iter().rev().map(|&extent| {
                    let stride = step?;
                    step = stride.checked_mul(isize::try_from(extent.max(1)).ok()?);
                    Some(stride)
                });
                contiguous
                    .collect::<Option<Vec<isize>>>()
                    .map(|mut strides| {
                        strides.reverse();
                        strides
                    })
            }
        };
        (shape, strides.filter(|_| step.is_some()))
    }
}

/// Owns the memory of an array. The capsule stays private: code that took it out of the array could
/// give the memory back.
#[pyclass(frozen, module = "forerun")]
struct MemoryOwner(#[expect(dead_code, reason = "it owns the memory")] Py<PyCapsule>);

/// What `__dlpack__` returns, and whether the library knows that DLPack has versions.
fn capsule_of<'py>(
    object: &Bound<'py, PyAny>,
    what: &str,
    stream: Option<i64>,
) -> PyResult<(Bound<'py, PyCapsule>, bool)> {
    let py = object.py();
    let export = object.getattr(intern!(py, "__dlpack__"))?;
    let keywords = PyDict::new(py);
    keywords.set_item(intern!(py, "max_version"), (MAJOR, 0))?;
    if let Some(stream) = stream {
        keywords.set_item(intern!(py, "stream"), stream)?;
    }
    let mut capsule = call(&export, (), Some(&keywords));
    let mut knows_versions = true;
    if let Err(error) = &capsule
        && error.is_instance_of::<PyTypeError>(py)
    {
        knows_versions = false;
        keywords.del_item("max_version")?;
        capsule = call(&export, (), Some(&keywords));
    }
    let worded =
        |error: &PyErr| invalid(format!("`{what}` cannot be imported with DLPack: {error}"));
    let capsule = capsule.map_err(|error| {
        if error.is_instance_of::<PyBufferError>(py) {
            worded(&error)
        } else {
            reworded(py, error, worded)
        }
    })?;
    let capsule = capsule
        .cast_into::<PyCapsule>()
        .map_err(|error| worded(&error.into()))?;
    Ok((capsule, knows_versions))
}

/// A kind of device, by its number in DLPack (`DLDeviceType`), and the device's number among those
/// of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Device {
    kind: i32,
    number: i32,
}

const CPU: i32 = 1;
pub(crate) const CUDA: i32 = 2;
const CUDA_HOST: i32 = 3;
const ROCM_HOST: i32 = 11;
const CUDA_MANAGED: i32 = 13;

impl Device {
    /// The device that holds an object's memory.
    fn of(object: &Bound<'_, PyAny>, what: &str) -> PyResult<Device> {
        let name = intern!(object.py(), "__dlpack_device__");
        let reported = call_method(object, name, ())?;
        let parse = || {
            let (kind, number) = reported.extract::<(Bound<'_, PyAny>, i32)>()?;
            // The kind may be a member of an enumeration.
            let kind = call(&object.py().get_type::<PyInt>(), (kind,), None)?.extract()?;
            Ok(Device { kind, number })
        };
        parse().map_err(|error| {
            reworded(object.py(), error, |error| {
                invalid(format!(
                    "cannot tell the device of `{what}`: __dlpack_device__ returned {reported}: \
                     {error}"
                ))
            })
        })
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
    Exported::new(tensor, what, None)?.into_array(what)
}
