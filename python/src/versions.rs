//! PyTorch's counter of in-place changes.

use numpy::PyUntypedArray;
use pyo3::intern;
use pyo3::prelude::*;

use crate::python_calls::call_method;

/// Counts a PyTorch tensor as changed in place, just as PyTorch's own operations count it. Backward
/// then rejects a tensor that it saved before.
///
/// `object` is an argument before its conversion to an array. It is counted before its memory is
/// written, because a signal handler may raise here, and afterwards the result would be lost.
pub(crate) fn count_change(object: &Bound<'_, PyAny>) -> PyResult<()> {
    if object.is_instance_of::<PyUntypedArray>() {
        return Ok(());
    }
    // A subclass of Tensor may be in any module. An object with a version is a tensor.
    let (py, class) = (object.py(), object.get_type());
    if !class.hasattr(intern!(py, "_version"))? || !class.hasattr(intern!(py, "is_inference"))? {
        return Ok(());
    }
    if call_method(object, intern!(py, "is_inference"), ())?.is_truthy()? {
        // It has no version.
        return Ok(());
    }
    let graph = py.import(intern!(py, "torch.autograd.graph"))?;
    call_method(&graph, intern!(py, "increment_version"), (object,)).map(drop)
}
