//! Pairs of row numbers as Python passes them: an array of shape (n, 2), or a tuple of two arrays
//! of shape (n,). Lists are converted to arrays.

use forerun::gpu::gather::cpu::{Indices, Pairs};
use numpy::{
    PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1, PyUntypedArray, PyUntypedArrayMethods,
};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::arrays::{as_array, borrow, expect_contiguous, is_aligned};
use crate::borrows::{Access, Borrow};
use crate::errors::{gather_exception, invalid, reworded};
use crate::python_calls::{call_method, call_numpy};

/// An array of indices with 32 or 64 bits.
pub(crate) enum IndexArray<'py> {
    Narrow {
        array: PyReadonlyArray1<'py, i32>,
        _borrow: Borrow,
    },
    Wide {
        array: PyReadonlyArray1<'py, i64>,
        _borrow: Borrow,
    },
}

impl<'py> IndexArray<'py> {
    fn new(object: &Bound<'py, PyAny>) -> PyResult<IndexArray<'py>> {
        let array = as_indices(object)?;
        expect_contiguous(&array, Access::Read, "pairs")?;
        if let Ok(narrow) = array.cast::<PyArray1<i32>>() {
            expect_aligned(narrow)?;
            let _borrow = borrow(narrow, Access::Read, "pairs")?;
            let array = narrow.try_readonly()?;
            return Ok(IndexArray::Narrow { array, _borrow });
        }
        match array.cast::<PyArray1<i64>>() {
            Ok(wide) => {
                expect_aligned(wide)?;
                let _borrow = borrow(wide, Access::Read, "pairs")?;
                let array = wide.try_readonly()?;
                Ok(IndexArray::Wide { array, _borrow })
            }
            Err(_) => Err(not_indices()),
        }
    }

    fn indices(&self) -> PyResult<Indices<'_>> {
        Ok(match self {
            IndexArray::Narrow { array, .. } => Indices::I32(array.as_slice()?),
            IndexArray::Wide { array, .. } => Indices::I64(array.as_slice()?),
        })
    }
}

/// The array of indices. A list or tuple of integers is converted to one.
fn as_indices<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyUntypedArray>> {
    if !object.is_instance_of::<PyList>() && !object.is_instance_of::<PyTuple>() {
        return as_array(object, "pairs");
    }
    let py = object.py();
    let given = call_numpy(py, intern!(py, "array"), (object,));
    let given = given.map_err(|error| reworded(py, error, |_| not_indices()))?;
    let given = given.cast_into::<PyUntypedArray>()?;
    if given.is_empty() {
        // NumPy takes the elements of an empty list for floats.
        let integers = call_method(&given, intern!(py, "astype"), ("int64",))?;
        return Ok(integers.cast_into()?);
    }
    Ok(given)
}

fn not_indices() -> PyErr {
    invalid(
        "indices must be an array of int32 or int64: pairs of shape (n, 2), or two arrays of shape \
         (n,)",
    )
}

fn expect_aligned<T: numpy::Element>(array: &Bound<'_, PyArray1<T>>) -> PyResult<()> {
    if is_aligned(array) {
        return Ok(());
    }
    Err(invalid("`pairs` is not aligned: copy it"))
}

/// Pairs of (source row, destination row).
pub(crate) enum Given<'py> {
    Interleaved(IndexArray<'py>),
    Split([IndexArray<'py>; 2]),
}

impl<'py> Given<'py> {
    pub(crate) fn new(object: &Bound<'py, PyAny>) -> PyResult<Given<'py>> {
        if let Some([sources, destinations]) = two_of(object)? {
            let both = [IndexArray::new(&sources)?, IndexArray::new(&destinations)?];
            return Ok(Given::Split(both));
        }
        let array = as_indices(object)?;
        let is_pairs = array.shape().get(1) == Some(&2) && array.is_c_contiguous();
        let is_integer =
            array.cast::<PyArray2<i32>>().is_ok() || array.cast::<PyArray2<i64>>().is_ok();
        if !is_pairs || !is_integer {
            return Err(invalid(
                "pairs must be a C-contiguous array of int32 or int64 of shape (n, 2), or a tuple \
                 of two arrays of shape (n,)",
            ));
        }
        let flat = array.call_method1("reshape", (-1,))?;
        Ok(Given::Interleaved(IndexArray::new(&flat)?))
    }

    /// The pairs in place.
    pub(crate) fn pairs(&self) -> PyResult<Pairs<'_>> {
        match self {
            Given::Interleaved(both) => Pairs::interleaved(both.indices()?),
            Given::Split([sources, destinations]) => {
                Pairs::split(sources.indices()?, destinations.indices()?)
            }
        }
        .map_err(gather_exception)
    }
}

/// The two objects, if this is a tuple of two.
pub(crate) fn two_of<'py>(object: &Bound<'py, PyAny>) -> PyResult<Option<[Bound<'py, PyAny>; 2]>> {
    match object.cast::<PyTuple>() {
        Ok(two) if two.len() == 2 => Ok(Some([two.get_item(0)?, two.get_item(1)?])),
        _ => Ok(None),
    }
}
