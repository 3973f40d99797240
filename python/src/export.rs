//! The rows of a table: batch by batch, or one by one.

use std::sync::{Mutex, PoisonError};

use forerun::process::ProcessBound;
use forerun::table::Dtype;
use numpy::PyArray1;
use pyo3::prelude::*;

use crate::arrays::numpy_name;
use crate::engine_handle::EngineHandle;
use crate::errors::{forked, invalid, table_exception};
use crate::items::Shown;

/// A batch: keys, and an array of their rows.
type KeysAndRows<'py> = (Bound<'py, PyArray1<u64>>, Bound<'py, PyAny>);

/// An iterator over the rows of a table, batch by batch.
#[pyclass(module = "forerun")]
pub(crate) struct Export {
    /// Another thread may hold the lock at a fork.
    export: EngineHandle<ProcessBound<Mutex<forerun::table::Export>>>,
    dtype: Dtype,
    dim: u32,
}

impl Export {
    pub(crate) fn new(export: forerun::table::Export, dtype: Dtype, dim: u32) -> Export {
        Export {
            export: EngineHandle::new(ProcessBound::new(export.into())),
            dtype,
            dim,
        }
    }

    /// The next batch, fetched while other Python threads run: keys, and an array of their rows.
    fn fetch<'py>(&self, py: Python<'py>) -> PyResult<Option<(Vec<u64>, Bound<'py, PyAny>)>> {
        let export = self.export.get().map_err(forked)?;
        let next = py.detach(|| {
            let export = export.lock();
            export.unwrap_or_else(PoisonError::into_inner).next()
        });
        let Some(rows) = next.transpose().map_err(table_exception)? else {
            return Ok(None);
        };
        let shape = (rows.keys.len(), self.dim);
        let array = PyArray1::from_vec(py, rows.rows)
            .call_method1("view", (numpy_name(self.dtype),))?
            .call_method1("reshape", (shape,))?;
        Ok(Some((rows.keys, array)))
    }
}

/// The error for pickling an iterator over a table.
fn unpicklable() -> PyErr {
    invalid("an iterator over a table belongs to this process and cannot be pickled")
}

#[pymethods]
impl Export {
    fn __iter__(slf: Bound<'_, Export>) -> Bound<'_, Export> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<KeysAndRows<'py>>> {
        let batch = self.fetch(py)?;
        Ok(batch.map(|(keys, rows)| (PyArray1::from_vec(py, keys), rows)))
    }

    fn __repr__(&self) -> String {
        format!(
            "forerun.Export(of=\"table\", dim={}, dtype={:?})",
            self.dim,
            self.dtype.name()
        )
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(unpicklable())
    }
}

/// An iterator over the keys of a table, its rows, or both, one by one.
#[pyclass(module = "forerun")]
pub(crate) struct TableItems {
    export: Export,
    shown: Shown,
    /// The fetched rows, and how many of them were returned.
    keys: Vec<u64>,
    rows: Option<Py<PyAny>>,
    given: usize,
}

impl TableItems {
    pub(crate) fn new(export: Export, shown: Shown) -> TableItems {
        TableItems {
            export,
            shown,
            keys: Vec::new(),
            rows: None,
            given: 0,
        }
    }
}

#[pymethods]
impl TableItems {
    fn __iter__(slf: Bound<'_, TableItems>) -> Bound<'_, TableItems> {
        slf
    }

    fn __next__<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        // A batch may be empty: its rows may have been removed while it was collected.
        while self.given == self.keys.len() {
            let Some((keys, rows)) = self.export.fetch(py)? else {
                return Ok(None);
            };
            (self.keys, self.rows, self.given) = (keys, Some(rows.unbind()), 0);
        }
        let (Some(key), Some(rows)) = (self.keys.get(self.given), &self.rows) else {
            return Ok(None);
        };
        let row = || rows.bind(py).get_item(self.given);
        let shown = match self.shown {
            Shown::Keys => key.into_pyobject(py)?.into_any(),
            Shown::Values => row()?,
            Shown::Items => (key, row()?).into_pyobject(py)?.into_any(),
        };
        self.given += 1;
        Ok(Some(shown))
    }

    fn __repr__(&self) -> String {
        let Export { dim, dtype, .. } = &self.export;
        let part = self.shown.name();
        format!(
            "forerun.TableItems(of=\"table\", part={part:?}, dim={dim}, dtype={:?})",
            dtype.name()
        )
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(unpicklable())
    }
}
