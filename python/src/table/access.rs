//! Shared by a table's calls: the open table, arrays of rows, and when other Python threads may
//! run.

use std::sync::PoisonError;

use forerun::table::{Dtype, Update};
use numpy::{PyArrayDescrMethods, PyArrayDyn, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;

use super::{RowsAndFound, Table};
use crate::arrays::{Read, Written, as_array, as_rows, expect_contiguous, zeros};
use crate::borrows::{Access, Borrow};
use crate::dlpack::is_on_cuda;
use crate::engine_handle::drop_detached;
use crate::errors::{closed, invalid, table_exception};
use crate::export::TableItems;
use crate::interrupt;
use crate::items::Shown;
use crate::numbers::Numbers;
use crate::versions::count_change;

/// Up to this many keys, a call that waits for nothing ends sooner than another Python thread could
/// start.
const SHORT_BATCH: usize = 32;

/// Rows that an iterator fetches at a time.
const EXPORTED_AT_ONCE: usize = 256;

/// Checks that this many bytes are the rows of this many keys.
pub(crate) fn expect_rows(
    keys: usize,
    bytes: usize,
    dtype: Dtype,
    dim: u32,
    what: &str,
) -> PyResult<()> {
    let row_bytes = dtype.bytes() * dim as usize;
    if keys.checked_mul(row_bytes) == Some(bytes) {
        return Ok(());
    }
    Err(invalid(format!(
        "`{what}` must have {keys} x {dim} elements of {}: {} bytes in all, not {bytes}",
        dtype.name(),
        keys.saturating_mul(row_bytes)
    )))
}

/// Checks that in an array of more than one dimension, a row occupies the last one or the last
/// ones. Rows along other dimensions would have the same number of bytes and be misread.
pub(crate) fn expect_shape(
    array: &Bound<'_, PyUntypedArray>,
    dtype: Dtype,
    dim: u32,
    what: &str,
) -> PyResult<()> {
    let (shape, row_bytes) = (array.shape(), dtype.bytes() * dim as usize);
    let mut bytes = array.dtype().itemsize();
    if bytes != 1 && bytes != dtype.bytes() {
        // Another type has its own error message.
        return Ok(());
    }
    let is_of_rows = shape.iter().rev().any(|&extent| {
        bytes = bytes.saturating_mul(extent);
        bytes == row_bytes
    });
    if is_of_rows || shape.len() < 2 || array.is_empty() {
        return Ok(());
    }
    Err(invalid(format!(
        "`{what}` has the shape {shape:?}, but the last dimension must be a row of {dim} elements"
    )))
}

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

    /// Reads this many keys while other Python threads run, unless the call ends before another
    /// thread could start.
    pub(super) fn aside<R: Send>(
        &self,
        py: Python<'_>,
        keys: usize,
        read: impl FnOnce() -> R + Send,
    ) -> R {
        if keys <= SHORT_BATCH && !self.waits {
            read()
        } else {
            interrupt::detach(py, "looking up rows", read)
        }
    }

    /// Borrows the caller's array of rows for writing. `borrowed` is the record of its memory's
    /// use, if there already is one.
    pub(crate) fn written<'py>(
        &self,
        rows: &Bound<'py, PyAny>,
        what: &'static str,
        borrowed: Option<Borrow>,
    ) -> PyResult<Written<'py>> {
        let array = as_array(rows, what)?;
        expect_contiguous(&array, Access::Write, what)?;
        self.expect_shape(&array, what)?;
        count_change(rows)?;
        Written::new(&array, self.dtype, what, borrowed)
    }

    /// Checks that this many bytes are the rows of these keys.
    pub(super) fn expect_rows(&self, keys: &Numbers<'_>, bytes: usize, what: &str) -> PyResult<()> {
        expect_rows(keys.len(), bytes, self.dtype, self.dim, what)
    }

    fn expect_shape(&self, array: &Bound<'_, PyUntypedArray>, what: &str) -> PyResult<()> {
        expect_shape(array, self.dtype, self.dim, what)
    }

    /// Calls a function with the bytes of the caller's rows while other Python threads run.
    pub(super) fn with_rows<'py, R: Send>(
        &self,
        keys: &Numbers<'py>,
        rows: &Bound<'py, PyAny>,
        write: impl FnOnce(&[u64], &[u8]) -> forerun::table::Result<R> + Send,
    ) -> PyResult<R> {
        let py = rows.py();
        let rows = as_rows(rows, self.dtype, "rows")?;
        expect_contiguous(&rows, Access::Read, "rows")?;
        self.expect_shape(&rows, "rows")?;
        let read = Read::new(&rows, self.dtype, "rows")?;
        let (keys_read, bytes) = (keys.as_slice()?, read.bytes()?);
        self.expect_rows(keys, bytes.len(), "rows")?;
        interrupt::detach(py, "writing rows", || write(keys_read, bytes)).map_err(table_exception)
    }

    /// Writes rows under keys, with optional scores.
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
        let scores = scores.map(|scores| Numbers::unsigned(scores, "scores"));
        let scores = scores.transpose()?;
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
        let found = keys.flags(py)?;
        {
            let mut flags = found.write()?;
            let flags = flags.as_slice_mut()?;
            self.with_rows(&keys, rows, |keys, rows| {
                table.update(keys, rows, how, flags)
            })?;
        }
        Ok(found.array)
    }

    pub(super) fn items(&self, py: Python<'_>, shown: Shown) -> PyResult<TableItems> {
        Ok(TableItems::new(self.export(py, EXPORTED_AT_ONCE)?, shown))
    }

    /// Looks up keys: see `find`. `borrowed` is the record of the use of the memory of `out`, if
    /// there already is one.
    pub(super) fn find_into<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        out: Option<Bound<'py, PyAny>>,
        borrowed: Option<Borrow>,
        found: Option<&Bound<'py, PyAny>>,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<RowsAndFound<'py>> {
        let (table, keys) = (self.open()?, Numbers::unnoted(keys)?);
        let on_device = match &out {
            Some(out) => is_on_cuda(out, "out")?,
            None => false,
        };
        if stream.is_some() && !on_device {
            return Err(invalid(
                "`stream` is only for rows that go to a GPU, but `out` is in CPU memory",
            ));
        }
        let rows = match out {
            Some(out) => out,
            None => zeros(py, self.dtype, &keys.shape_of_rows(self.dim))?,
        };
        let found = keys.flags_or(py, found)?;
        if on_device {
            let borrow = Borrow::all([keys.memory(), found.memory()])?;
            let mut flags = found.write_in(borrow)?;
            self.find_to_device(&table, &keys, &rows, flags.as_slice_mut()?, stream)?;
        } else {
            let is_noted = borrowed.is_some();
            let borrowed = borrowed.unwrap_or_else(Borrow::noted_elsewhere);
            let mut written = self.written(&rows, "out", Some(borrowed))?;
            let borrow = if is_noted {
                Borrow::all([keys.memory(), found.memory()])?
            } else {
                Borrow::all([keys.memory(), written.memory("out"), found.memory()])?
            };
            let mut flags = found.write_in(borrow)?;
            let (bytes, flags) = (written.bytes()?, flags.as_slice_mut()?);
            self.expect_rows(&keys, bytes.len(), "out")?;
            let keys = keys.as_slice()?;
            self.aside(py, keys.len(), || table.find(keys, bytes, flags))
                .map_err(table_exception)?;
        }
        Ok((rows, found.array))
    }

    /// Whether a key has a row.
    pub(super) fn has(&self, py: Python<'_>, key: u64) -> PyResult<bool> {
        let table = self.open()?;
        let found = self.aside(py, 1, || table.contains(&[key], &mut [false]));
        Ok(found.map_err(table_exception)? == 1)
    }

    /// The row of a key, if it has one.
    pub(super) fn row_of<'py>(
        &self,
        py: Python<'py>,
        key: u64,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let table = self.open()?;
        let row = zeros(py, self.dtype, &[self.dim as usize])?;
        let found = {
            let mut written = self.written(&row, "row", None)?;
            let bytes = written.bytes()?;
            self.aside(py, 1, || table.find(&[key], bytes, &mut [false]))
                .map_err(table_exception)?
        };
        Ok((found == 1).then_some(row))
    }
}

impl Table {
    /// Takes the handle out of this object.
    pub(super) fn take(&self) -> Option<forerun::table::Table> {
        let table = self.table.write();
        table.unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        let table = self.table.get_mut();
        drop_detached(table.unwrap_or_else(PoisonError::into_inner).take());
    }
}
