//! Values of a batch, copied into the rows of the caller's array.

use numpy::{
    PyArray1, PyArray2, PyArrayDescrMethods, PyArrayMethods, PyReadonlyArray2, PyReadwriteArray1,
    PyReadwriteArray2, PyUntypedArrayMethods,
};
use pyo3::prelude::*;

use crate::arrays::{
    as_array, borrow, expect_bytes, expect_contiguous, expect_unmasked, no_flags, refused,
};
use crate::borrows::{Access, Borrow};
use crate::errors::{exception, invalid};
use crate::versions::count_change;

/// An array's rows, and which of them were filled.
pub(crate) struct Rows<'py> {
    bytes: WrittenRows<'py>,
    noted: PyReadwriteArray1<'py, bool>,
    _borrow: Borrow,
    found: Bound<'py, PyArray1<bool>>,
}

impl<'py> Rows<'py> {
    /// The rows of `out`, an array of any type with one row per key. `found` is created if it is
    /// not given.
    pub(crate) fn new(
        keys: usize,
        out: &Bound<'py, PyAny>,
        found: Option<Bound<'py, PyArray1<bool>>>,
    ) -> PyResult<Rows<'py>> {
        let bytes = writable_rows(out, "out")?;
        let found = match found {
            Some(found) => found,
            None => no_flags(out.py(), &[keys])?.cast_into()?,
        };
        expect_unmasked(found.as_untyped(), "found")?;
        expect_contiguous(found.as_untyped(), Access::Write, "found")?;
        let borrow = borrow(&found, Access::Write, "found")?;
        let noted = found
            .try_readwrite()
            .map_err(|error| refused("found", "written", error))?;
        if bytes.shape()[0] != keys || noted.len() != keys {
            return Err(invalid(format!(
                "`out` must have a row and `found` a place for each key: {keys} in all, not {} and \
                 {}",
                bytes.shape()[0],
                noted.len()
            )));
        }
        Ok(Rows {
            bytes,
            noted,
            _borrow: borrow,
            found,
        })
    }

    /// Records which keys were found, in order from the key at `first` on, and copies their values.
    /// Other Python threads run during the copy.
    pub(crate) fn fill<'v>(
        &mut self,
        py: Python<'_>,
        first: usize,
        values: impl Iterator<Item = Result<Option<&'v [u8]>, forerun::DbError>> + Send,
    ) -> PyResult<()> {
        let row_bytes = self.bytes.shape()[1];
        let bytes = self.bytes.as_slice_mut()?;
        let noted = self.noted.as_slice_mut()?;
        // Returns the position and the length of a value that does not fit a row.
        let copy = || -> Result<Option<(usize, usize)>, forerun::DbError> {
            for (position, value) in (first..).zip(values) {
                let value = value?;
                noted[position] = value.is_some();
                let Some(value) = value else { continue };
                if value.len() != row_bytes {
                    return Ok(Some((position, value.len())));
                }
                bytes[position * row_bytes..][..row_bytes].copy_from_slice(value);
            }
            Ok(None)
        };
        match py.detach(copy).map_err(exception)? {
            None => Ok(()),
            Some((position, len)) => Err(invalid(format!(
                "the value of key {position} has {len} bytes, but a row of `out` has {row_bytes}"
            ))),
        }
    }

    /// The bytes of the rows, the bytes per row, and which rows were filled.
    pub(crate) fn parts(&mut self) -> PyResult<(&mut [u8], usize, &mut [bool])> {
        let row_bytes = self.bytes.shape()[1];
        Ok((
            self.bytes.as_slice_mut()?,
            row_bytes,
            self.noted.as_slice_mut()?,
        ))
    }

    /// Which keys were found.
    pub(crate) fn into_found(self) -> Bound<'py, PyArray1<bool>> {
        self.found
    }
}

/// Rows of bytes for writing.
pub(crate) struct WrittenRows<'py> {
    rows: PyReadwriteArray2<'py, u8>,
    _borrow: Borrow,
}

impl WrittenRows<'_> {
    pub(crate) fn shape(&self) -> &[usize] {
        self.rows.shape()
    }

    pub(crate) fn as_slice_mut(&mut self) -> PyResult<&mut [u8]> {
        Ok(self.rows.as_slice_mut()?)
    }
}

/// Rows of bytes for reading.
pub(crate) struct ReadRows<'py> {
    rows: PyReadonlyArray2<'py, u8>,
    _borrow: Borrow,
}

impl ReadRows<'_> {
    pub(crate) fn shape(&self) -> &[usize] {
        self.rows.shape()
    }

    pub(crate) fn as_slice(&self) -> PyResult<&[u8]> {
        Ok(self.rows.as_slice()?)
    }
}

/// An array's rows as writable bytes, without a copy.
pub(crate) fn writable_rows<'py>(
    array: &Bound<'py, PyAny>,
    name: &'static str,
) -> PyResult<WrittenRows<'py>> {
    let rows = byte_rows(array, Access::Write, name)?;
    let borrow = borrow(&rows, Access::Write, name)?;
    count_change(array)?;
    let rows = rows.try_readwrite();
    Ok(WrittenRows {
        rows: rows.map_err(|error| refused(name, "written", error))?,
        _borrow: borrow,
    })
}

/// An array's rows as bytes, without a copy.
pub(crate) fn readable_rows<'py>(
    array: &Bound<'py, PyAny>,
    name: &'static str,
) -> PyResult<ReadRows<'py>> {
    let rows = byte_rows(array, Access::Read, name)?;
    let borrow = borrow(&rows, Access::Read, name)?;
    let rows = rows.try_readonly();
    Ok(ReadRows {
        rows: rows.map_err(|error| refused(name, "read", error))?,
        _borrow: borrow,
    })
}

/// A view of an array, or of an object that provides one through DLPack, as bytes of shape (rows,
/// bytes per row).
fn byte_rows<'py>(
    array: &Bound<'py, PyAny>,
    access: Access,
    name: &str,
) -> PyResult<Bound<'py, PyArray2<u8>>> {
    let array = as_array(array, name)?;
    expect_contiguous(&array, access, name)?;
    expect_bytes(&array, name)?;
    let Some((&rows, rest)) = array.shape().split_first() else {
        return Err(invalid(format!("`{name}` has 0 dimensions: give it rows")));
    };
    // Also of an array that has no row. Such an array may have extents of any size.
    let row_bytes = rest
        .iter()
        .try_fold(array.dtype().itemsize(), |bytes, &extent| {
            bytes.checked_mul(extent)
        });
    let row_bytes =
        row_bytes.ok_or_else(|| invalid(format!("a row of `{name}` is larger than memory")))?;
    // The array is contiguous, so both are views of its memory.
    let shape = (rows, row_bytes);
    let view = array
        .call_method1("reshape", (-1,))?
        .call_method1("view", ("uint8",))?
        .call_method1("reshape", (shape,))?;
    Ok(view.cast_into::<PyArray2<u8>>()?)
}

/// Rejects `found` without `out`.
pub(crate) fn expect_no_found<T>(found: Option<T>) -> PyResult<()> {
    match found {
        Some(_) => Err(invalid(
            "`found` is only for a lookup into `out`, and `out` is missing",
        )),
        None => Ok(()),
    }
}
