//! What calls of hot pools take: arrays of integers, the pool's own arrays, and the exceptions.

use forerun::gpu::hot_pool::HotPoolError;
use numpy::{PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn, PyUntypedArrayMethods};
use pyo3::prelude::*;

use crate::arrays::{as_array, borrow, expect_contiguous, is_aligned, refused, type_name};
use crate::borrows::{Access, Borrow};
use crate::errors::{device_exception, gather_exception, invalid, too_large};

/// The exception for an error of a hot pool, with its message.
pub(crate) fn hot_pool_exception(error: HotPoolError) -> PyErr {
    match error {
        HotPoolError::Gpu(error) => device_exception(error),
        HotPoolError::Copy(error) => gather_exception(error),
        HotPoolError::OutOfMemory { .. } | HotPoolError::HostFull { .. } => {
            too_large(&error.to_string())
        }
        error => invalid(error.to_string()),
    }
}

/// An array of integers that a call reads.
pub(crate) struct ReadIntegers<'py, T: numpy::Element> {
    array: PyReadonlyArrayDyn<'py, T>,
    _borrow: Borrow,
}

impl<'py, T: numpy::Element> ReadIntegers<'py, T> {
    pub(crate) fn new(
        object: &Bound<'py, PyAny>,
        what: &'static str,
        dtype: &str,
    ) -> PyResult<ReadIntegers<'py, T>> {
        let array = typed::<T>(object, what, dtype, Access::Read)?;
        let _borrow = borrow(&array, Access::Read, what)?;
        let array = array.try_readonly();
        Ok(ReadIntegers {
            array: array.map_err(|error| refused(what, "read", error))?,
            _borrow,
        })
    }

    pub(crate) fn shape(&self) -> &[usize] {
        self.array.shape()
    }

    pub(crate) fn as_slice(&self) -> PyResult<&[T]> {
        Ok(self.array.as_slice()?)
    }
}

/// A contiguous array with elements of a type.
pub(crate) fn typed<'py, T: numpy::Element>(
    object: &Bound<'py, PyAny>,
    what: &'static str,
    dtype: &str,
    access: Access,
) -> PyResult<Bound<'py, PyArrayDyn<T>>> {
    let array = as_array(object, what)?;
    expect_contiguous(&array, access, what)?;
    match array.cast::<PyArrayDyn<T>>() {
        Ok(typed) if is_aligned(typed) => Ok(typed.clone()),
        _ => Err(invalid(format!(
            "`{what}` must be an array of {dtype}, not of {}",
            type_name(&array)?
        ))),
    }
}

/// The arrays of a pool.
pub(crate) struct Arrays {
    pub(crate) host: Py<PyAny>,
    pub(crate) rows: Py<PyAny>,
    pub(crate) host_rows: Option<Py<PyAny>>,
}

/// Requests and positions of each, from the shape of an array of positions.
pub(crate) fn batch_of(shape: &[u64]) -> PyResult<(u64, u64)> {
    match *shape {
        [count] => Ok((1, count)),
        [batch, count] => Ok((batch, count)),
        _ => Err(invalid(
            "`positions` must have one dimension, or two: requests, and positions of each",
        )),
    }
}
