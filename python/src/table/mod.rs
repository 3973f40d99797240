//! `Table`: rows of one size under 64-bit integer keys.
//!
//! ```text
//!   mod.rs      the class                     options.rs   how it is opened
//!   access.rs   what its calls share          stats.rs     its metrics       on_device.rs  lookups into a tensor on a GPU
//!   find_async.rs  lookups that are awaited   find_pooled.rs  lookups of bags  once.rs  writes that are applied once
//!   add_marked.rs  additions that can be interrupted and continued
//! ```

pub(crate) mod access;
mod add_marked;
mod find_async;
mod find_pooled;
mod on_device;
mod once;
pub(crate) mod options;
mod stats;

use std::path::PathBuf;
use std::sync::RwLock;

use forerun::Access;
use forerun::backup::FileCopyOptions;
use forerun::table::{DeviceStats, Dtype, Update};
use numpy::{PyArray1, PyArrayDyn, PyReadwriteArray1};
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use crate::at_exit;
use crate::copy_progress;
use crate::errors::{invalid, is_forked, table_exception};
use crate::export::{Export, TableItems};
use crate::interrupt;
use crate::items::Shown;
use crate::numbers::{Key, Numbers};
use crate::numeric_arguments;
use crate::store_options::{CreateStore, Rate, Size};
use find_pooled::{Arguments, PooledAndFound};
use options::{Device, Memory, Policies, Sizes, StoreLocation};
use stats::MemoryLimit;

/// The result of `find`: the rows, and which keys were found.
type RowsAndFound<'py> = (Bound<'py, PyAny>, Bound<'py, PyArrayDyn<bool>>);

/// A table of rows of one size under 64-bit integer keys, in GPU memory, host memory and on disk.
///
/// `dim`: the number of elements in a row. `dtype`: the element type, as a name or as a type of
/// NumPy or PyTorch. `path`: the directory of the store that holds all rows; without it the table
/// is only in memory. `memory`: the maximum host memory for rows, their index, and the store's
/// pages and memtables together; "auto" is half of what the process may use, for a process with one
/// table. A store exceeds it only by its minimum: a root page for each run, and 16 bytes for each
/// page of 4 KiB. The parts can also be set one by one. `host_capacity`: the
/// maximum number of rows in host memory. `host_bytes`: the same limit in bytes, including the
/// index; give one of the two. `cache_bytes`: the size of the store's page cache. `compression`: of
/// what the store writes to runs, as for `Db`.
/// `device_capacity`: the maximum number of rows on the device, which is not part of `memory`; 0
/// for no device tier. `device`: "any" (the first GPU, or the CPU without one), "cpu", or the
/// number of a GPU. `evict_strategy`: which rows a tier evicts first: "lru", "lfu" or "customized"
/// (those with the lowest of the caller's `scores`). `admission`: which rows a lookup promotes:
/// "always", "second_touch" (rows that were looked up before) or "by_score". `writes`: "through"
/// writes each row to the store before the call returns; "back" writes it when it leaves memory, or
/// at `flush`. `when_full`: what a full table without `path` does: "refuse" new rows, or "evict"
/// others. `create`: "if_missing" or True creates a missing store, "never" or False raises
/// `NotFoundError` for one, "must_be_new" raises `AlreadyExistsError` for an existing one.
/// `read_only`: changes nothing in the directory, which may be on a read-only file system; every
/// write raises an error.
///
/// A size is a number of bytes, or a text such as "2GiB" or "25%" of what the process may use.
#[pyclass(frozen, module = "forerun")]
pub(crate) struct Table {
    dtype: Dtype,
    dim: u32,
    /// Whether a lookup may wait for the disk or the device.
    waits: bool,
    path: Option<PathBuf>,
    /// The limit of its memory, if that is not the machine's.
    limit: Option<MemoryLimit>,
    /// `None` once it is closed.
    table: RwLock<Option<forerun::table::Table>>,
}

#[pymethods]
impl Table {
    #[new]
    #[pyo3(
        signature = (
            dim, dtype=None, *, path=None, memory=None, host_capacity=None, host_bytes=None,
            cache_bytes=None, compression=None, device_capacity=0, device=None,
            evict_strategy="lfu",
            admission="second_touch", writes="through", when_full=None,
            create=CreateStore::DEFAULT, read_only=false
        ),
        text_signature = "(dim, dtype='float32', *, path=None, memory=None, host_capacity=None, \
            host_bytes=None, cache_bytes=None, compression=None, device_capacity=0, device=None, \
            evict_strategy='lfu', admission='second_touch', writes='through', when_full=None, \
            create='if_missing', read_only=False)"
    )]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn new(
        py: Python<'_>,
        #[pyo3(from_py_with = numeric_arguments::dim)] dim: u32,
        dtype: Option<&Bound<'_, PyAny>>,
        path: Option<PathBuf>,
        memory: Option<Memory>,
        #[pyo3(from_py_with = numeric_arguments::host_capacity)] host_capacity: Option<usize>,
        host_bytes: Option<Size>,
        cache_bytes: Option<Size>,
        compression: Option<&str>,
        #[pyo3(from_py_with = numeric_arguments::device_capacity)] device_capacity: usize,
        device: Option<Device>,
        evict_strategy: &str,
        admission: &str,
        writes: &str,
        when_full: Option<&str>,
        create: CreateStore,
        read_only: bool,
    ) -> PyResult<Table> {
        let dtype = dtype.map_or(Ok(Dtype::F32), options::dtype)?;
        // The process may change its directory. Opening the store refuses an empty path.
        let path = path.map(|path| std::path::absolute(&path).unwrap_or(path));
        let waits = path.is_some() || device_capacity > 0;
        let sizes = Sizes {
            device_capacity,
            device,
            host_capacity,
            host_bytes,
            cache_bytes,
            memory,
        };
        let place = StoreLocation {
            path: path.clone(),
            compression,
            create,
            access: if read_only {
                Access::ReadOnly
            } else {
                Access::ReadWrite
            },
        };
        let policies = Policies {
            evict_strategy,
            admission,
            writes,
            when_full,
        };
        let builder = forerun::table::Table::builder(dtype, dim);
        let builder = options::apply(builder, place, sizes, policies)?;
        let limit = match builder.memory_budget() {
            Some(bytes) => Some(MemoryLimit::Budget(bytes as u64)),
            None => {
                let has_parts = host_capacity.is_some() || host_bytes.is_some();
                (path.is_some() || has_parts).then_some(MemoryLimit::Parts)
            }
        };
        let builder = builder.interrupt_if(interrupt::is_raised);
        let open = || builder.open();
        let table = interrupt::detach(py, "opening a table", open).map_err(table_exception)?;
        at_exit::remember(&table);
        Ok(Table {
            dtype,
            dim,
            waits,
            path,
            limit,
            table: RwLock::new(Some(table)),
        })
    }

    /// The directory of the store, as an absolute path; `None` without one.
    #[getter]
    fn path(&self) -> Option<PathBuf> {
        self.path.clone()
    }

    /// The elements in a row.
    #[getter]
    fn dim(&self) -> u32 {
        self.dim
    }

    /// The device of the device tier: a GPU by name, or "cpu"; `None` without a device tier.
    #[getter]
    fn device(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let table = self.open()?;
        Ok(py.detach(|| table.device_stats()).map(stats::device))
    }

    /// The number of the device tier's GPU; `None` without a GPU, or after it failed.
    #[getter]
    fn gpu(&self, py: Python<'_>) -> PyResult<Option<usize>> {
        let table = self.open()?;
        let works = |device: DeviceStats| device.failure.is_none();
        let ordinal = || {
            let gpu = table.gpu();
            let gpu = gpu.filter(|_| table.device_stats().is_some_and(works));
            gpu.map(|gpu| gpu.info().ordinal)
        };
        Ok(py.detach(ordinal))
    }

    /// The name of the elements' type.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.dtype.name()
    }

    /// Looks up keys. Returns the rows, in the shape of the keys with one more dimension, and which
    /// keys were found. Rows of missing keys are zero; in `out` they keep their content. If `out`
    /// is a tensor on the GPU of the device tier, the rows are copied there, after the work on
    /// `stream` (by default the current stream), and have arrived when this returns.
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

    /// `find` as an awaitable, run in a thread of the event loop. The current stream is that of the
    /// calling thread. Other calls cannot use `out` until the lookup has ended, even if the
    /// awaiting task is cancelled.
    #[pyo3(signature = (keys, out=None, *, stream=None))]
    fn find_async<'py>(
        slf: &Bound<'py, Table>,
        keys: &Bound<'py, PyAny>,
        out: Option<Bound<'py, PyAny>>,
        stream: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        find_async::find(slf, keys, out, stream)
    }

    /// Looks up bags of keys and adds up their rows. Bag `b` has the keys from `offsets[b]` to
    /// `offsets[b + 1]`, so `offsets` begins with 0 and ends with the number of keys. Returns the
    /// pooled rows, one for each bag, and how many of its keys were found.
    ///
    /// `mode`: "sum" or "mean". `weights`: a float32 for each key, by which its row is multiplied;
    /// a mean is then divided by their sum. `dtype`: the type of the pooled rows, float32, float16
    /// or bfloat16; sums are computed in float32. Missing keys count as zeros.
    ///
    /// A table of int8 has the scale of each row, a float32, in its last 4 bytes. A table of uint8
    /// has a scale and a bias in its last 8, as FBGEMM's 8-bit rows do. The pooled rows are
    /// dequantized.
    #[pyo3(
        signature = (keys, offsets, *, weights=None, mode="sum", dtype=None, out=None),
        text_signature = "($self, keys, offsets, *, weights=None, mode='sum', dtype='float32', \
            out=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn find_pooled<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        offsets: &Bound<'py, PyAny>,
        weights: Option<&Bound<'py, PyAny>>,
        mode: &str,
        dtype: Option<&Bound<'py, PyAny>>,
        out: Option<Bound<'py, PyAny>>,
    ) -> PyResult<PooledAndFound<'py>> {
        let arguments = Arguments {
            offsets,
            weights,
            mode,
            dtype,
            out,
        };
        self.pool(py, keys, arguments)
    }

    /// Returns which keys have a row.
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

    /// Writes rows and replaces any former rows of their keys. If a key repeats, its last row
    /// counts. `scores` has one score per key, for a table with evict_strategy="customized".
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

    /// Writes rows directly to the store. It loads a table without evicting the rows in use.
    /// Arguments as for `insert`.
    #[pyo3(signature = (keys, rows, *, scores=None))]
    fn import_rows<'py>(
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

    /// Replaces the rows of keys that exist. Returns which keys exist.
    fn assign<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        rows: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArrayDyn<bool>>> {
        self.update_rows(py, keys, rows, Update::Assign)
    }

    /// Adds to the rows of keys that exist, element by element. Returns which keys exist. If a key
    /// repeats, each of its rows is added, as with NumPy's `ufunc.at`.
    fn add_at<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        rows: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArrayDyn<bool>>> {
        self.update_rows(py, keys, rows, Update::Add)
    }

    /// Deletes keys. A missing key is not an error.
    fn erase(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<()> {
        let (table, keys) = (self.open()?, Numbers::new(keys)?);
        let keys = keys.as_slice()?;
        let erase = || table.erase(keys);
        interrupt::detach(py, "erasing rows", erase).map_err(table_exception)
    }

    /// Promotes rows ahead of their use, in the background. Returns at once.
    fn prefetch(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<()> {
        let (table, keys) = (self.open()?, Numbers::new(keys)?);
        let keys = keys.as_slice()?;
        py.detach(|| table.prefetch(keys)).map_err(table_exception)
    }

    /// Waits until no row is being moved in the background.
    fn wait_idle(&self, py: Python<'_>) -> PyResult<()> {
        let table = self.open()?;
        while !py.detach(|| table.wait_idle_for(interrupt::EVERY)) {
            py.check_signals()?;
        }
        Ok(())
    }

    /// Iterates over all rows, as pairs of arrays: up to `batch` keys, and their rows.
    #[pyo3(signature = (batch=65_536))]
    fn export(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = numeric_arguments::batch)] batch: usize,
    ) -> PyResult<Export> {
        let table = self.open()?;
        let export = py.detach(|| table.export(batch)).map_err(table_exception)?;
        Ok(Export::new(export, self.dtype, self.dim))
    }

    /// For the optimizer of `forerun.torch`: `add_at` that sets the mark of each key that is done
    /// to 1, or to 2 if it has no row. Whatever this raises, a mark of 0 says that a key is left.
    fn _add_marked<'py>(
        &self,
        keys: &Bound<'py, PyAny>,
        rows: &Bound<'py, PyAny>,
        marks: PyReadwriteArray1<'py, u8>,
    ) -> PyResult<()> {
        add_marked::add(self, keys, rows, marks)
    }

    /// For `forerun.exchange`: a value in the store, beside the rows.
    fn _metadata(&self, py: Python<'_>, name: &str) -> PyResult<Option<Vec<u8>>> {
        let table = self.open()?;
        py.detach(|| table.metadata(name)).map_err(table_exception)
    }

    fn _put_metadata(&self, py: Python<'_>, name: &str, value: &[u8]) -> PyResult<()> {
        let table = self.open()?;
        let put = || table.put_metadata(name, value);
        py.detach(put).map_err(table_exception)
    }

    /// For the shards of `forerun.ray`: a write that is applied once, however often the client
    /// repeats it. `op` is "insert", "assign", "add_at" or "erase".
    fn _write_once<'py>(
        &self,
        client: &Bound<'py, PyBytes>,
        sequence: u64,
        op: &str,
        keys: &Bound<'py, PyAny>,
        rows: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyArray1<u8>>> {
        once::write(self, client, sequence, op, keys, rows)
    }

    /// The last write of a client: its sequence, its number of keys, the flags of those that are
    /// applied, and the keys of all writes of the client.
    fn _applied<'py>(
        &self,
        client: &Bound<'py, PyBytes>,
    ) -> PyResult<Option<once::AppliedParts<'py>>> {
        once::applied(self, client)
    }

    /// Forgets a client, which must not repeat a write.
    fn _forget_client(&self, client: &Bound<'_, PyBytes>) -> PyResult<bool> {
        once::forget(self, client)
    }

    /// Forgets the clients whose last write is older than this. Returns their number.
    fn _forget_clients(&self, py: Python<'_>, older_than_seconds: u64) -> PyResult<usize> {
        once::forget_old(self, py, older_than_seconds)
    }

    /// Makes all written rows durable.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        let table = self.open()?;
        let flush = || table.flush();
        interrupt::detach(py, "flushing a table", flush).map_err(table_exception)
    }

    /// Writes a store with all rows, as of now, to a new directory. A table opened with `read_only`
    /// raises `ReadOnlyError`. `rate_bytes` and `progress`: as for `Db.checkpoint`.
    #[pyo3(signature = (into, *, rate_bytes=None, progress=None))]
    fn checkpoint(
        &self,
        py: Python<'_>,
        into: PathBuf,
        rate_bytes: Option<Rate>,
        progress: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let table = self.open()?;
        let copy = move |options: &FileCopyOptions| table.checkpoint_with(into, options);
        copy_progress::run(py, "making a checkpoint", rate_bytes, progress, copy)?
            .map_err(table_exception)
    }

    /// Returns all metrics of the table's statistics as a dict. Those of the store below begin with
    /// `store_`. The metrics of a missing tier are 0.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let table = self.open()?;
        // The metrics of a store are read under its locks.
        stats::dict(py, &py.detach(|| table.stats()))
    }

    /// Closes the table. All written rows are durable afterwards. If another thread is closing it,
    /// this waits for that.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_closed() {
            return Ok(());
        }
        let table = self.open()?;
        // Flushing many rows takes long and can be interrupted; the table then stays open. Closing
        // reports any other error again.
        let flushed = interrupt::detach(py, "closing a table", || table.flush());
        if let Err(interrupted @ forerun::table::Error::Interrupted) = flushed {
            return Err(table_exception(interrupted));
        }
        let closed = py.detach(|| table.close());
        let taken = self.take();
        py.detach(|| drop(taken));
        closed.map_err(table_exception)
    }

    /// Whether the table is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.is_closed()
    }

    /// The number of rows in all tiers. With `path`, the first count reads the keys that were
    /// written last, and a later one looks up the keys that were written since.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let table = self.open()?;
        let count = interrupt::detach(py, "counting rows", || table.count());
        let count = count.map_err(table_exception)?;
        Ok(count as usize)
    }

    /// Whether there is at least one row.
    fn __bool__(&self, py: Python<'_>) -> PyResult<bool> {
        let table = self.open()?;
        let first = py.detach(|| table.export(1)?.next().transpose());
        Ok(first.map_err(table_exception)?.is_some())
    }

    fn __contains__(&self, py: Python<'_>, key: Key) -> PyResult<bool> {
        self.has(py, key.0)
    }

    /// Returns the row of a key, or `default` if the key is missing.
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

    /// Iterates over the keys. With `path` the iterator sees the table as of this call.
    fn keys(&self, py: Python<'_>) -> PyResult<TableItems> {
        self.items(py, Shown::Keys)
    }

    /// Iterates over the rows, as `keys` does over the keys.
    fn values(&self, py: Python<'_>) -> PyResult<TableItems> {
        self.items(py, Shown::Values)
    }

    /// Iterates over `(key, row)` pairs, as `keys` does over the keys.
    #[pyo3(name = "items")]
    fn py_items(&self, py: Python<'_>) -> PyResult<TableItems> {
        self.items(py, Shown::Items)
    }

    /// `reversed` would otherwise look up the integers below the number of rows.
    #[classattr]
    fn __reversed__() -> Option<bool> {
        None
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

    fn __repr__(&self, py: Python<'_>) -> String {
        stats::repr(self, py)
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(invalid(
            "a table is a handle of this process and cannot be pickled: pickle its path and open \
             it there",
        ))
    }
}
