//! A batch of keys or values as Python has them, without copying a byte.
//!
//! ```text
//!   [b"ant", "bee", ...]              each object's own bytes; a str is its UTF-8
//!   array of uint8, shape (n, k)      n keys of k bytes
//!   array of uint64, shape (n,)       n keys of 8 bytes, big-endian, so that numbers and keys have one order
//! ```

use numpy::{PyReadonlyArray1, PyReadonlyArray2, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyAnyMethods, PyList};

use crate::errors::invalid;

/// The bytes of one Python object, which stays alive as long as they are borrowed.
pub(crate) enum Bytes {
    /// `bytes` or `bytearray`. A `bytearray` is copied, since it may change.
    Bytes(PyBackedBytes),
    /// `str`.
    Text(PyBackedStr),
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        match self {
            Bytes::Bytes(bytes) => bytes,
            Bytes::Text(text) => text.as_bytes(),
        }
    }
}

impl Bytes {
    /// Takes `bytes`, `bytearray` or `str`.
    pub(crate) fn new(object: &Bound<'_, PyAny>, what: &str) -> PyResult<Bytes> {
        if let Ok(bytes) = object.extract::<PyBackedBytes>() {
            return Ok(Bytes::Bytes(bytes));
        }
        match object.extract::<PyBackedStr>() {
            Ok(text) => Ok(Bytes::Text(text)),
            Err(_) => Err(invalid(format!(
                "a {what} is bytes or str, not {}",
                object.get_type().name()?
            ))),
        }
    }
}

/// Many of them.
pub(crate) enum Batch<'py> {
    Objects(Vec<Bytes>),
    Rows(PyReadonlyArray2<'py, u8>),
    Numbers(Vec<[u8; 8]>),
}

impl<'py> Batch<'py> {
    pub(crate) fn new(object: &Bound<'py, PyAny>, what: &str) -> PyResult<Batch<'py>> {
        if object.is_exact_instance_of::<PyList>() {
            // What most give, before it is asked what else it might be.
            return Batch::of_objects(object, what);
        }
        if let Ok(rows) = object.extract::<PyReadonlyArray2<'py, u8>>() {
            if !rows.is_c_contiguous() {
                return Err(invalid(format!(
                    "the array of {what}s is not C-contiguous: numpy.ascontiguousarray copies it to one that is"
                )));
            }
            return Ok(Batch::Rows(rows));
        }
        if let Ok(numbers) = object.extract::<PyReadonlyArray1<'py, u64>>() {
            let numbers = numbers.as_array();
            return Ok(Batch::Numbers(
                numbers.iter().map(|number| number.to_be_bytes()).collect(),
            ));
        }
        if object.hasattr("dtype")? {
            return Err(invalid(format!(
                "an array of {what}s is uint8 of two dimensions or uint64 of one, not {} of {}",
                object.getattr("dtype")?,
                object.getattr("ndim")?
            )));
        }
        Batch::of_objects(object, what)
    }

    fn of_objects(object: &Bound<'py, PyAny>, what: &str) -> PyResult<Batch<'py>> {
        let objects = object.try_iter()?;
        let mut bytes = Vec::with_capacity(object.cast::<PyList>().map_or(0, |list| list.len()));
        for item in objects {
            bytes.push(Bytes::new(&item?, what)?);
        }
        Ok(Batch::Objects(bytes))
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        match self {
            Batch::Objects(objects) => objects.len(),
            Batch::Numbers(numbers) => numbers.len(),
            Batch::Rows(rows) => rows.shape()[0],
        }
    }

    /// Keys with their values.
    pub(crate) fn pairs<'a>(
        keys: &'a Batch<'_>,
        values: &'a Batch<'_>,
    ) -> PyResult<Vec<(&'a [u8], &'a [u8])>> {
        if keys.len() != values.len() {
            return Err(invalid(format!(
                "there are {} keys and {} values",
                keys.len(),
                values.len()
            )));
        }
        Ok(keys.slices()?.into_iter().zip(values.slices()?).collect())
    }

    /// Their bytes, in order. Fit for use while other Python threads run.
    pub(crate) fn slices(&self) -> PyResult<Vec<&[u8]>> {
        Ok(match self {
            Batch::Objects(objects) => objects.iter().map(AsRef::as_ref).collect(),
            Batch::Numbers(numbers) => numbers.iter().map(|number| &number[..]).collect(),
            Batch::Rows(rows) => {
                let [count, width] = [rows.shape()[0], rows.shape()[1]];
                let bytes = rows.as_slice()?;
                if width == 0 {
                    vec![&bytes[..0]; count]
                } else {
                    bytes.chunks_exact(width).collect()
                }
            }
        })
    }
}
