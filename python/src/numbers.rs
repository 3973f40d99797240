//! Keys that are numbers: an array of uint64 or int64 of any shape, where it lies, or numbers that make one.

use numpy::{
    PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn, PyReadwriteArrayDyn, PyUntypedArray,
    PyUntypedArrayMethods,
};
use pyo3::prelude::*;
use zerocopy::{FromBytes, IntoBytes};

use crate::arrays::{as_array, expect_contiguous, refused};
use crate::errors::invalid;

/// Keys, in the shape they came in.
pub(crate) enum Numbers<'py> {
    Unsigned(PyReadonlyArrayDyn<'py, u64>),
    /// Their bits count, so that -1 is the greatest key.
    Signed(PyReadonlyArrayDyn<'py, i64>),
}

impl<'py> Numbers<'py> {
    /// Takes an array, a tensor by DLPack, or a list. Copied is only what is not contiguous, or no array.
    pub(crate) fn new(object: &Bound<'py, PyAny>) -> PyResult<Numbers<'py>> {
        if let Some(numbers) = Numbers::borrow(object)? {
            return Ok(numbers);
        }
        let py = object.py();
        let is_array = object.is_instance_of::<PyUntypedArray>() || object.hasattr("__dlpack__")?;
        let array = if is_array {
            let array = as_array(object, "keys")?;
            // A scalar would become an array of one dimension; it is contiguous.
            match array.is_c_contiguous() {
                true => array.into_any(),
                false => py
                    .import("numpy")?
                    .call_method1("ascontiguousarray", (array,))?,
            }
        } else {
            py.import("numpy")?
                .call_method1("array", (object, "uint64"))
                .map_err(|error| {
                    invalid(format!("keys are numbers from 0 to 2**64 - 1: {error}"))
                })?
        };
        Numbers::borrow(&array)?.ok_or_else(|| {
            let dtype = array.getattr("dtype").and_then(|dtype| dtype.str());
            let dtype =
                dtype.map_or_else(|_| "something else".to_owned(), |dtype| dtype.to_string());
            invalid(format!("keys are an array of uint64 or int64, not {dtype}"))
        })
    }

    /// Borrows an array that is one of keys as it is.
    fn borrow(object: &Bound<'py, PyAny>) -> PyResult<Option<Numbers<'py>>> {
        let borrowed = if let Ok(array) = object.cast::<PyArrayDyn<u64>>() {
            if !array.is_c_contiguous() {
                return Ok(None);
            }
            array.try_readonly().map(Numbers::Unsigned)
        } else if let Ok(array) = object.cast::<PyArrayDyn<i64>>() {
            if !array.is_c_contiguous() {
                return Ok(None);
            }
            array.try_readonly().map(Numbers::Signed)
        } else {
            return Ok(None);
        };
        borrowed
            .map(Some)
            .map_err(|error| refused("keys", "read", error))
    }

    pub(crate) fn as_slice(&self) -> PyResult<&[u64]> {
        match self {
            Numbers::Unsigned(array) => Ok(array.as_slice()?),
            Numbers::Signed(array) => <[u64]>::ref_from_bytes(array.as_slice()?.as_bytes())
                .map_err(|error| invalid(format!("keys cannot be used: {error}"))),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Numbers::Unsigned(array) => array.len(),
            Numbers::Signed(array) => array.len(),
        }
    }

    /// Their shape.
    pub(crate) fn shape(&self) -> &[usize] {
        match self {
            Numbers::Unsigned(array) => array.shape(),
            Numbers::Signed(array) => array.shape(),
        }
    }

    /// The shape of an array that has a row of `dim` elements for each key.
    pub(crate) fn shape_of_rows(&self, dim: u32) -> Vec<usize> {
        let shape = self.shape().iter().copied();
        shape.chain([dim as usize]).collect()
    }

    /// Flags for them, in their shape.
    pub(crate) fn flags(&self, py: Python<'py>) -> Flags<'py> {
        Flags(PyArrayDyn::zeros(py, self.shape(), false))
    }

    /// Flags for them: those that the caller has, if so.
    pub(crate) fn flags_or(
        &self,
        py: Python<'py>,
        given: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Flags<'py>> {
        let Some(given) = given else {
            return Ok(self.flags(py));
        };
        let array = as_array(given, "found")?;
        expect_contiguous(&array, "found")?;
        let Ok(flags) = array.cast::<PyArrayDyn<bool>>() else {
            return Err(invalid(format!(
                "`found` is to be an array of bool, not {}",
                array.dtype()
            )));
        };
        if flags.len() != self.len() {
            return Err(invalid(format!(
                "{} keys need as many places in `found`, which has {}",
                self.len(),
                flags.len()
            )));
        }
        Ok(Flags(match flags.shape() == self.shape() {
            true => flags.clone(),
            false => flags.reshape(self.shape())?,
        }))
    }
}

/// Which of some keys are there, in the shape of the keys.
pub(crate) struct Flags<'py>(pub(crate) Bound<'py, PyArrayDyn<bool>>);

impl<'py> Flags<'py> {
    /// Borrows them.
    pub(crate) fn write(&self) -> PyResult<PyReadwriteArrayDyn<'py, bool>> {
        let flags = self.0.try_readwrite();
        flags.map_err(|error| refused("found", "written", error))
    }
}
