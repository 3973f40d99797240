//! The reference measurement for the package's benchmark.

use std::time::Instant;

use pyo3::prelude::*;

use crate::errors::table_exception;
use crate::numbers::Numbers;
use crate::table::Table;

/// The seconds that the engine alone takes for consecutive batches of equal size, all into the same
/// `out` and `found`.
#[pyfunction]
pub(crate) fn _find_seconds<'py>(
    py: Python<'py>,
    table: &Bound<'py, Table>,
    batches: Vec<Bound<'py, PyAny>>,
    out: &Bound<'py, PyAny>,
    found: &Bound<'py, PyAny>,
) -> PyResult<f64> {
    let table = table.get();
    let numbers: Vec<Numbers<'py>> = batches.iter().map(Numbers::new).collect::<PyResult<_>>()?;
    let Some(first) = numbers.first() else {
        return Ok(0.0);
    };
    let found = first.flags_or(py, Some(found))?;
    let mut written = table.written(out, "out", None)?;
    let mut flags = found.write()?;
    let (bytes, flags) = (written.bytes()?, flags.as_slice_mut()?);
    let keys: Vec<&[u64]> = numbers
        .iter()
        .map(Numbers::as_slice)
        .collect::<PyResult<_>>()?;
    let table = table.open()?;
    let find = || {
        let begin = Instant::now();
        for keys in keys {
            table.find(keys, bytes, flags)?;
        }
        Ok(begin.elapsed().as_secs_f64())
    };
    py.detach(find).map_err(table_exception)
}
