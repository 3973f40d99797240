//! PyTorch's counter of in-place changes.

use numpy::PyUntypedArray;
use pyo3::prelude::*;

/// An object whose memory is being written. On drop, a PyTorch tensor is counted as changed in
/// place, just as PyTorch's own operations count it. Backward then rejects a tensor that it saved
/// before.
pub(crate) struct Changed<'py> {
    tensor: Option<Bound<'py, PyAny>>,
}

impl<'py> Changed<'py> {
    /// `object` is an argument before its conversion to an array.
    pub(crate) fn new(object: &Bound<'py, PyAny>) -> PyResult<Changed<'py>> {
        if object.is_instance_of::<PyUntypedArray>() {
            return Ok(Changed { tensor: None });
        }
        // A subclass of Tensor may be in any module. An object with a version is a tensor.
        let class = object.get_type();
        let is_tensor = class.hasattr("_version")? && class.hasattr("is_inference")?;
        let tensor = is_tensor.then(|| object.clone());
        Ok(Changed { tensor })
    }
}

fn count(tensor: &Bound<'_, PyAny>) -> PyResult<()> {
    if tensor.call_method0("is_inference")?.is_truthy()? {
        // It has no version.
        return Ok(());
    }
    let graph = tensor.py().import("torch.autograd.graph")?;
    graph.call_method1("increment_version", (tensor,))?;
    Ok(())
}

impl Drop for Changed<'_> {
    fn drop(&mut self) {
        if let Some(tensor) = &self.tensor
            && let Err(error) = count(tensor)
        {
            error.write_unraisable(tensor.py(), Some(tensor));
        }
    }
}
