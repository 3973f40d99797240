//! An iterator that fetches a few hundred entries at a time while other Python threads run.

use std::collections::VecDeque;
use std::ops::Bound as End;

use pyo3::exceptions::{PyKeyError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::engine_handle::drop_detached;
use crate::errors::{exception, invalid, unknown};
use crate::key_range::Range;
use crate::new_objects::{bytes, copy_of};
use crate::read_source::ReadSource;

/// Entries fetched at a time.
const FETCHED_ENTRIES: usize = 256;
/// Fetching stops at this many bytes, because entries may be large.
const FETCHED_BYTES: usize = 1 << 20;

/// Which parts of an entry are returned.
#[derive(Clone, Copy)]
pub(crate) enum Shown {
    Items,
    Keys,
    Values,
}

impl Shown {
    /// Parses the name of the parts, which is also the name of the method that shows them.
    pub(crate) fn named(name: &str) -> PyResult<Shown> {
        Ok(match name {
            "items" => Shown::Items,
            "keys" => Shown::Keys,
            "values" => Shown::Values,
            other => return Err(unknown("part", other, "items, keys, values")),
        })
    }

    /// The name of the parts.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Shown::Items => "items",
            Shown::Keys => "keys",
            Shown::Values => "values",
        }
    }

    /// The returned parts of an entry of bytes.
    pub(crate) fn of<'py>(
        self,
        py: Python<'py>,
        key: &[u8],
        value: &[u8],
    ) -> PyResult<Bound<'py, PyAny>> {
        Ok(match self {
            Shown::Items => {
                let entry = (bytes(py, key)?, bytes(py, value)?);
                entry.into_pyobject(py)?.into_any()
            }
            Shown::Keys => bytes(py, key)?.into_any(),
            Shown::Values => bytes(py, value)?.into_any(),
        })
    }
}

/// An iterator over the entries as of its creation.
#[pyclass(module = "forerun", name = "Items")]
pub(crate) struct Items {
    /// `None` when all entries were fetched.
    snapshot: Option<ReadSource>,
    shown: Shown,
    start: End<Vec<u8>>,
    end: End<Vec<u8>>,
    reverse: bool,
    fetched: VecDeque<(Vec<u8>, Vec<u8>)>,
}

impl Items {
    /// Iterates over the entries of a range.
    pub(crate) fn new(source: &ReadSource, shown: Shown, range: Range, reverse: bool) -> Items {
        let (start, end) = range;
        Items {
            snapshot: Some(source.snapshot()),
            shown,
            start,
            end,
            reverse,
            fetched: VecDeque::new(),
        }
    }

    fn fetch(&mut self) -> PyResult<()> {
        let Some(snapshot) = &self.snapshot else {
            return Ok(());
        };
        let mut iter = snapshot.range((self.start.clone(), self.end.clone()));
        let mut bytes = 0;
        while self.fetched.len() < FETCHED_ENTRIES && bytes < FETCHED_BYTES {
            let entry = if self.reverse {
                iter.next_entry_back()
            } else {
                iter.next_entry()
            };
            let Some(entry) = entry.map_err(exception)? else {
                drop(iter);
                self.snapshot = None;
                return Ok(());
            };
            bytes += entry.key.len() + entry.value.len();
            self.fetched
                .push_back((copy_of(entry.key)?, copy_of(entry.value)?));
        }
        drop(iter);
        if let Some((key, _)) = self.fetched.back() {
            let reached = End::Excluded(key.clone());
            if self.reverse {
                self.end = reached;
            } else {
                self.start = reached;
            }
        }
        Ok(())
    }
}

impl Drop for Items {
    fn drop(&mut self) {
        if let Some(snapshot) = self.snapshot.take() {
            drop_detached(snapshot);
        }
    }
}

#[pymethods]
impl Items {
    fn __iter__(slf: Bound<'_, Items>) -> Bound<'_, Items> {
        slf
    }

    fn __next__<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        if self.fetched.is_empty() {
            let fetched = py.detach(|| self.fetch());
            // The next call starts where this one did.
            fetched.inspect_err(|_| self.fetched.clear())?;
        }
        let Some((key, value)) = self.fetched.pop_front() else {
            return Ok(None);
        };
        Ok(Some(self.shown.of(py, &key, &value)?))
    }

    fn __repr__(&self) -> String {
        format!("forerun.Items(of=\"store\", part={:?})", self.shown.name())
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(invalid(
            "an iterator over a store belongs to this process and cannot be pickled",
        ))
    }
}

/// The result for a missing key, if the caller gave one.
pub(crate) fn default_of<'py>(
    defaults: &Bound<'py, PyTuple>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    match defaults.len() {
        0 => Ok(None),
        1 => defaults.get_item(0).map(Some),
        count => Err(PyTypeError::new_err(format!(
            "a key and at most one default are expected, not {count} defaults"
        ))),
    }
}

/// The error for a missing key without a default.
pub(crate) fn key_error(key: &Bound<'_, PyAny>) -> PyErr {
    PyKeyError::new_err(key.clone().unbind())
}
