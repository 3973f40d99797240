//! What a store, one of its snapshots and the like can read: the base class of them all.

use std::sync::RwLock;

use forerun::Values;
use numpy::PyArray1;
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::errors::{closed, exception, invalid};
use crate::items::{Items, Shown};
use crate::keys::{Batch, Bytes};
use crate::long::run_in_pieces;
use crate::rows::Rows;
use crate::source::Source;

/// Keys that are looked up between two looks for signals: cold ones take some 12 us each, so Ctrl-C is heard in time.
const PIECE_KEYS: usize = 8192;

/// The base of `Db` and `Snapshot`: looking up and iterating.
#[pyclass(subclass, frozen, module = "forerun", name = "Reader")]
pub(crate) struct Reader {
    what: &'static str,
    /// `None` once it is closed.
    source: RwLock<Option<Source>>,
}

impl Reader {
    pub(crate) fn new(what: &'static str, source: Source) -> Reader {
        Reader {
            what,
            source: RwLock::new(Some(source)),
        }
    }

    /// What it reads, unless it is closed. A clone: nothing is locked while Python runs.
    ///
    /// It is checked here that this process may use it, so that no call has to ask again.
    pub(crate) fn source(&self) -> PyResult<Source> {
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

    /// Closes it, and gives what it read if it was open.
    pub(crate) fn take(&self) -> Option<Source> {
        let source = self.source.write();
        source
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .take()
    }

    /// Looks up a batch and passes the answers on, those of each piece with the position of its first key.
    fn look_up(
        &self,
        py: Python<'_>,
        keys: &Batch<'_>,
        mut take: impl FnMut(usize, &Values) -> PyResult<()>,
    ) -> PyResult<()> {
        let mut source = self.source()?;
        let keys = keys.slices()?;
        if keys.len() > PIECE_KEYS {
            // All pieces see the same moment.
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

    fn items<'py>(
        &self,
        py: Python<'py>,
        shown: Shown,
        bounds: [Option<&Bound<'py, PyAny>>; 3],
        reverse: bool,
    ) -> PyResult<Bound<'py, Items>> {
        let [start, end, prefix] = bounds.map(|bound| {
            let bytes = bound.map(|bound| Bytes::new(bound, "bound")).transpose()?;
            PyResult::Ok(bytes.map(|bytes| bytes.as_ref().to_vec()))
        });
        let items = Items::new(&self.source()?, shown, [start?, end?, prefix?], reverse)?;
        Bound::new(py, items)
    }
}

#[pymethods]
impl Reader {
    /// The value of a key, or `default` if there is none.
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
            Some(value) => Some(PyBytes::new(py, &value).into_any()),
            None => default,
        })
    }

    /// The values of a batch of keys, in their order; `None` where there is none.
    fn multi_get<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        self.look_up(py, &Batch::keys(keys)?, |_, values| {
            for value in values.iter() {
                let value = value.map_err(exception)?;
                list.append(value.map(|value| PyBytes::new(py, value)))?;
            }
            Ok(())
        })?;
        Ok(list)
    }

    /// Copies the values of a batch of keys into the rows of `out`, an array of any type whose rows have as many bytes
    /// as each value, and returns which were found. Rows of others stay as they were.
    #[pyo3(signature = (keys, out, found=None))]
    fn multi_get_into<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        out: &Bound<'py, PyAny>,
        found: Option<Bound<'py, PyArray1<bool>>>,
    ) -> PyResult<Bound<'py, PyArray1<bool>>> {
        let keys = Batch::keys(keys)?;
        let mut rows = Rows::new(keys.len(), out, found)?;
        self.look_up(py, &keys, |first, values| {
            rows.fill(first, values.iter().map(|value| value.map_err(exception)))
        })?;
        Ok(rows.into_found())
    }

    /// Entries as pairs, in the order of keys: from `start` on, up to but without `end`, or those that begin with
    /// `prefix`. They are as they were when this was called.
    #[pyo3(signature = (*, start=None, end=None, prefix=None, reverse=false))]
    #[pyo3(name = "items")]
    fn py_items<'py>(
        &self,
        py: Python<'py>,
        start: Option<&Bound<'py, PyAny>>,
        end: Option<&Bound<'py, PyAny>>,
        prefix: Option<&Bound<'py, PyAny>>,
        reverse: bool,
    ) -> PyResult<Bound<'py, Items>> {
        self.items(py, Shown::Items, [start, end, prefix], reverse)
    }

    /// As `items`, the keys alone.
    #[pyo3(signature = (*, start=None, end=None, prefix=None, reverse=false))]
    fn keys<'py>(
        &self,
        py: Python<'py>,
        start: Option<&Bound<'py, PyAny>>,
        end: Option<&Bound<'py, PyAny>>,
        prefix: Option<&Bound<'py, PyAny>>,
        reverse: bool,
    ) -> PyResult<Bound<'py, Items>> {
        self.items(py, Shown::Keys, [start, end, prefix], reverse)
    }

    /// As `items`, the values alone.
    #[pyo3(signature = (*, start=None, end=None, prefix=None, reverse=false))]
    fn values<'py>(
        &self,
        py: Python<'py>,
        start: Option<&Bound<'py, PyAny>>,
        end: Option<&Bound<'py, PyAny>>,
        prefix: Option<&Bound<'py, PyAny>>,
        reverse: bool,
    ) -> PyResult<Bound<'py, Items>> {
        self.items(py, Shown::Values, [start, end, prefix], reverse)
    }

    fn __getitem__<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let value = self.get(py, key, None)?;
        value.ok_or_else(|| PyKeyError::new_err(key.clone().unbind()))
    }

    /// Entries. It reads all of them: it takes the time of a scan.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let source = self.source()?;
        py.detach(|| source.count())
    }

    /// Whether it has any entry.
    fn __bool__(&self, py: Python<'_>) -> PyResult<bool> {
        let source = self.source()?;
        py.detach(|| source.has_any()).map_err(exception)
    }

    fn __contains__(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(self.get(py, key, None)?.is_some())
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, Items>> {
        self.items(py, Shown::Keys, [None; 3], false)
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.is_closed()
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(invalid(format!(
            "a {} is a handle of this process and cannot be pickled: pickle its path and open it there",
            self.what
        )))
    }
}
