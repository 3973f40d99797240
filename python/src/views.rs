//! The views of `forerun/views.py`, which `keys`, `values` and `items` return.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyModule;

use crate::python_calls::{Arguments, call};

/// The range of a view: `start`, `end`, `prefix`, `reverse`.
pub(crate) type Range = (Option<Vec<u8>>, Option<Vec<u8>>, Option<Vec<u8>>, bool);

/// A view of the given class. `range` has the fields of [`Range`].
pub(crate) fn new<'py>(
    source: &Bound<'py, PyAny>,
    class: &str,
    range: impl Arguments<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let py = source.py();
    let import = || PyResult::Ok(py.import("forerun.views")?.unbind());
    let module = MODULE.get_or_try_init(py, import)?.bind(py);
    let range = call(&module.getattr("Range")?, range, None)?;
    call(&module.getattr(class)?, (source, range), None)
}
