//! The rows of a table, batch by batch.

use std::sync::{Mutex, PoisonError};

use forerun::table::Dtype;
use numpy::PyArray1;
use pyo3::prelude::*;

use crate::errors::table_exception;

/// A batch: keys, and an array of their rows.
type KeysAndRows<'py> = (Bound<'py, PyArray1<u64>>, Bound<'py, PyAny>);

/// NumPy's name of a type. Where it has none, the bits are given.
pub(crate) fn numpy_name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::Bf16 => "uint16",
        other => other.name(),
    }
}

/// An iterator over the rows of a table, batch by batch.
#[pyclass(module = "forerun")]
pub(crate) struct Export {
    export: Mutex<forerun::table::Export>,
    dtype: Dtype,
    dim: u32,
}

impl Export {
    pub(crate) fn new(export: forerun::table::Export, dtype: Dtype, dim: u32) -> Export {
        Export {
            export: export.into(),
            dtype,
            dim,
        }
    }

    /// The next batch, while other Python threads run.
    fn fetch(&self) -> Option<forerun::table::Result<forerun::table::Rows>> {
        let export = self.export.lock();
        export.unwrap_or_else(PoisonError::into_inner).next()
    }
}

#[pymethods]
impl Export {
    fn __iter__(slf: Bound<'_, Export>) -> Bound<'_, Export> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<KeysAndRows<'py>>> {
        let Some(rows) = py.detach(|| self.fetch()) else {
            return Ok(None);
        };
        let rows = rows.map_err(table_exception)?;
        let shape = (rows.keys.len(), self.dim);
        let bytes = PyArray1::from_vec(py, rows.rows);
        let array = bytes
            .call_method1("view", (numpy_name(self.dtype),))?
            .call_method1("reshape", (shape,))?;
        Ok(Some((PyArray1::from_vec(py, rows.keys), array)))
    }
}
