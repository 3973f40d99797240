//! `Table`: rows of one shape under 64-bit numbers, in memory and on disk.

use std::path::PathBuf;
use std::sync::RwLock;

use forerun::Options;
use forerun::table::{Admission, Dtype, Score, Update, Writes};
use numpy::{PyArray1, PyArrayDyn, PyArrayMethods};
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::errors::{closed, invalid, table_exception, unknown};
use crate::export::{Export, numpy_name};
use crate::numbers::Numbers;
use crate::rows::{readable_rows, writable_rows};

/// What `find` gives: rows, and which of them were found.
type RowsAndFound<'py> = (Bound<'py, PyAny>, Bound<'py, PyArrayDyn<bool>>);

/// Rows of one shape under 64-bit numbers.
#[pyclass(frozen, module = "forerun")]
pub(crate) struct Table {
    dtype: Dtype,
    dim: u32,
    /// `None` once it is closed.
    table: RwLock<Option<forerun::table::Table>>,
}

impl Table {
    /// The table, unless it is closed.
    fn open(&self) -> PyResult<forerun::table::Table> {
        let table = self.table.read();
        let table = table.unwrap_or_else(std::sync::PoisonError::into_inner);
        table.clone().ok_or_else(|| closed("table"))
    }

    /// An array of zeros for rows of so many keys.
    fn zeros<'py>(&self, keys: &Numbers<'py>, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let shape = keys.shape_with(py, Some(self.dim))?;
        py.import("numpy")?
            .call_method1("zeros", (shape, numpy_name(self.dtype)))
    }

    /// Rows as the caller gave them, as bytes: as many as keys, of this table's size.
    fn given<'py, R>(
        &self,
        keys: &Numbers<'py>,
        rows: &Bound<'py, PyAny>,
        use_rows: impl FnOnce(&[u64], &[u8]) -> PyResult<R>,
    ) -> PyResult<R> {
        // Rows of more dimensions than two are rows all the same.
        let flat = self.flat(keys, rows)?;
        let rows = readable_rows(&flat, "rows")?;
        use_rows(keys.as_slice()?, rows.as_slice()?)
    }

    /// The array as one of `keys` rows, without a copy if it is contiguous.
    fn flat<'py>(
        &self,
        keys: &Numbers<'py>,
        rows: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let rows = if rows.hasattr("dtype")? && !rows.hasattr("flags")? {
            rows.py()
                .import("numpy")?
                .call_method1("from_dlpack", (rows,))?
        } else {
            rows.clone()
        };
        let bytes = keys.len() * self.row_bytes();
        let given: usize = match rows.getattr("nbytes") {
            Ok(given) => given.extract()?,
            Err(_) => {
                return Err(invalid(format!(
                    "rows are an array of {} of shape (keys, {}), not {}",
                    self.dtype.name(),
                    self.dim,
                    rows.get_type().name()?
                )));
            }
        };
        if given != bytes {
            return Err(invalid(format!(
                "{} rows of {} {} take {bytes} bytes; the array has {given}",
                keys.len(),
                self.dim,
                self.dtype.name()
            )));
        }
        rows.call_method1("reshape", ((keys.len(), -1),))
            .or_else(|error| match keys.len() {
                // Nothing can be anything a row.
                0 => Ok(rows.clone()),
                _ => Err(error),
            })
    }

    fn row_bytes(&self) -> usize {
        self.dtype.bytes() * self.dim as usize
    }

    fn update_rows<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        rows: &Bound<'py, PyAny>,
        how: Update,
    ) -> PyResult<Bound<'py, PyArrayDyn<bool>>> {
        let (table, keys) = (self.open()?, Numbers::new(keys)?);
        let found = PyArray1::zeros(py, keys.len(), false);
        self.given(&keys, rows, |keys, rows| {
            let mut flags = found.readwrite();
            let flags = flags.as_slice_mut()?;
            py.detach(|| table.update(keys, rows, how, flags))
                .map_err(table_exception)
        })?;
        keys.flags(found)
    }
}

#[pymethods]
impl Table {
    #[new]
    #[pyo3(signature = (
        dim, dtype="float32", *, path=None, host_capacity=None, host_bytes=None, device_capacity=0,
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
        score: &str,
        admission: &str,
        writes: &str,
        cache_bytes: Option<usize>,
    ) -> PyResult<Table> {
        let dtype: Dtype = dtype
            .parse()
            .map_err(|error: forerun::table::UnknownDtype| invalid(error.to_string()))?;
        let mut builder = forerun::table::Table::builder(dtype, dim)
            .device_capacity(device_capacity)
            .score(match score {
                "lru" => Score::Lru,
                "lfu" => Score::Lfu,
                "custom" => Score::Custom,
                other => return Err(unknown("score", other, "lru, lfu, custom")),
            })
            .admission(match admission {
                "always" => Admission::Always,
                "second_touch" => Admission::SecondTouch,
                "by_score" => Admission::ByScore,
                other => {
                    return Err(unknown(
                        "admission",
                        other,
                        "always, second_touch, by_score",
                    ));
                }
            })
            .writes(match writes {
                "through" => Writes::Through,
                "back" => Writes::Back,
                other => return Err(unknown("writes", other, "through, back")),
            });
        builder = match (host_capacity, host_bytes) {
            (None, None) => builder,
            (Some(rows), None) => builder.host_capacity(rows),
            (None, Some(bytes)) => builder.host_bytes(bytes),
            (Some(_), Some(_)) => {
                return Err(invalid(
                    "the host tier's size is `host_capacity`, in rows, or `host_bytes`, not both",
                ));
            }
        };
        let table = py.detach(|| {
            if let Some(path) = path {
                let options = Options::default();
                let cache_bytes = cache_bytes.unwrap_or(options.cache_bytes);
                builder = builder.path(path).store_options(Options {
                    cache_bytes,
                    ..options
                });
            }
            builder.open()
        });
        Ok(Table {
            dtype,
            dim,
            table: RwLock::new(Some(table.map_err(table_exception)?)),
        })
    }

    /// Elements a row.
    #[getter]
    fn dim(&self) -> u32 {
        self.dim
    }

    /// The elements' type, by name.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.dtype.name()
    }

    /// Looks keys up. Returns rows, in the shape of the keys with one more dimension, and which were found; rows that
    /// were not are zero, or, in `out`, stay as they were.
    #[pyo3(signature = (keys, out=None, found=None))]
    fn find<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        out: Option<Bound<'py, PyAny>>,
        found: Option<Bound<'py, PyArray1<bool>>>,
    ) -> PyResult<RowsAndFound<'py>> {
        let (table, keys) = (self.open()?, Numbers::new(keys)?);
        let rows = match out {
            Some(out) => out,
            None => self.zeros(&keys, py)?,
        };
        let found = found.unwrap_or_else(|| PyArray1::zeros(py, keys.len(), false));
        {
            let flat = self.flat(&keys, &rows)?;
            let mut bytes = writable_rows(&flat, "out")?;
            let mut flags = found
                .try_readwrite()
                .map_err(|error| invalid(format!("`found` cannot be written: {error}")))?;
            let (bytes, flags) = (bytes.as_slice_mut()?, flags.as_slice_mut()?);
            let keys = keys.as_slice()?;
            py.detach(|| table.find(keys, bytes, flags))
                .map_err(table_exception)?;
        }
        Ok((rows, keys.flags(found)?))
    }

    /// `find` in a thread of the event loop's: an awaitable.
    #[pyo3(signature = (keys, out=None))]
    fn find_async<'py>(
        slf: &Bound<'py, Table>,
        keys: &Bound<'py, PyAny>,
        out: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let event_loop = slf
            .py()
            .import("asyncio")?
            .call_method0("get_running_loop")?;
        let find = slf.getattr("find")?;
        event_loop.call_method1("run_in_executor", (slf.py().None(), find, keys, out))
    }

    /// Which keys have a row.
    fn contains<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArrayDyn<bool>>> {
        let (table, keys) = (self.open()?, Numbers::new(keys)?);
        let found = PyArray1::zeros(py, keys.len(), false);
        {
            let mut flags = found.readwrite();
            let (flags, keys) = (flags.as_slice_mut()?, keys.as_slice()?);
            py.detach(|| table.contains(keys, flags))
                .map_err(table_exception)?;
        }
        keys.flags(found)
    }

    /// Puts rows under keys, whether there are some already or not. Of a key that repeats, the last row stays.
    #[pyo3(signature = (keys, rows, *, scores=None))]
    fn insert<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        rows: &Bound<'py, PyAny>,
        scores: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let (table, keys) = (self.open()?, Numbers::new(keys)?);
        let scores = scores.map(Numbers::new).transpose()?;
        self.given(&keys, rows, |keys, rows| {
            let scores = scores.as_ref().map(Numbers::as_slice).transpose()?;
            py.detach(|| match scores {
                None => table.insert(keys, rows),
                Some(scores) => table.insert_with_scores(keys, rows, scores),
            })
            .map_err(table_exception)
        })
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
        let stats = self.open()?.stats();
        let figures = PyDict::new(py);
        for (name, figure) in [
            ("find_batches", stats.counts.find_batches),
            ("find_keys", stats.counts.find_keys),
            ("host_hits", stats.counts.host_hits),
            ("store_hits", stats.counts.store_hits),
            ("misses", stats.counts.misses),
            ("written_rows", stats.counts.written_rows),
            ("promoted_rows", stats.counts.promoted_rows),
            ("demoted_rows", stats.counts.demoted_rows),
            ("host_rows", stats.host_rows),
            ("host_capacity_rows", stats.host_capacity_rows),
            ("host_bytes", stats.host_bytes),
            ("found_bytes", stats.found_bytes()),
            ("moved_bytes", stats.moved_bytes()),
            ("find_p50_ns", stats.find.p50_ns),
            ("find_p99_ns", stats.find.p99_ns),
        ] {
            figures.set_item(name, figure)?;
        }
        Ok(figures)
    }

    /// Closes it. What was written is durable after this.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let table = self.table.write();
        let table = table
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .take();
        match table {
            Some(table) => py.detach(|| table.close()).map_err(table_exception),
            None => Ok(()),
        }
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.open().is_err()
    }

    /// Rows in all tiers. With a path it reads through the store.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let table = self.open()?;
        let count = py.detach(|| table.count()).map_err(table_exception)?;
        Ok(count as usize)
    }

    fn __contains__(&self, key: u64) -> PyResult<bool> {
        let found = self.open()?.contains(&[key], &mut [false]);
        Ok(found.map_err(table_exception)? == 1)
    }

    fn __getitem__<'py>(&self, py: Python<'py>, key: u64) -> PyResult<Bound<'py, PyAny>> {
        let keys = PyArray1::from_vec(py, vec![key]);
        let (rows, found) = self.find(py, keys.as_any(), None, None)?;
        if !found.get_item(0)?.is_truthy()? {
            return Err(PyKeyError::new_err(key));
        }
        rows.get_item(0)
    }

    fn __enter__(slf: Bound<'_, Table>) -> Bound<'_, Table> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
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
