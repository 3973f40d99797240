//! New arrays, bytes and vectors. When memory is short, these raise `MemoryError`. PyO3 and the
//! numpy crate would panic, and the standard library would abort the process.

use std::collections::TryReserveError;
use std::ffi::{c_int, c_void};

use numpy::npyffi::{self, NPY_ARRAY_WRITEABLE, NpyTypes, PY_ARRAY_API, PyArray_Descr, npy_intp};
use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray};
use pyo3::exceptions::{PyImportError, PyMemoryError};
use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyCapsule, PyCapsuleMethods, PyList};

use crate::python_calls::stopping_at_exit;

/// `PyArray_Zeros`, which releases the interpreter's lock for arrays of 1 KiB or more.
type Zeros =
    unsafe extern "C-unwind" fn(c_int, *mut npy_intp, *mut PyArray_Descr, c_int) -> *mut PyObject;

/// The position of `PyArray_Zeros` in the table of NumPy's C functions, which is part of NumPy's
/// binary interface.
const ZEROS: usize = 183;

/// NumPy's table of C functions is imported with the module, because an import runs Python code.
pub(crate) fn import_numpy(py: Python<'_>) -> PyResult<()> {
    zeros_of_numpy(py).map(drop)
}

fn zeros_of_numpy(py: Python<'_>) -> PyResult<Zeros> {
    static FUNCTION: PyOnceLock<Zeros> = PyOnceLock::new();
    let load = || {
        let module = match py.import("numpy._core.multiarray") {
            // NumPy 1.
            Err(error) if error.is_instance_of::<PyImportError>(py) => {
                py.import("numpy.core.multiarray")?
            }
            module => module?,
        };
        let table = module.getattr("_ARRAY_API")?.cast_into::<PyCapsule>()?;
        let table = table.pointer_checked(None)?.cast::<*const c_void>();
        // SAFETY: the table has this function at this position, with these arguments, in every
        // version of NumPy that the numpy crate accepts. NumPy is never unloaded.
        let zeros = unsafe {
            let function = table.add(ZEROS).read();
            std::mem::transmute::<*const c_void, Zeros>(function)
        };
        PyResult::Ok(zeros)
    };
    FUNCTION.get_or_try_init(py, load).copied()
}

/// An array of zeros.
pub(crate) fn zeros<'py>(
    py: Python<'py>,
    dtype: Bound<'py, PyArrayDescr>,
    shape: &[usize],
) -> PyResult<Bound<'py, PyUntypedArray>> {
    let zeros = zeros_of_numpy(py)?;
    let mut extents = extents_of(shape);
    let (dimensions, extents) = (extents.len() as c_int, extents.as_mut_ptr());
    let dtype = dtype.into_dtype_ptr();
    // SAFETY: there are as many extents as dimensions. The call takes the reference to the type.
    let array = stopping_at_exit(|| unsafe { zeros(dimensions, extents, dtype, 0) });
    // SAFETY: the call returned a new reference to an array, or null and an exception.
    let array = unsafe { Bound::from_owned_ptr_or_err(py, array) }?;
    Ok(array.cast_into()?)
}

/// NumPy refuses an extent that is too large for it.
fn extents_of(shape: &[usize]) -> Vec<npy_intp> {
    let extents = shape.iter();
    extents
        .map(|&extent| npy_intp::try_from(extent).unwrap_or(npy_intp::MAX))
        .collect()
}

/// Memory that an array is a view of.
pub(crate) struct ViewOf<'py> {
    pub(crate) start: *mut c_void,
    pub(crate) dtype: Bound<'py, PyArrayDescr>,
    pub(crate) shape: Vec<usize>,
    pub(crate) strides_bytes: Vec<isize>,
    pub(crate) is_read_only: bool,
}

/// An array that is a view of memory, and keeps its owner alive.
///
/// # Safety
/// The owner must keep the memory of all elements allocated, and there must be as many strides as
/// extents.
pub(crate) unsafe fn view<'py>(
    memory: ViewOf<'py>,
    owner: Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyUntypedArray>> {
    let py = owner.py();
    let mut extents = extents_of(&memory.shape);
    let mut strides: Vec<npy_intp> = memory.strides_bytes;
    let flags = if memory.is_read_only {
        0
    } else {
        NPY_ARRAY_WRITEABLE
    };
    // SAFETY: there are as many extents and strides as dimensions; the caller guarantees the
    // memory. The call takes the reference to the type. It runs no Python code.
    let array = unsafe {
        PY_ARRAY_API.PyArray_NewFromDescr(
            py,
            npyffi::get_type_object(py, NpyTypes::PyArray_Type),
            memory.dtype.into_dtype_ptr(),
            extents.len() as c_int,
            extents.as_mut_ptr(),
            strides.as_mut_ptr(),
            memory.start,
            flags,
            std::ptr::null_mut(),
        )
    };
    // SAFETY: the call returned a new reference to an array, or null and an exception.
    let array = unsafe { Bound::from_owned_ptr_or_err(py, array) }?;
    // SAFETY: it is an array that nothing else refers to. The call takes the reference to its
    // owner.
    let failed = unsafe {
        PY_ARRAY_API.PyArray_SetBaseObject(py, array.as_ptr().cast(), owner.into_ptr()) != 0
    };
    if failed {
        return Err(PyErr::fetch(py));
    }
    Ok(array.cast_into()?)
}

/// The error of an allocation.
pub(crate) fn out_of_memory(error: TryReserveError) -> PyErr {
    PyMemoryError::new_err(format!("a batch does not fit in memory: {error}"))
}

/// An empty vector with room for this many elements.
pub(crate) fn with_room_for<T>(count: usize) -> PyResult<Vec<T>> {
    let mut vector = Vec::new();
    vector.try_reserve_exact(count).map_err(out_of_memory)?;
    Ok(vector)
}

/// Adds an element to a vector whose length was not known.
pub(crate) fn push<T>(vector: &mut Vec<T>, element: T) -> PyResult<()> {
    vector.try_reserve(1).map_err(out_of_memory)?;
    vector.push(element);
    Ok(())
}

/// A vector of all elements of an iterator that knows how many there are.
pub(crate) fn collected<T>(elements: impl ExactSizeIterator<Item = T>) -> PyResult<Vec<T>> {
    let mut vector = with_room_for(elements.len())?;
    vector.extend(elements);
    Ok(vector)
}

/// A copy of bytes.
pub(crate) fn copy_of(bytes: &[u8]) -> PyResult<Vec<u8>> {
    let mut copy = with_room_for(bytes.len())?;
    copy.extend_from_slice(bytes);
    Ok(copy)
}

/// A list of values, with `None` for each missing key.
pub(crate) fn list_of_bytes<'py, 'v>(
    py: Python<'py>,
    count: usize,
    values: impl Iterator<Item = Option<&'v [u8]>>,
) -> PyResult<Bound<'py, PyList>> {
    let mut objects = with_room_for(count)?;
    for value in values {
        objects.push(value.map(|value| bytes(py, value)).transpose()?);
    }
    PyList::new(py, objects)
}

/// A copy of bytes, as an object.
pub(crate) fn bytes<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    // SAFETY: a slice is not longer than `isize::MAX`.
    let copy = unsafe {
        ffi::PyBytes_FromStringAndSize(bytes.as_ptr().cast(), bytes.len() as ffi::Py_ssize_t)
    };
    // SAFETY: the call returned a new reference to a bytes object, or null and an exception.
    let copy = unsafe { Bound::from_owned_ptr_or_err(py, copy) }?;
    Ok(copy.cast_into()?)
}
