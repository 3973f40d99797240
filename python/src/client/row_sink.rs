//! Lookups by a client, into the rows of the caller's array.

use forerun::client::{Sink, Unanswered, Value};
use pyo3::prelude::*;

use crate::errors::invalid;
use crate::rows::Rows;

/// Copies each value into its row as it arrives.
pub(crate) struct RowSink<'a> {
    bytes: &'a mut [u8],
    row_bytes: usize,
    found: &'a mut [bool],
    /// The first position of a value that does not fit a row, and its length.
    misfit: Option<(usize, usize)>,
    unanswered: Vec<usize>,
}

impl<'a> RowSink<'a> {
    /// A sink for these rows. Marks every row as not found.
    pub(crate) fn new(rows: &'a mut Rows<'_>) -> PyResult<RowSink<'a>> {
        let (bytes, row_bytes, found) = rows.parts()?;
        found.fill(false);
        Ok(RowSink {
            bytes,
            row_bytes,
            found,
            misfit: None,
            unanswered: Vec::new(),
        })
    }

    /// The positions of the keys that have no answer. An error if a value does not fit its row.
    pub(crate) fn into_unanswered(mut self) -> PyResult<Vec<usize>> {
        if let Some((position, len)) = self.misfit {
            let row_bytes = self.row_bytes;
            return Err(invalid(format!(
                "the value of key {position} has {len} bytes, but a row of `out` has {row_bytes}"
            )));
        }
        self.unanswered.sort_unstable();
        Ok(self.unanswered)
    }
}

impl Sink for RowSink<'_> {
    fn hit(&mut self, index: usize, value: Value<'_>) {
        let len = value.data.len();
        if len != self.row_bytes {
            let first = self.misfit.is_none_or(|(position, _)| index < position);
            self.misfit = if first {
                Some((index, len))
            } else {
                self.misfit
            };
            return;
        }
        self.found[index] = true;
        self.bytes[index * len..][..len].copy_from_slice(value.data);
    }

    fn unanswered(&mut self, index: usize, _: Unanswered) {
        self.unanswered.push(index);
    }
}
