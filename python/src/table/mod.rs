//! `Table`: rows of one shape under 64-bit numbers, in memory and on disk.
//!
//! ```text
//!   mod.rs      the class                    options.rs   how it is opened
//!   access.rs   what its calls share         stats.rs     its figures       on_device.rs  lookups into a tensor on a GPU
//!   later.rs    lookups that are awaited
//! ```

mod access;
mod later;
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

use crate::at_exit;
use crate::errors::{invalid, is_forked, table_exception};
use crate::export::{Export, TableItems};
use crate::interrupt;
use crate::items::Shown;
use crate::long::run_long;
use crate::numbers::{Key, Numbers};
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
    #[pyo3(
        signature = (
            dim, dtype=None, *, path=None, host_capacity=None, host_bytes=None, device_capacity=0, device=None,
            score="lfu", admission="second_touch", writes="through", overflow=None, cache_bytes=None
        ),
        text_signature = "(dim, dtype='float32', *, path=None, host_capacity=None, host_bytes=None, device_capacity=0, \
            device=None, score='lfu', admission='second_touch', writes='through', overflow=None, cache_bytes=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn new(
        py: Python<'_>,
        dim: u32,
        dtype: Option<&Bound<'_, PyAny>>,
        path: Option<PathBuf>,
        host_capacity: Option<usize>,
        host_bytes: Option<usize>,
        device_capacity: usize,
        device: Option<Device>,
        score: &str,
        admission: &str,
        writes: &str,
        overflow: Option<&str>,
        cache_bytes: Option<usize>,
    ) -> PyResult<Table> {
        let dtype = dtype.map_or(Ok(Dtype::F32), options::dtype)?;
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
            overflow,
        };
        let builder = forerun::table::Table::builder(dtype, dim);
        let builder = options::apply(builder, path, sizes, policies)?;
        let builder = builder.interrupt(interrupt::is_raised);
        let open = || builder.open();
        let table = interrupt::detach(py, "opening a table", open).map_err(table_exception)?;
        at_exit::remember(&table);
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

    /// What the device tier lies on: a GPU by name, or "cpu"; `None` without such a tier.
    #[getter]
    fn device(&self) -> PyResult<Option<String>> {
        let device = self.open()?.device_stats();
        Ok(device.map(|device| match device.failure {
            None if device.is_gpu => device.name,
            None => "cpu".to_owned(),
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
        self.find_into(py, keys, out, None, found, stream)
    }

    /// `find` in a thread of the event loop's: an awaitable. The current stream is that of the thread that calls. `out` is in
    /// use until the lookup has ended, and refused to other calls, also where the awaiting is cancelled.
    #[pyo3(signature = (keys, out=None, *, stream=None))]
    fn find_async<'py>(
        slf: &Bound<'py, Table>,
        keys: &Bound<'py, PyAny>,
        out: Option<Bound<'py, PyAny>>,
        stream: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        later::find(slf, keys, out, stream)
    }

    /// Which keys have a row.
    fn contains<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArrayDyn<bool>>> {
        let (table, keys) = (self.open()?, Numbers::new(keys)?);
        let found = keys.flags(py)?;
        {
            let mut flags = found.write()?;
            let (flags, keys) = (flags.as_slice_mut()?, keys.as_slice()?);
            self.aside(py, keys.len(), || table.contains(keys, flags))
                .map_err(table_exception)?;
        }
        Ok(found.array)
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
                None => table.import_rows(keys, rows),
                Some(scores) => table.import_rows_with_scores(keys, rows, scores),
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
        let erase = || table.erase(keys);
        interrupt::detach(py, "erasing rows", erase).map_err(table_exception)
    }

    /// Asks for rows to be brought into memory, ahead of their use. Returns at once.
    fn prefetch(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<()> {
        let (table, keys) = (self.open()?, Numbers::new(keys)?);
        let keys = keys.as_slice()?;
        py.detach(|| table.prefetch(keys)).map_err(table_exception)
    }

    /// Waits until no row is on its way between memory and disk.
    fn wait_idle(&self, py: Python<'_>) -> PyResult<()> {
        let table = self.open()?;
        while !py.detach(|| table.wait_idle_for(interrupt::EVERY)) {
            py.check_signals()?;
        }
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
        let flush = || table.flush();
        interrupt::detach(py, "flushing a table", flush).map_err(table_exception)
    }

    /// Makes a store of all rows as they are now in a new directory.
    fn checkpoint(&self, py: Python<'_>, into: PathBuf) -> PyResult<()> {
        let table = self.open()?;
        run_long(py, "making a checkpoint", move || table.checkpoint(into))?
            .map_err(table_exception)
    }

    /// Figures, as a dict.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        stats::figures(py, self.open()?.stats())
    }

    /// Closes it. What was written is durable after this. While another thread closes it, this waits until it is closed.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_closed() {
            return Ok(());
        }
        let table = self.open()?;
        // It takes long to flush many rows, and that can be interrupted: the table stays open then. What goes wrong otherwise
        // the closing tells as well.
        let flushed = interrupt::detach(py, "closing a table", || table.flush());
        if let Err(interrupted @ forerun::table::Error::Interrupted) = flushed {
            return Err(table_exception(interrupted));
        }
        let closed = py.detach(|| table.close());
        let taken = self.take();
        py.detach(|| drop(taken));
        closed.map_err(table_exception)
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.is_closed()
    }

    /// Rows in all tiers. With a path it reads through the store.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let table = self.open()?;
        let count = interrupt::detach(py, "counting rows", || table.count());
        let count = count.map_err(table_exception)?;
        Ok(count as usize)
    }

    /// Whether it has any row.
    fn __bool__(&self, py: Python<'_>) -> PyResult<bool> {
        let table = self.open()?;
        let first = py.detach(|| table.export(1)?.next().transpose());
        Ok(first.map_err(table_exception)?.is_some())
    }

    fn __contains__(&self, py: Python<'_>, key: Key) -> PyResult<bool> {
        self.has(py, key.0)
    }

    /// The row of a key, or `default` if there is none.
    #[pyo3(signature = (key, default=None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: Key,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let row = self.row_of(py, key.0)?;
        Ok(row.or(default))
    }

    fn __getitem__<'py>(&self, py: Python<'py>, key: Key) -> PyResult<Bound<'py, PyAny>> {
        let row = self.row_of(py, key.0)?;
        row.ok_or_else(|| PyKeyError::new_err(key.0))
    }

    fn __setitem__<'py>(&self, py: Python<'py>, key: Key, row: &Bound<'py, PyAny>) -> PyResult<()> {
        let keys = PyArray1::from_slice(py, &[key.0]);
        self.insert(keys.as_any(), row, None)
    }

    fn __delitem__(&self, py: Python<'_>, key: Key) -> PyResult<()> {
        if !self.has(py, key.0)? {
            return Err(PyKeyError::new_err(key.0));
        }
        let table = self.open()?;
        py.detach(|| table.erase(&[key.0])).map_err(table_exception)
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

impl Table {
    /// The handle, which is no longer this object's.
    fn take(&self) -> Option<forerun::table::Table> {
        let table = self.table.write();
        table.unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        let Some(table) = self.take() else {
            return;
        };
        // It flushes. Other Python threads run meanwhile, unless the interpreter is gone.
        let mut table = Some(table);
        Python::try_attach(|py| {
            let table = table.take();
            py.detach(|| drop(table));
        });
    }
}
