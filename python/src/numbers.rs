//! Keys that are numbers: an array of uint64 or int64 of any shape, where it lies, or numbers that make one.

use numpy::{PyArray1, PyArrayDyn, PyReadonlyArray1, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::errors::invalid;

/// Keys, flat, and the shape they came in.
pub(crate) struct Numbers<'py> {
    flat: PyReadonlyArray1<'py, u64>,
    shape: Vec<usize>,
}

impl<'py> Numbers<'py> {
    /// Takes an array, a tensor by DLPack, or a list. Of int64 the bits count, so that -1 is the greatest key.
    pub(crate) fn new(object: &Bound<'py, PyAny>) -> PyResult<Numbers<'py>> {
        let py = object.py();
        let numpy = py.import("numpy")?;
        let array = if object.hasattr("dtype")? && !object.hasattr("flags")? {
            numpy.call_method1("from_dlpack", (object,))?
        } else if object.hasattr("dtype")? {
            object.clone()
        } else {
            numpy
                .call_method1("array", (object, "uint64"))
                .map_err(|error| {
                    invalid(format!("keys are numbers from 0 to 2**64 - 1: {error}"))
                })?
        };
        let dtype = array.getattr("dtype")?.str()?.to_string();
        if dtype != "uint64" && dtype != "int64" {
            return Err(invalid(format!(
                "keys are an array of uint64 or int64, not {dtype}"
            )));
        }
        let shape = array.getattr("shape")?.extract()?;
        // Copied only if it is not contiguous.
        let flat = numpy
            .call_method1("ravel", (array,))?
            .call_method1("view", ("uint64",))?
            .cast_into::<PyArray1<u64>>()
            .map_err(|error| invalid(format!("keys cannot be used: {error}")))?;
        let flat = numpy::PyArrayMethods::try_readonly(&flat)
            .map_err(|error| invalid(format!("keys cannot be read: {error}")))?;
        Ok(Numbers { flat, shape })
    }

    pub(crate) fn as_slice(&self) -> PyResult<&[u64]> {
        Ok(self.flat.as_slice()?)
    }

    pub(crate) fn len(&self) -> usize {
        self.flat.len()
    }

    /// The shape of an array that has something for each key, with more behind.
    pub(crate) fn shape_with(
        &self,
        py: Python<'py>,
        more: Option<u32>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let more = more.map(|extent| extent as usize);
        let shape: Vec<usize> = self.shape.iter().copied().chain(more).collect();
        PyTuple::new(py, shape)
    }

    /// Flags, one a key, in the shape of the keys.
    pub(crate) fn flags(
        &self,
        flags: Bound<'py, PyArray1<bool>>,
    ) -> PyResult<Bound<'py, PyArrayDyn<bool>>> {
        let shape = self.shape_with(flags.py(), None)?;
        Ok(flags.call_method1("reshape", (shape,))?.cast_into()?)
    }
}
