//! Additions to rows that mark which are done. Whatever ends the call, the caller knows what is
//! left:
//!
//! ```text
//!   marks  0 left   1 added   2 the key has no row
//!          1 1 2 1 │ 0 0 0 0 │ 0 ...
//!          a part ─┘ └─ a signal may end the call here, between two parts
//! ```

use forerun::table::{Error, Update};
use numpy::PyReadwriteArray1;
use pyo3::prelude::*;

use super::Table;
use crate::errors::{invalid, partial};
use crate::interrupt;
use crate::numbers::Numbers;

/// No signal ends the addition of so many keys.
const PART_KEYS: usize = 1024;

const ADDED: u8 = 1;
const MISSING: u8 = 2;

pub(super) fn add<'py>(
    table: &Table,
    keys: &Bound<'py, PyAny>,
    rows: &Bound<'py, PyAny>,
    mut marks: PyReadwriteArray1<'py, u8>,
) -> PyResult<()> {
    let (open, keys) = (table.open()?, Numbers::new(keys)?);
    let marks = marks.as_slice_mut()?;
    if marks.len() != keys.len() {
        return Err(invalid("`marks` must have a place for each key"));
    }
    // The first error of some keys, and the positions of all that failed.
    let (mut first, mut positions) = (None, Vec::new());
    table.with_rows(&keys, rows, |keys, rows| {
        let row_bytes = rows.len() / keys.len().max(1);
        for (at, (keys, marks)) in keys
            .chunks(PART_KEYS)
            .zip(marks.chunks_mut(PART_KEYS))
            .enumerate()
        {
            if interrupt::is_raised() {
                return Err(Error::Interrupted);
            }
            let from = at * PART_KEYS;
            let rows = &rows[from * row_bytes..(from + keys.len()) * row_bytes];
            let mut found = [false; PART_KEYS];
            let found = &mut found[..keys.len()];
            let updated = interrupt::hold(|| open.update(keys, rows, Update::Add, found));
            let failures = match updated {
                Ok(_) => None,
                Err(Error::Keys(failures)) => Some(failures),
                Err(error) => return Err(error),
            };
            for (mark, &found) in marks.iter_mut().zip(&*found) {
                *mark = if found { ADDED } else { MISSING };
            }
            if let Some(failures) = failures {
                for (at, ..) in failures.iter() {
                    marks[at] = 0;
                    positions.push(from + at);
                }
                first.get_or_insert(Error::Keys(failures));
            }
        }
        Ok(())
    })?;
    match first {
        None => Ok(()),
        Some(error) => Err(partial(error.to_string(), positions)),
    }
}
