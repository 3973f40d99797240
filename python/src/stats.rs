//! Statistics as dicts.

use forerun::stats::Metrics;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// A dict of all metrics.
pub(crate) fn dict<'py>(py: Python<'py>, stats: &impl Metrics) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    let mut result = Ok(());
    stats.each(&mut |metric, value| {
        if result.is_ok() {
            result = dict.set_item(metric.name, value);
        }
    });
    result.map(|()| dict)
}
