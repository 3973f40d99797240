//! Statistics as dicts.

use forerun::Figures;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// A dict of all figures.
pub(crate) fn dict<'py>(py: Python<'py>, stats: &impl Figures) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    let mut result = Ok(());
    stats.each(&mut |figure, value| {
        if result.is_ok() {
            result = dict.set_item(figure.name, value);
        }
    });
    result.map(|()| dict)
}
