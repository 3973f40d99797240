//! The host's rows of a hot pool, backed by a table.

use std::sync::{Mutex, PoisonError};

use forerun::gpu::hot_pool::{self as engine, AcquireError};
use numpy::PyArray1;
use pyo3::prelude::*;

use crate::errors::{invalid, table_exception, too_large};
use crate::hot_pool_arguments::{ReadIntegers, hot_pool_exception};
use crate::numbers::Numbers;
use crate::rows::{readable_rows, writable_rows};
use crate::table::Table;

/// Which row of the array `host` holds which key of a `Table`: what is below a `HotPool`. A row of
/// the table is a row of the array, with all its layers.
#[pyclass(frozen, module = "forerun")]
pub(crate) struct HostRows {
    host: Py<PyAny>,
    table: Py<Table>,
    rows: Mutex<engine::HostRows>,
}

#[pymethods]
impl HostRows {
    #[new]
    fn new(host: &Bound<'_, PyAny>, table: Bound<'_, Table>) -> PyResult<HostRows> {
        let given = readable_rows(host, "host")?;
        let [rows, row_bytes] = [given.shape()[0], given.shape()[1]];
        let open = table.get().open()?;
        if open.row().bytes() != row_bytes {
            return Err(invalid(format!(
                "a row of `host` has {row_bytes} bytes, but one of the table has {}",
                open.row().bytes()
            )));
        }
        let rows = u32::try_from(rows).map_err(|_| too_large("`host` has too many rows"))?;
        Ok(HostRows {
            host: host.clone().unbind(),
            table: table.unbind(),
            rows: Mutex::new(engine::HostRows::new(rows, row_bytes)),
        })
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!(
            "forerun.HostRows(table={})",
            self.table.bind(py).repr()?
        ))
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(invalid(
            "what holds rows of an array of this process cannot be pickled",
        ))
    }

    /// The host row of each key, as int64, held until it is released as often. Keys without one are
    /// fetched from the table, in batches, into rows that are not held.
    fn acquire<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArray1<i64>>> {
        let keys = Numbers::new(keys)?;
        let keys = keys.as_slice()?;
        let table = self.table.get().open()?;
        let mut host = writable_rows(self.host.bind(py), "host")?;
        let memory = host.as_slice_mut()?;
        let mut rows = crate::new_objects::with_room_for(keys.len())?;
        rows.resize(keys.len(), 0i64);
        let acquired = py.detach(|| {
            let mut held = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
            held.acquire(keys, memory, &table, &mut rows)
        });
        acquired.map_err(|error| match error {
            AcquireError::Pool(error) => hot_pool_exception(error),
            AcquireError::Store(error) => table_exception(error),
        })?;
        Ok(PyArray1::from_vec(py, rows))
    }

    /// Gives up rows (int64), each as often as it is named. Launches that read them must have
    /// ended.
    fn release(&self, py: Python<'_>, rows: &Bound<'_, PyAny>) -> PyResult<()> {
        let rows = ReadIntegers::<i64>::new(rows, "rows", "int64")?;
        let rows = rows.as_slice()?;
        // `acquire` may have the lock while it waits for a disk.
        let released = py.detach(|| {
            let mut held = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
            held.release(rows)
        });
        released.map_err(hot_pool_exception)
    }

    /// Rows that are held.
    #[getter]
    fn held(&self, py: Python<'_>) -> u64 {
        py.detach(|| {
            let rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
            rows.held()
        })
    }
}
