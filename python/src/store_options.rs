//! Arguments that several constructors take: sizes, and whether a store is created.

use forerun::{Create, machine::parse_size};
use pyo3::prelude::*;
use pyo3::types::PyBool;
use pyo3::{Borrowed, FromPyObject};

use crate::errors::{accepted, invalid, unknown};

/// A number of bytes: an integer, or a text such as "2GiB" or "25%".
#[derive(Clone, Copy)]
pub(crate) struct Size(pub(crate) usize);

impl<'py> FromPyObject<'_, 'py> for Size {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Size> {
        let py = object.py();
        if let Some(text) = accepted(py, object.extract::<String>())? {
            let bytes = parse_size(&text).map_err(|error| invalid(error.to_string()))?;
            return Ok(Size(bytes));
        }
        if !object.is_instance_of::<PyBool>()
            && let Some(bytes) = accepted(py, object.extract())?
        {
            return Ok(Size(bytes));
        }
        Err(invalid(format!(
            "a size is a number of bytes, or a text such as \"2GiB\", not {} of type {}",
            object.repr()?,
            object.get_type().name()?
        )))
    }
}

/// The bytes of an optional size.
pub(crate) fn bytes_of(size: Option<Size>) -> Option<usize> {
    size.map(|Size(bytes)| bytes)
}

/// A number of bytes per second: an integer, or a text such as "50MiB". 0: no limit.
#[derive(Clone, Copy)]
pub(crate) struct Rate(pub(crate) u64);

impl<'py> FromPyObject<'_, 'py> for Rate {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Rate> {
        if let Some(text) = accepted(object.py(), object.extract::<String>())?
            && text.contains('%')
        {
            return Err(invalid(format!(
                "a rate is a number of bytes per second, such as \"50MiB\", not {}",
                object.repr()?
            )));
        }
        let Size(bytes) = object.extract()?;
        Ok(Rate(bytes as u64))
    }
}

/// The bytes per second of an optional rate.
pub(crate) fn rate_of(rate: Option<Rate>) -> Option<u64> {
    rate.map(|Rate(bytes)| bytes)
}

/// The bytes of a size, so that two can be compared.
#[pyo3::pyfunction]
pub(crate) fn _size_bytes(size: Size) -> usize {
    size.0
}

/// Whether a missing store is created: a word, or `True` and `False` for the two common ones.
pub(crate) struct CreateStore(pub(crate) Create);

impl CreateStore {
    pub(crate) const DEFAULT: CreateStore = CreateStore(Create::IfMissing);
}

impl<'py> FromPyObject<'_, 'py> for CreateStore {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<CreateStore> {
        const KNOWN: &str = "if_missing (True), never (False), must_be_new";
        if let Ok(creates) = object.cast::<PyBool>() {
            return Ok(CreateStore(if creates.is_true() {
                Create::IfMissing
            } else {
                Create::Never
            }));
        }
        let Some(name) = accepted(object.py(), object.extract::<String>())? else {
            return Err(unknown("create", &object.repr()?.to_string(), KNOWN));
        };
        Ok(CreateStore(match name.as_str() {
            "if_missing" => Create::IfMissing,
            "never" => Create::Never,
            "must_be_new" => Create::MustBeNew,
            other => return Err(unknown("create", other, KNOWN)),
        }))
    }
}
