//! Numeric arguments. For a number that the engine's type cannot hold, PyO3 raises `OverflowError`
//! without the argument's name. Here it is an `InvalidArgumentError` with the name and the range.

use std::fmt::Display;

use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::errors::invalid;

/// Defines a function for each argument: `#[pyo3(from_py_with = numeric_arguments::dim)]`.
macro_rules! integers {
    ($($name:ident: $Integer:ty,)+) => {$(
        pub(crate) fn $name(object: &Bound<'_, PyAny>) -> PyResult<$Integer> {
            let range = (<$Integer>::MIN, <$Integer>::MAX);
            object.extract().map_err(|error| worded(object, error, stringify!($name), range))
        }
    )+};
}

/// The same for arguments that may be `None`.
macro_rules! optional_integers {
    ($($name:ident: $Integer:ty,)+) => {$(
        pub(crate) fn $name(object: &Bound<'_, PyAny>) -> PyResult<Option<$Integer>> {
            let range = (<$Integer>::MIN, <$Integer>::MAX);
            object.extract().map_err(|error| worded(object, error, stringify!($name), range))
        }
    )+};
}

integers! {
    batch: usize,
    capacity: u64,
    delta: u64,
    device: usize,
    device_capacity: usize,
    dim: u32,
    failed_deletes_max: usize,
    failures_to_eject: u32,
    idle_timeout_ms: u64,
    newest: usize,
    resolve_interval_ms: u64,
    retry_interval_ms: u64,
    threads: usize,
    timeout_ms: u64,
    version: u64,
}

/// The number of a backup.
pub(crate) mod backup {
    use super::*;

    integers! {
        number: u64,
    }
}

optional_integers! {
    background_threads: usize,
    device_row_bytes_max: u64,
    max_capacity: u64,
    max_multiprocessors: u32,
    number: u64,
    ttl_seconds: u32,
}

/// The time to live of a store's entries, which may have a fraction until it is checked.
pub(crate) fn store_ttl_seconds(object: &Bound<'_, PyAny>) -> PyResult<Option<f64>> {
    let extracted = object.extract();
    extracted.map_err(|error| worded(object, error, "ttl_seconds", (1, u64::MAX)))
}

/// A number of rows. A size in bytes is another argument.
pub(crate) fn host_capacity(object: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
    if object.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err(format!(
            "`host_capacity` is a number of rows, not {}; `memory` takes a size such as \"2GiB\"",
            object.repr()?
        )));
    }
    let range = (usize::MIN, usize::MAX);
    object
        .extract()
        .map_err(|error| worded(object, error, "host_capacity", range))
}

fn worded(
    object: &Bound<'_, PyAny>,
    error: PyErr,
    name: &str,
    (min, max): (impl Display, impl Display),
) -> PyErr {
    if !error.is_instance_of::<PyOverflowError>(object.py()) {
        return error;
    }
    invalid(format!(
        "`{name}` must be an integer from {min} to {max}, not {object}"
    ))
}
