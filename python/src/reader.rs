//! `Reader`: lookups and iteration, the base class of `Db`, `Keyspace` and `Snapshot`.

use std::sync::RwLock;

use forerun::Values;
use numpy::PyArray1;
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::background_call::run_in_pieces;
use crate::engine_handle::drop_detached;
use crate::errors::{closed, exception, invalid};
use crate::items::{Items, Shown};
use crate::key_range::range_of;
use crate::keys::{Batch, Bytes};
use crate::new_objects::bytes;
use crate::read_source::ReadSource;
use crate::rows::{Rows, expect_no_found};
use crate::views;

/// Keys looked up between two checks for signals. A cold key takes about 12 us, so Ctrl-C is
/// noticed in time.
const PIECE_KEYS: usize = 8192;

/// Lookups and iteration: the base class of `Db`, `Keyspace` and `Snapshot`.
#[pyclass(subclass, frozen, module = "forerun", name = "Reader")]
pub(crate) struct Reader {
    what: &'static str,
    /// `None` once it is closed.
    source: RwLock<Option<ReadSource>>,
}

impl Reader {
    pub(crate) fn new(what: &'static str, source: ReadSource) -> Reader {
        Reader {
            what,
            source: RwLock::new(Some(source)),
        }
    }

    /// The source to read, unless the reader is closed. It is a clone, so no lock is held while
    /// Python code runs.
    ///
    /// This also checks that the process may use the source, so no call has to check again.
    pub(crate) fn source(&self) -> PyResult<ReadSource> {
        let source = self.source.read();
        let source = source.unwrap_or_else(std::sync::PoisonError::into_inner);
        let source = source.as_ref().ok_or_else(|| closed(self.what))?;
        source.check_process().map_err(exception)?;
        Ok(source.clone())
    }

    pub(crate) fn is_closed(&self) -> bool {
        let source = self.source.read();
        source
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .is_none()
    }

    /// Closes the reader and returns its source if it was open.
    pub(crate) fn take(&self) -> Option<ReadSource> {
        let source = self.source.write();
        source
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .take()
    }

    /// Looks up a batch in pieces and passes the values of each piece to `take`, with the position
    /// of its first key.
    fn look_up(
        &self,
        py: Python<'_>,
        keys: &Batch<'_>,
        mut take: impl FnMut(usize, &Values) -> PyResult<()>,
    ) -> PyResult<()> {
        let mut source = self.source()?;
        let keys = keys.slices()?;
        if keys.len() > PIECE_KEYS {
            // All pieces must see the same version of the store.
            source = source.snapshot();
        }
        let mut values = Values::new();
        let pieces = keys.chunks(PIECE_KEYS).enumerate();
        run_in_pieces(py, pieces, |(nth, piece)| {
            py.detach(|| source.multi_get(piece, &mut values))
                .map_err(exception)?;
            take(nth * PIECE_KEYS, &values)
        })
    }

    fn get_into<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        out: &Bound<'py, PyAny>,
        found: Option<Bound<'py, PyArray1<bool>>>,
    ) -> PyResult<Bound<'py, PyArray1<bool>>> {
        let keys = Batch::keys(keys)?;
        let mut rows = Rows::new(keys.len(), out, found)?;
        self.look_up(py, &keys, |first, values| {
            rows.fill(py, first, values.iter())
        })?;
        Ok(rows.into_found())
    }

    /// A view of a range. It checks the range, and reads nothing until it is used.
    fn view<'py>(
        slf: &Bound<'py, Reader>,
        class: &str,
        bounds: [Option<&Bound<'py, PyAny>>; 3],
        reverse: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.get().source()?;
        let [start, end, prefix] = bounds.map(|bound| {
            let bytes = bound.map(|bound| Bytes::new(bound, "bound")).transpose()?;
            PyResult::Ok(bytes.map(|bytes| bytes.as_ref().to_vec()))
        });
        let (start, end, prefix) = (start?, end?, prefix?);
        range_of(start.clone(), end.clone(), prefix.clone())?;
        let object = |bytes: Option<Vec<u8>>| bytes.map(|bytes| PyBytes::new(slf.py(), &bytes));
        let range = (object(start), object(end), object(prefix), reverse);
        views::new(slf.as_any(), class, range)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let source = self.source.get_mut();
        drop_detached(
            source
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .take(),
        );
    }
}

#[pymethods]
impl Reader {
    /// Returns the value of a key, or `default` if the key is missing.
    #[pyo3(signature = (key, default=None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (source, key) = (self.source()?, Bytes::new(key, "key")?);
        let value = py.detach(|| source.get(key.as_ref())).map_err(exception)?;
        Ok(match value {
            Some(value) => Some(bytes(py, &value)?.into_any()),
            None => default,
        })
    }

    /// Looks up a batch of keys: returns a list of their values, in order, with `None` for each
    /// missing key.
    ///
    /// With `out`, an array of any type whose rows have as many bytes as each value, it copies the
    /// values into the rows instead and returns which keys were found, as an array of bool
    /// (`found`, if that is given). Rows of missing keys keep their content.
    #[pyo3(signature = (keys, *, out=None, found=None))]
    fn multi_get<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
        found: Option<Bound<'py, PyArray1<bool>>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if let Some(out) = out {
            return Ok(self.get_into(py, keys, out, found)?.into_any());
        }
        expect_no_found(found.as_ref())?;
        let list = PyList::empty(py);
        self.look_up(py, &Batch::keys(keys)?, |_, values| {
            for value in values.iter() {
                let value = value.map_err(exception)?;
                list.append(value.map(|value| bytes(py, value)).transpose()?)?;
            }
            Ok(())
        })?;
        Ok(list.into_any())
    }

    /// Returns a view of the `(key, value)` pairs in key order, from `start` (inclusive) to `end`
    /// (exclusive), or of the keys that begin with `prefix`. `reverse` begins with the last key.
    /// Each iterator over the view sees the store as of the moment when it was made.
    #[pyo3(signature = (*, start=None, end=None, prefix=None, reverse=false))]
    fn items<'py>(
        slf: &Bound<'py, Reader>,
        start: Option<&Bound<'py, PyAny>>,
        end: Option<&Bound<'py, PyAny>>,
        prefix: Option<&Bound<'py, PyAny>>,
        reverse: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        Reader::view(slf, "ItemsView", [start, end, prefix], reverse)
    }

    /// Returns a view of the keys; takes the same arguments as `items`.
    #[pyo3(signature = (*, start=None, end=None, prefix=None, reverse=false))]
    fn keys<'py>(
        slf: &Bound<'py, Reader>,
        start: Option<&Bound<'py, PyAny>>,
        end: Option<&Bound<'py, PyAny>>,
        prefix: Option<&Bound<'py, PyAny>>,
        reverse: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        Reader::view(slf, "KeysView", [start, end, prefix], reverse)
    }

    /// Returns a view of the values; takes the same arguments as `items`.
    #[pyo3(signature = (*, start=None, end=None, prefix=None, reverse=false))]
    fn values<'py>(
        slf: &Bound<'py, Reader>,
        start: Option<&Bound<'py, PyAny>>,
        end: Option<&Bound<'py, PyAny>>,
        prefix: Option<&Bound<'py, PyAny>>,
        reverse: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        Reader::view(slf, "ValuesView", [start, end, prefix], reverse)
    }

    fn __getitem__<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let value = self.get(py, key, None)?;
        value.ok_or_else(|| PyKeyError::new_err(key.clone().unbind()))
    }

    /// Counts the entries. It reads what was written last, not all of them.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self._count(py, (None, None, None, false))
    }

    /// Whether there is at least one entry.
    fn __bool__(&self, py: Python<'_>) -> PyResult<bool> {
        let source = self.source()?;
        py.detach(|| source.has_any()).map_err(exception)
    }

    /// An object that cannot be a key is not in the store.
    fn __contains__(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let source = self.source()?;
        let Some(key) = Bytes::key_in_question(key)? else {
            return Ok(false);
        };
        let value = py.detach(|| source.get(key.as_ref())).map_err(exception)?;
        Ok(value.is_some())
    }

    fn __iter__(&self) -> PyResult<Items> {
        self._scan("keys", (None, None, None, false))
    }

    fn __reversed__(&self) -> PyResult<Items> {
        self._scan("keys", (None, None, None, true))
    }

    /// Iterates over the entries of a view.
    fn _scan(&self, part: &str, range: views::Range) -> PyResult<Items> {
        let (source, reverse) = (self.source()?, range.3);
        let keys = source.range_of(range)?;
        Ok(Items::new(&source, Shown::named(part)?, keys, reverse))
    }

    /// Counts the entries of a view.
    fn _count(&self, py: Python<'_>, range: views::Range) -> PyResult<usize> {
        let source = self.source()?;
        let keys = source.range_of(range)?;
        py.detach(|| source.count(keys))
    }

    /// Whether an object is a key, present or not, within the range of a view.
    fn _covers(&self, key: &Bound<'_, PyAny>, range: views::Range) -> PyResult<bool> {
        let source = self.source()?;
        let Some(key) = Bytes::key_in_question(key)? else {
            return Ok(false);
        };
        let keys = source.range_of(range)?;
        Ok(source.covers(&keys, key.as_ref()))
    }

    /// Whether this object is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.is_closed()
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(invalid(format!(
            "a {} is a handle of this process and cannot be pickled: pickle its path and open it \
             there",
            self.what
        )))
    }
}
