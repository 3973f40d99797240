//! `DeviceArray`: memory of a GPU that this package allocates, for libraries whose arrays cannot be
//! written, such as JAX's.
//!
//! ```text
//!   call ─ writes it on a stream ─ event          __dlpack__(stream) ─ that stream waits for the event
//!                                                 capsule ─ DlManagedTensor: shape, the memory's owner
//! ```

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use forerun::gpu::{DeviceBuffer, Event, Gpu, Stream};
use forerun::table::Dtype;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::cuda::{CallersStream, stream_of};
use crate::dlpack::{BFLOAT, CUDA, DlTensor, FLOAT, SIGNED, UNSIGNED};
use crate::errors::{device_exception, invalid};

/// `DLManagedTensor` of DLPack's header, and what it owns.
#[repr(C)]
struct ManagedTensor {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedTensor)>,
    shape: Vec<i64>,
    _memory: Arc<DeviceBuffer>,
}

/// An array in a GPU's memory. `__dlpack__` gives it to other libraries without a copy:
/// `torch.from_dlpack(array)`, `cupy.from_dlpack(array)`, `jax.dlpack.from_dlpack(array)`.
#[pyclass(frozen, module = "forerun.gpu_table")]
pub(crate) struct DeviceArray {
    memory: Arc<DeviceBuffer>,
    shape: Vec<i64>,
    dtype: Dtype,
    /// Recorded after the last call that writes it.
    written: Mutex<Option<Event>>,
}

impl DeviceArray {
    /// Allocates an array with unspecified content.
    pub(crate) fn new(gpu: &Gpu, shape: &[usize], dtype: Dtype) -> PyResult<DeviceArray> {
        let too_large = || invalid("the array is larger than memory");
        let mut bytes = Some(dtype.bytes());
        let mut extents = Vec::new();
        for &extent in shape {
            bytes = bytes.and_then(|bytes| bytes.checked_mul(extent));
            extents.push(i64::try_from(extent).map_err(|_| too_large())?);
        }
        let memory = DeviceBuffer::new(gpu, bytes.ok_or_else(too_large)?);
        Ok(DeviceArray {
            memory: Arc::new(memory.map_err(device_exception)?),
            shape: extents,
            dtype,
            written: Mutex::default(),
        })
    }

    /// The address of its first byte, and its length.
    pub(crate) fn memory(&self) -> (u64, usize) {
        (self.memory.address(), self.memory.len())
    }

    /// Records that work at the end of this stream writes it.
    pub(crate) fn mark(&self, stream: CallersStream) -> PyResult<()> {
        let gpu = self.memory.gpu();
        // SAFETY: the caller of the Python function guarantees a stream of the device's primary
        // context that outlives the call.
        let stream = unsafe { Stream::borrowed(gpu, stream.handle()) };
        if stream.is_captured().map_err(device_exception)? {
            // No stream outside the graph can wait for an event in it.
            return Ok(());
        }
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let event = match written.take() {
            Some(event) => event,
            None => Event::new(gpu).map_err(device_exception)?,
        };
        let recorded = stream.record(&event).map_err(device_exception);
        *written = Some(event);
        recorded
    }

    /// Makes later work of a stream wait for what writes it.
    fn order(&self, stream: CallersStream) -> PyResult<()> {
        let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(event) = &*written else {
            return Ok(());
        };
        // SAFETY: as in `mark`.
        let stream = unsafe { Stream::borrowed(self.memory.gpu(), stream.handle()) };
        stream.wait(event).map_err(device_exception)
    }
}

const DLTENSOR: &CStr = c"dltensor";

/// Gives the memory back, for a consumer of the capsule.
///
/// # Safety
/// The tensor must come from `__dlpack__`, and must not be used any more.
unsafe extern "C" fn delete(tensor: *mut ManagedTensor) {
    // SAFETY: the caller guarantees it. Dropping the memory calls the driver, not Python.
    drop(unsafe { Box::from_raw(tensor) });
}

/// Gives the memory back if no consumer has taken it.
///
/// # Safety
/// Python calls it with a capsule that `__dlpack__` made.
unsafe extern "C" fn destroy(capsule: *mut ffi::PyObject) {
    // SAFETY: it is a capsule. A consumer renames it.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, DLTENSOR.as_ptr()) == 1 {
            let tensor = ffi::PyCapsule_GetPointer(capsule, DLTENSOR.as_ptr());
            if let Some(tensor) = NonNull::new(tensor.cast::<ManagedTensor>()) {
                delete(tensor.as_ptr());
            }
        }
    }
}

#[pymethods]
impl DeviceArray {
    /// Its shape.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    /// The name of its elements' type.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.dtype.name()
    }

    fn __dlpack_device__(&self) -> (i32, usize) {
        (CUDA, self.memory.gpu().info().ordinal)
    }

    /// Exports the array. The consumer's `stream` waits until the array is written; -1 for none.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<&Bound<'py, PyAny>>,
        dl_device: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _ = (max_version, dl_device);
        if copy == Some(true) {
            return Err(pyo3::exceptions::PyBufferError::new_err(
                "a DeviceArray is exported without a copy",
            ));
        }
        let is_unordered = match stream {
            Some(stream) => stream.eq(-1)?,
            None => false,
        };
        if !is_unordered {
            let asked = match stream {
                Some(given) => stream_of(Some(given), given)?,
                None => CallersStream::DEFAULT,
            };
            self.order(asked)?;
        }
        let code = match self.dtype {
            Dtype::I8 | Dtype::I32 | Dtype::I64 => SIGNED,
            Dtype::U8 => UNSIGNED,
            Dtype::Bf16 => BFLOAT,
            _ => FLOAT,
        };
        let mut managed = Box::new(ManagedTensor {
            tensor: DlTensor {
                data: self.memory.address() as *mut c_void,
                device_kind: CUDA,
                device_number: self.memory.gpu().info().ordinal as i32,
                dimensions: self.shape.len() as i32,
                code,
                bits: self.dtype.bytes() as u8 * 8,
                lanes: 1,
                shape: std::ptr::null(),
                strides: std::ptr::null(),
                byte_offset: 0,
            },
            context: std::ptr::null_mut(),
            deleter: Some(delete),
            shape: self.shape.clone(),
            _memory: self.memory.clone(),
        });
        managed.tensor.shape = managed.shape.as_ptr();
        let managed = Box::into_raw(managed);
        // SAFETY: the name is constant. The destructor deletes the tensor if no consumer takes it.
        unsafe {
            let capsule = ffi::PyCapsule_New(managed.cast(), DLTENSOR.as_ptr(), Some(destroy));
            if capsule.is_null() {
                delete(managed);
            }
            Bound::from_owned_ptr_or_err(py, capsule)
        }
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(invalid("an array on a GPU cannot be pickled"))
    }

    fn __repr__(&self) -> String {
        format!(
            "forerun.gpu_table.DeviceArray(shape={:?}, dtype={}, device={})",
            self.shape,
            self.dtype.name(),
            self.memory.gpu().info().ordinal
        )
    }
}
