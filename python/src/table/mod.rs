//! `Table`: rows of one shape under 64-bit numbers, in memory and on disk.
//!
//! ```text
//!   mod.rs      the class                    options.rs   how it is opened
//!   access.rs   what its calls share         stats.rs     its figures       on_device.rs  lookups into a tensor on a GPU
//! ```

mod access;
mod on_device;
mod options;
mod stats;

use std::path::PathBuf;
use std::sync::{PoisonError, RwLock};

use forerun::table::{DeviceStats, Dtype, Update};
use numpy::{PyArray1, PyArrayDyn};
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::arrays::zeros;
use crate::cuda::stream_of;
use crate::dlpack::is_on_cuda;
use crate::errors::{invalid, is_forked, table_exception};
use crate::export::{Export, TableItems};
use crate::items::Shown;
use crate::numbers::Numbers;
use options::{Device, Policies, Sizes};

/// What `find` gives: rows, and which of them were found.
type RowsAndFound<'py> = (Bound<'py, PyAny>, Bound<'py, PyArrayDyn<bool>>);

/// Rows of one shape under 64-bit numbers.
#[pyclass(frozen, module = "forerun")]
pub(crate) struct Table {
    dtype: Dtype,
    dim: u32,
    /// Whether a lookup may wait for more than memory.
    waits: bool,
    /// `None` once it is closed.
    table: RwLock<Option<forerun::table::Table>>,
}

#[pymethods]
impl Table {
    #[new]
    #[pyo3(signature = (
        dim, dtype="float32", *, path=None, host_capacity=None, host_bytes=None, device_capacity=0, device=None,
        score="lfu", admission="second_touch", writes="through", cache_bytes=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn new(
        py: Python<'_>,
        dim: u32,
        dtype: &str,
        path: Option<PathBuf>,
        host_capacity: Option<usize>,
        host_bytes: Option<usize>,
        device_capacity: usize,
        device: Option<Device>,
        score: &str,
        admission: &str,
        writes: &str,
        cache_bytes: Option<usize>,
    ) -> PyResult<Table> {
        let dtype: Dtype = dtype
            .parse()
            .map_err(|error: forerun::table::UnknownDtype| invalid(error.to_string()))?;
        let waits = path.is_some() || device_capacity > 0;
        let sizes = Sizes {
            device_capacity,
            device,
            host_capacity,
            host_bytes,
            cache_bytes,
        };
        let policies = Policies {
            score,
            admission,
            writes,
        };
        let builder = forerun::table::Table::builder(dtype, dim);
        let builder = options::apply(builder, path, sizes, policies)?;
        let table = py.detach(|| builder.open()).map_err(table_exception)?;
        Ok(Table {
            dtype,
            dim,
            waits,
            table: RwLock::new(Some(table)),
        })
    }

    /// Elements a row.
    #[getter]
    fn dim(&self) -> u32 {
        self.dim
    }

    /// What the device tier lies on: a GPU, by name, or "the processor"; `None` without such a tier.
    #[getter]
    fn device(&self) -> PyResult<Option<String>> {
        let device = self.open()?.device_stats();
        Ok(device.map(|device| match device.failure {
            None => device.name,
            Some(failure) => format!("{}, left out since it failed: {failure}", device.name),
        }))
    }

    /// The number of the GPU that the device tier lies on; `None` where it lies on none, or has failed.
    #[getter]
    fn gpu(&self) -> PyResult<Option<usize>> {
        let table = self.open()?;
        let works = |device: DeviceStats| device.failure.is_none();
        let gpu = table
            .gpu()
            .filter(|_| table.device_stats().is_some_and(works));
        Ok(gpu.map(|gpu| gpu.info().ordinal))
    }

    /// The elements' type, by name.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.dtype.name()
    }

    /// Looks keys up. Returns rows, in the shape of the keys with one more dimension, and which were found; rows that
    /// were not are zero, or, in `out`, stay as they were. Where `out` is a tensor on the GPU of the device tier, rows go
    /// there, behind what is on `stream`, or else on the current one; they are there when this returns.
    #[pyo3(signature = (keys, out=None, found=None, *, stream=None))]
    fn find<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        out: Option<Bound<'py, PyAny>>,
        found: Option<&Bound<'py, PyAny>>,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<RowsAndFound<'py>> {
        let (table, keys) = (self.open()?, Numbers::new(keys)?);
        let on_device = match &out {
            Some(out) => is_on_cuda(out, "out")?,
            None => false,
        };
        if stream.is_some() && !on_device {
            return Err(invalid(
                "`stream` is for rows that go to a GPU, and `out` is in the processor's memory",
            ));
        }
        let rows = match out {
            Some(out) => out,
            None => zeros(py, self.dtype, &keys.shape_of_rows(self.dim))?,
        };
        let found = keys.flags_or(py, found)?;
        if on_device {
            let mut flags = found.write()?;
            self.find_to_device(&table, &keys, &rows, flags.as_slice_mut()?, stream)?;
        } else {
            let mut written = self.written(&rows, "out")?;
            let mut flags = found.write()?;
            let (bytes, flags) = (written.bytes()?, flags.as_slice_mut()?);
            self.expect_rows(&keys, bytes.len(), "out")?;
            let keys = keys.as_slice()?;
            self.aside(py, keys.len(), || table.find(keys, bytes, flags))
                .map_err(table_exception)?;
        }
        Ok((rows, found.0))
    }

    /// `find` in a thread of the event loop's: an awaitable. The current stream is that of the thread that calls.
    #[pyo3(signature = (keys, out=None, *, stream=None))]
    fn find_async<'py>(
        slf: &Bound<'py, Table>,
        keys: &Bound<'py, PyAny>,
        out: Option<Bound<'py, PyAny>>,
        stream: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let stream = match &out {
            Some(out) if is_on_cuda(out, "out")? => {
                let stream = stream_of(stream.as_ref(), out)?.number();
                Some(stream.into_pyobject(py)?.into_any())
            }
            _ => stream,
        };
        let event_loop = py.import("asyncio")?.call_method0("get_running_loop")?;
        let named = PyDict::new(py);
        named.set_item("stream", stream)?;
        let find = (slf.getattr("find")?, keys, out);
        let find = py
            .import("functools")?
            .call_method("partial", find, Some(&named))?;
        event_loop.call_method1("run_in_executor", (py.None(), find))
    }

    /// Which keys have a row.
    fn contains<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArrayDyn<bool>>> {
        let (table, keys) = (self.open()?, Numbers::new(keys)?);
        let found = keys.flags(py);
        {
            let mut flags = found.write()?;
            let (flags, keys) = (flags.as_slice_mut()?, keys.as_slice()?);
            self.aside(py, keys.len(), || table.contains(keys, flags))
                .map_err(table_exception)?;
        }
        Ok(found.0)
    }

    /// Puts rows under keys, whether there are some already or not. Of a key that repeats, the last row stays.
    #[pyo3(signature = (keys, rows, *, scores=None))]
    fn insert<'py>(
        &self,
        keys: &Bound<'py, PyAny>,
        rows: &Bound<'py, PyAny>,
        scores: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        self.put_rows(
            keys,
            rows,
            scores,
            |table, keys, rows, scores| match scores {
                None => table.insert(keys, rows),
                Some(scores) => table.insert_with_scores(keys, rows, scores),
            },
        )
    }

    /// As `insert`, and leaves the rows in the store: loads a table without driving out what is in use.
    #[pyo3(signature = (keys, rows, *, scores=None))]
    fn load<'py>(
        &self,
        keys: &Bound<'py, PyAny>,
        rows: &Bound<'py, PyAny>,
        scores: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        self.put_rows(
            keys,
            rows,
            scores,
            |table, keys, rows, scores| match scores {
                None => table.import(keys, rows),
                Some(scores) => table.import_with_scores(keys, rows, scores),
            },
        )
    }

    /// Replaces the rows of keys that are present; returns which are.
    fn assign<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        rows: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArrayDyn<bool>>> {
        self.update_rows(py, keys, rows, Update::Assign)
    }

    /// Adds to the rows of keys that are present, element by element; returns which are. A key may repeat.
    fn add<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        rows: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArrayDyn<bool>>> {
        self.update_rows(py, keys, rows, Update::Add)
    }

    /// Removes keys, which need not be there.
    fn erase(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<()> {
        let (table, keys) = (self.open()?, Numbers::new(keys)?);
        let keys = keys.as_slice()?;
        py.detach(|| table.erase(keys)).map_err(table_exception)
    }

    /// Asks for rows to be brought into memory, ahead of their use. Returns at once.
    fn prefetch(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<()> {
        let (table, keys) = (self.open()?, Numbers::new(keys)?);
        let keys = keys.as_slice()?;
        py.detach(|| table.prefetch(keys)).map_err(table_exception)
    }

    /// Waits until no row is on its way between memory and disk.
    fn settle(&self, py: Python<'_>) -> PyResult<()> {
        let table = self.open()?;
        py.detach(|| table.settle());
        Ok(())
    }

    /// All rows, as pairs of arrays of up to `batch` keys and their rows.
    #[pyo3(signature = (batch=65_536))]
    fn export(&self, py: Python<'_>, batch: usize) -> PyResult<Export> {
        let table = self.open()?;
        let export = py.detach(|| table.export(batch)).map_err(table_exception)?;
        Ok(Export::new(export, self.dtype, self.dim))
    }

    /// Makes all rows durable that were written.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        let table = self.open()?;
        py.detach(|| table.flush()).map_err(table_exception)
    }

    /// Makes a store of all rows as they are now in a new directory.
    fn checkpoint(&self, py: Python<'_>, into: PathBuf) -> PyResult<()> {
        let table = self.open()?;
        py.detach(|| table.checkpoint(into))
            .map_err(table_exception)
    }

    /// Figures, as a dict.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        stats::figures(py, self.open()?.stats())
    }

    /// Closes it. What was written is durable after this.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let table = self.table.write();
        let table = table.unwrap_or_else(PoisonError::into_inner).take();
        match table {
            Some(table) => py.detach(|| table.close()).map_err(table_exception),
            None => Ok(()),
        }
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.is_closed()
    }

    /// Rows in all tiers. With a path it reads through the store.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let table = self.open()?;
        let count = py.detach(|| table.count()).map_err(table_exception)?;
        Ok(count as usize)
    }

    /// Whether it has any row.
    fn __bool__(&self, py: Python<'_>) -> PyResult<bool> {
        let table = self.open()?;
        let first = py.detach(|| table.export(1)?.next().transpose());
        Ok(first.map_err(table_exception)?.is_some())
    }

    fn __contains__(&self, py: Python<'_>, key: u64) -> PyResult<bool> {
        let table = self.open()?;
        let found = self.aside(py, 1, || table.contains(&[key], &mut [false]));
        Ok(found.map_err(table_exception)? == 1)
    }

    /// The row of a key, or `default` if there is none.
    #[pyo3(signature = (key, default=None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: u64,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let table = self.open()?;
        let row = zeros(py, self.dtype, &[self.dim as usize])?;
        let found = {
            let mut written = self.written(&row, "row")?;
            let bytes = written.bytes()?;
            self.aside(py, 1, || table.find(&[key], bytes, &mut [false]))
                .map_err(table_exception)?
        };
        Ok(if found == 1 { Some(row) } else { default })
    }

    fn __getitem__<'py>(&self, py: Python<'py>, key: u64) -> PyResult<Bound<'py, PyAny>> {
        let row = self.get(py, key, None)?;
        row.ok_or_else(|| PyKeyError::new_err(key))
    }

    fn __setitem__<'py>(&self, py: Python<'py>, key: u64, row: &Bound<'py, PyAny>) -> PyResult<()> {
        let keys = PyArray1::from_slice(py, &[key]);
        self.insert(keys.as_any(), row, None)
    }

    fn __delitem__(&self, py: Python<'_>, key: u64) -> PyResult<()> {
        if !self.__contains__(py, key)? {
            return Err(PyKeyError::new_err(key));
        }
        let table = self.open()?;
        py.detach(|| table.erase(&[key])).map_err(table_exception)
    }

    /// The keys, as they were when this was called where there is a path.
    fn keys(&self, py: Python<'_>) -> PyResult<TableItems> {
        self.items(py, Shown::Keys)
    }

    /// As `keys`, the rows.
    fn values(&self, py: Python<'_>) -> PyResult<TableItems> {
        self.items(py, Shown::Values)
    }

    /// As `keys`, pairs of keys and rows.
    #[pyo3(name = "items")]
    fn py_items(&self, py: Python<'_>) -> PyResult<TableItems> {
        self.items(py, Shown::Items)
    }

    fn __iter__(&self, py: Python<'_>) -> PyResult<TableItems> {
        self.items(py, Shown::Keys)
    }

    fn __enter__(slf: Bound<'_, Table>) -> Bound<'_, Table> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyTuple>) -> PyResult<()> {
        // A fork that leaves the block leaves the table to its parent.
        match self.open() {
            Err(error) if is_forked(py, &error) => Ok(()),
            _ => self.close(py),
        }
    }

    fn __repr__(&self) -> String {
        let closed = if self.closed() { ", closed" } else { "" };
        format!(
            "forerun.Table(dim={}, dtype={:?}{closed})",
            self.dim,
            self.dtype.name()
        )
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(invalid(
            "a table is a handle of this process and cannot be pickled: pickle its path and open it there",
        ))
    }
}
