//! Batches of keys or values as Python passes them.
//!
//! ```text
//!   [b"ant", "bee", ...]                  keys or values: each object's own bytes; a str is its UTF-8
//!   array of uint8, shape (n, k)          n keys of k bytes
//!   array of integers, shape (n,)         n keys of 8 bytes, big-endian, so that keys sort like the numbers
//!   array of any type, shape (n, ...)     n values: the bytes of its rows as they are in memory
//!   [row, row, ...]                       values: the bytes of each array or tensor
//! ```
//!
//! Only integer keys and arrays that are not contiguous are copied.

use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyAnyMethods, PyByteArray, PyBytes, PyList, PyString, PyTuple};

use crate::arrays::{as_array, expect_bytes, type_name};
use crate::errors::{accepted, invalid};
use crate::new_objects::{collected, push, with_room_for};
use crate::numbers::Numbers;
use crate::python_calls::{call, call_method, call_numpy, iterate, next};
use crate::rows::{ReadRows, readable_rows};

/// The bytes of one Python object, which stays alive while they are borrowed.
pub(crate) enum Bytes {
    /// `bytes` or `bytearray`. A `bytearray` is copied, because it may change.
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
    /// Accepts `bytes`, `bytearray` or `str`.
    pub(crate) fn new(object: &Bound<'_, PyAny>, what: &str) -> PyResult<Bytes> {
        Bytes::of(object)?.ok_or_else(|| unusable(object, what))
    }

    /// `None` if it is something else, or text that has no UTF-8.
    fn of(object: &Bound<'_, PyAny>) -> PyResult<Option<Bytes>> {
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(Some(Bytes::Bytes(bytes.clone().into())));
        }
        if object.is_instance_of::<PyByteArray>() {
            return Ok(Some(Bytes::Bytes(object.extract()?)));
        }
        if !object.is_instance_of::<PyString>() {
            return Ok(None);
        }
        let text = accepted(object.py(), object.extract::<PyBackedStr>())?;
        Ok(text.map(Bytes::Text))
    }

    /// The bytes of an object in a question such as `key in db`. `None` if it cannot be a key: by
    /// its type, as text that has no UTF-8, or by its length.
    pub(crate) fn key_in_question(object: &Bound<'_, PyAny>) -> PyResult<Option<Bytes>> {
        let key = Bytes::of(object)?;
        Ok(key.filter(|key| key.as_ref().len() <= forerun::KEY_BYTES_MAX))
    }

    /// Like [`Bytes::new`]. For an array or a tensor, the bytes of its elements.
    fn of_value(object: &Bound<'_, PyAny>) -> PyResult<Bytes> {
        if let Some(bytes) = Bytes::of(object)? {
            return Ok(bytes);
        }
        if !is_array(object)? {
            return Err(unusable(object, "value"));
        }
        let array = as_array(object, "values")?;
        expect_bytes(&array, "values")?;
        let bytes = call_method(&array, intern!(object.py(), "tobytes"), ())?;
        Ok(Bytes::Bytes(bytes.extract::<PyBackedBytes>()?))
    }
}

/// The error for an object that is no key or value.
fn unusable(object: &Bound<'_, PyAny>, what: &str) -> PyErr {
    match object.get_type().name() {
        Ok(class) => invalid(format!(
            "a {what} must be bytes, bytearray or str, not {class}"
        )),
        Err(error) => error,
    }
}

/// A batch of keys or values.
pub(crate) enum Batch<'py> {
    Objects(Vec<Bytes>),
    Rows(ReadRows<'py>),
    Numbers(Vec<[u8; 8]>),
}

impl<'py> Batch<'py> {
    /// Accepts keys.
    pub(crate) fn keys(object: &Bound<'py, PyAny>) -> PyResult<Batch<'py>> {
        // A list is the common case and needs no further inspection.
        if object.is_exact_instance_of::<PyList>() || !is_array(object)? {
            return Batch::of_objects(object, "keys", |key| Bytes::new(key, "key"));
        }
        let array = as_array(object, "keys")?;
        let (kind, width) = (array.dtype().kind(), array.dtype().itemsize());
        match (kind, width, array.ndim()) {
            (b'u', 1, 2) => Batch::of_rows(&array, "keys"),
            (b'u' | b'i', 2.., 1) => {
                let numbers = Numbers::unsigned(&array, "keys")?;
                let bytes = numbers.as_slice()?.iter().map(|key| key.to_be_bytes());
                Ok(Batch::Numbers(collected(bytes)?))
            }
            _ => Err(invalid(format!(
                "an array of keys must have one dimension of integers of 16 bits or more, or two \
                 of uint8, not {} of {}",
                array.ndim(),
                type_name(&array)?
            ))),
        }
    }

    /// Accepts values.
    pub(crate) fn values(object: &Bound<'py, PyAny>) -> PyResult<Batch<'py>> {
        if object.is_exact_instance_of::<PyList>() || !is_array(object)? {
            return Batch::of_objects(object, "values", Bytes::of_value);
        }
        let array = as_array(object, "values")?;
        if array.ndim() == 0 {
            return Err(invalid(
                "an array of values must have one row per value, not 0 dimensions",
            ));
        }
        Batch::of_rows(&array, "values")
    }

    /// The rows of an array as they are in memory. An array that is not contiguous is copied.
    fn of_rows(array: &Bound<'py, PyUntypedArray>, name: &'static str) -> PyResult<Batch<'py>> {
        expect_bytes(array, name)?;
        let py = array.py();
        let contiguous = call_numpy(py, intern!(py, "ascontiguousarray"), (array,))?;
        Ok(Batch::Rows(readable_rows(&contiguous, name)?))
    }

    fn of_objects(
        object: &Bound<'py, PyAny>,
        name: &str,
        bytes_of: impl Fn(&Bound<'py, PyAny>) -> PyResult<Bytes>,
    ) -> PyResult<Batch<'py>> {
        // A single text would count as a batch of its characters.
        let is_one = object.is_instance_of::<PyString>()
            || object.is_instance_of::<PyBytes>()
            || object.is_instance_of::<PyByteArray>();
        if is_one {
            return Err(PyTypeError::new_err(format!(
                "`{name}` must be a list, an array or another iterable of {name}, not one {}",
                object.get_type().name()?
            )));
        }
        let objects = iterate(object)?;
        let mut bytes = with_room_for(object.cast::<PyList>().map_or(0, |list| list.len()))?;
        while let Some(item) = next(&objects)? {
            push(&mut bytes, bytes_of(&item)?)?;
        }
        Ok(Batch::Objects(bytes))
    }

    /// Number of keys or values.
    pub(crate) fn len(&self) -> usize {
        match self {
            Batch::Objects(objects) => objects.len(),
            Batch::Numbers(numbers) => numbers.len(),
            Batch::Rows(rows) => rows.shape()[0],
        }
    }

    /// Rejects values that are not one for each key.
    pub(crate) fn expect_pairs(keys: &Batch<'_>, values: &Batch<'_>) -> PyResult<()> {
        if keys.len() == values.len() {
            Ok(())
        } else {
            Err(invalid(format!(
                "there must be one value for each key: {} in all, not {}",
                keys.len(),
                values.len()
            )))
        }
    }

    /// Keys with their values.
    pub(crate) fn pairs<'a>(
        keys: &'a Batch<'_>,
        values: &'a Batch<'_>,
    ) -> PyResult<Vec<(&'a [u8], &'a [u8])>> {
        Batch::expect_pairs(keys, values)?;
        collected(keys.slices()?.into_iter().zip(values.slices()?))
    }

    /// Their bytes, in order. They may be used while other Python threads run.
    pub(crate) fn slices(&self) -> PyResult<Vec<&[u8]>> {
        match self {
            Batch::Objects(objects) => collected(objects.iter().map(AsRef::as_ref)),
            Batch::Numbers(numbers) => collected(numbers.iter().map(|number| &number[..])),
            Batch::Rows(rows) => {
                let [count, width] = [rows.shape()[0], rows.shape()[1]];
                let bytes = rows.as_slice()?;
                if width == 0 {
                    collected(std::iter::repeat_n(&bytes[..0], count))
                } else {
                    collected(bytes.chunks_exact(width))
                }
            }
        }
    }
}

/// Whether an object is an array, or a tensor that provides one.
fn is_array(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(object.is_instance_of::<PyUntypedArray>() || object.hasattr("__dlpack__")?)
}

/// The keys and the values of a mapping, or of an iterable of pairs. If a key repeats, its last
/// value is stored last.
pub(crate) fn entries_of<'py>(
    object: &Bound<'py, PyAny>,
) -> PyResult<(Bound<'py, PyList>, Bound<'py, PyList>)> {
    let py = object.py();
    let (keys, values) = (PyList::empty(py), PyList::empty(py));
    // One pass, also over a store or a cache, because a key may disappear between two separate
    // lookups.
    let entries = match object.getattr_opt(intern!(py, "items"))? {
        Some(items) => call(&items, (), None)?,
        None => object.clone(),
    };
    let entries = iterate(&entries)?;
    while let Some(entry) = next(&entries)? {
        let entry = call(&py.get_type::<PyTuple>(), (entry,), None)?;
        let entry = entry.cast_into::<PyTuple>()?;
        if entry.len() != 2 {
            let len = entry.len();
            return Err(PyTypeError::new_err(format!(
                "an entry must be a key and a value, not {len} objects"
            )));
        }
        keys.append(entry.get_item(0)?)?;
        values.append(entry.get_item(1)?)?;
    }
    Ok((keys, values))
}
