//! Lookups in another thread.
//!
//! ```text
//!   find_async ──> Lookup: table, keys, out, the record of its memory's use ──> the event loop's threads ──> find
//! ```
//!
//! The awaiting task may be cancelled while the thread continues to write to `out`. No other call
//! may use `out` until the lookup ends. So the lookup owns the record of that use, and it ends with
//! the lookup.

use std::sync::{Mutex, PoisonError};

use pyo3::intern;
use pyo3::prelude::*;

use super::{RowsAndFound, Table};
use crate::borrows::Borrow;
use crate::cuda::stream_of;
use crate::dlpack::is_on_cuda;
use crate::python_calls::call_method;

/// A pending lookup.
#[pyclass(frozen, module = "forerun")]
struct Lookup {
    table: Py<Table>,
    keys: Py<PyAny>,
    out: Option<Py<PyAny>>,
    stream: Option<Py<PyAny>>,
    /// The record that the memory of `out` is in use, until the lookup takes it. There is none for
    /// a GPU's memory.
    borrowed: Mutex<Option<Borrow>>,
}

#[pymethods]
impl Lookup {
    fn __call__<'py>(&self, py: Python<'py>) -> PyResult<RowsAndFound<'py>> {
        let borrowed = self.borrowed.lock();
        let borrowed = borrowed.unwrap_or_else(PoisonError::into_inner).take();
        let out = self.out.as_ref().map(|out| out.bind(py).clone());
        let stream = self.stream.as_ref().map(|stream| stream.bind(py));
        let table = self.table.bind(py).get();
        table.find_into(py, self.keys.bind(py), out, borrowed, None, stream)
    }
}

/// Runs a lookup in a thread of the running event loop's executor.
pub(super) fn find<'py>(
    table: &Bound<'py, Table>,
    keys: &Bound<'py, PyAny>,
    out: Option<Bound<'py, PyAny>>,
    stream: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = table.py();
    let asyncio = py.import(intern!(py, "asyncio"))?;
    let event_loop = call_method(&asyncio, intern!(py, "get_running_loop"), ())?;
    let (stream, borrowed) = match &out {
        Some(out) if is_on_cuda(out, "out")? => {
            let stream = stream_of(stream.as_ref(), out)?.number();
            (Some(stream.into_pyobject(py)?.into_any()), None)
        }
        Some(out) => {
            let written = table.get().written(out, "out", None)?;
            (stream, Some(written.into_borrow()))
        }
        None => (stream, None),
    };
    let lookup = Lookup {
        table: table.clone().unbind(),
        keys: keys.clone().unbind(),
        out: out.map(Bound::unbind),
        stream: stream.map(Bound::unbind),
        borrowed: Mutex::new(borrowed),
    };
    let lookup = Bound::new(py, lookup)?;
    let run = intern!(py, "run_in_executor");
    call_method(&event_loop, run, (py.None(), lookup))
}
