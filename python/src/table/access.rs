//! What a table's calls share: the open table, arrays of rows, and when other Python threads are let in.

use std::sync::PoisonError;

use forerun::table::Update;
use numpy::PyArrayDyn;
use pyo3::prelude::*;

use super::Table;
use crate::arrays::{Read, Written, as_array, expect_contiguous};
use crate::errors::{closed, invalid, table_exception};
use crate::export::TableItems;
use crate::items::Shown;
use crate::numbers::Numbers;

/// Keys up to which a call that waits for nothing is over sooner than another Python thread could be let in.
const SHORT_BATCH: usize = 32;

/// Rows that an iterator fetches at a time.
const EXPORTED_AT_ONCE: usize = 256;

impl Table {
    /// The table, unless it is closed.
    pub(crate) fn open(&self) -> PyResult<forerun::table::Table> {
        let table = self.table.read();
        let table = table.unwrap_or_else(PoisonError::into_inner);
        let table = table.as_ref().ok_or_else(|| closed("table"))?;
        table.check_process().map_err(table_exception)?;
        Ok(table.clone())
    }

    pub(super) fn is_closed(&self) -> bool {
        let table = self.table.read();
        table.unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Does what reads so many keys while other Python threads run, unless it is over before they would.
    pub(super) fn aside<R: Send>(
        &self,
        py: Python<'_>,
        keys: usize,
        read: impl FnOnce() -> R + Send,
    ) -> R {
        if keys <= SHORT_BATCH && !self.waits {
            read()
        } else {
            py.detach(read)
        }
    }

    /// Borrows an array of rows that a caller has given, to write them.
    pub(crate) fn written<'py>(
        &self,
        rows: &Bound<'py, PyAny>,
        what: &str,
    ) -> PyResult<Written<'py>> {
        let rows = as_array(rows, what)?;
        expect_contiguous(&rows, what)?;
        Written::new(&rows, self.dtype, what)
    }

    /// That so many bytes are those of the rows of some keys.
    pub(super) fn expect_rows(&self, keys: &Numbers<'_>, bytes: usize, what: &str) -> PyResult<()> {
        let row_bytes = self.dtype.bytes() * self.dim as usize;
        if bytes == keys.len() * row_bytes {
            return Ok(());
        }
        Err(invalid(format!(
            "{} rows of {} {} take {} bytes; `{what}` has {bytes}",
            keys.len(),
            self.dim,
            self.dtype.name(),
            keys.len() * row_bytes
        )))
    }

    /// Does something with the bytes of rows that a caller has given, while other Python threads run.
    pub(super) fn with_rows<'py, R: Send>(
        &self,
        keys: &Numbers<'py>,
        rows: &Bound<'py, PyAny>,
        write: impl FnOnce(&[u64], &[u8]) -> forerun::table::Result<R> + Send,
    ) -> PyResult<R> {
        let py = rows.py();
        let rows = as_array(rows, "rows")?;
        expect_contiguous(&rows, "rows")?;
        let read = Read::new(&rows, self.dtype, "rows")?;
        let (keys_read, bytes) = (keys.as_slice()?, read.bytes()?);
        self.expect_rows(keys, bytes.len(), "rows")?;
        py.detach(|| write(keys_read, bytes))
            .map_err(table_exception)
    }

    /// Puts rows under keys, with the scores that may be given.
    pub(super) fn put_rows<'py>(
        &self,
        keys: &Bound<'py, PyAny>,
        rows: &Bound<'py, PyAny>,
        scores: Option<&Bound<'py, PyAny>>,
        put: impl FnOnce(
            &forerun::table::Table,
            &[u64],
            &[u8],
            Option<&[u64]>,
        ) -> forerun::table::Result<()>
        + Send,
    ) -> PyResult<()> {
        let (table, keys) = (self.open()?, Numbers::new(keys)?);
        let scores = scores.map(Numbers::new).transpose()?;
        let scores = scores.as_ref().map(Numbers::as_slice).transpose()?;
        self.with_rows(&keys, rows, |keys, rows| put(&table, keys, rows, scores))
    }

    pub(super) fn update_rows<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        rows: &Bound<'py, PyAny>,
        how: Update,
    ) -> PyResult<Bound<'py, PyArrayDyn<bool>>> {
        let (table, keys) = (self.open()?, Numbers::new(keys)?);
        let found = keys.flags(py);
        {
            let mut flags = found.write()?;
            let flags = flags.as_slice_mut()?;
            self.with_rows(&keys, rows, |keys, rows| {
                table.update(keys, rows, how, flags)
            })?;
        }
        Ok(found.0)
    }

    pub(super) fn items(&self, py: Python<'_>, shown: Shown) -> PyResult<TableItems> {
        Ok(TableItems::new(self.export(py, EXPORTED_AT_ONCE)?, shown))
    }
}
