//! What hot pools in CPU memory and on a GPU share: their arrays, and the form of their errors.

use forerun::gpu::hot_pool::HotPoolError;
use pyo3::prelude::*;

use crate::errors::{device_exception, gather_exception, invalid, too_large};

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
