//! Calls of Python code, and of NumPy's functions that release the interpreter's lock.
//!
//! Before Python 3.14, a daemon thread that takes the lock while the interpreter exits ends at
//! once: `pthread_exit` unwinds its stack. Frames of Rust would then drop Python objects without
//! the lock, and the unwinding would abort the process where Rust catches panics. PyO3 stops the
//! thread instead wherever PyO3 itself takes the lock. Called code takes it too, so it is called
//! from here, where the thread stops as it does in Python 3.14.

use pyo3::exceptions::PyTypeError;
use pyo3::ffi::PyObject;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyIterator, PyString, PyTuple};

unsafe extern "C-unwind" {
    /// PyO3 declares these as functions that never unwind.
    fn PyObject_Call(
        callable: *mut PyObject,
        arguments: *mut PyObject,
        keywords: *mut PyObject,
    ) -> *mut PyObject;
    fn PyObject_GetIter(object: *mut PyObject) -> *mut PyObject;
    fn PyIter_Next(iterator: *mut PyObject) -> *mut PyObject;
    fn PyErr_WriteUnraisable(object: *mut PyObject);
}

/// Stops the thread if its stack is unwound past this. Its frame owns nothing else that is dropped
/// first.
struct StopsAtExit;

impl Drop for StopsAtExit {
    fn drop(&mut self) {
        loop {
            std::thread::sleep(std::time::Duration::from_secs(3600));
        }
    }
}

/// Runs a foreign call, in a frame that owns nothing. `call` must call foreign code directly.
#[inline(always)]
pub(crate) fn stopping_at_exit<R>(call: impl FnOnce() -> R) -> R {
    let stops = StopsAtExit;
    let result = call();
    std::mem::forget(stops);
    result
}

/// The arguments of a call: a tuple.
pub(crate) trait Arguments<'py> {
    fn into_tuple(self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>>;
}

impl<'py, A> Arguments<'py> for A
where
    A: IntoPyObject<'py, Target = PyTuple, Output = Bound<'py, PyTuple>>,
    A::Error: Into<PyErr>,
{
    fn into_tuple(self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        self.into_pyobject(py).map_err(Into::into)
    }
}

/// Refuses what cannot be called. `with` are the arguments.
pub(crate) fn check_callable(
    object: &Bound<'_, PyAny>,
    argument: &str,
    with: &str,
) -> PyResult<()> {
    if object.is_callable() {
        return Ok(());
    }
    Err(PyTypeError::new_err(format!(
        "`{argument}` must be callable with {with}, not {}",
        object.get_type().name()?
    )))
}

/// Calls an object.
pub(crate) fn call<'py>(
    callable: &Bound<'py, PyAny>,
    arguments: impl Arguments<'py>,
    keywords: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let arguments = arguments.into_tuple(callable.py())?;
    let keywords = keywords.map_or(std::ptr::null_mut(), Bound::as_ptr);
    // SAFETY: the objects outlive the call, and the keywords are a dict or null.
    let result = stopping_at_exit(|| unsafe {
        PyObject_Call(callable.as_ptr(), arguments.as_ptr(), keywords)
    });
    // SAFETY: the call returned a new reference, or null and an exception.
    unsafe { Bound::from_owned_ptr_or_err(callable.py(), result) }
}

/// Reports an exception that has no caller in Python to be raised to. Python's
/// `sys.unraisablehook` may be code of the program.
pub(crate) fn write_unraisable(error: PyErr, callable: &Bound<'_, PyAny>) {
    error.restore(callable.py());
    // SAFETY: the object outlives the call, and an exception is set.
    stopping_at_exit(|| unsafe { PyErr_WriteUnraisable(callable.as_ptr()) });
}

/// Calls a method.
pub(crate) fn call_method<'py>(
    object: &Bound<'py, PyAny>,
    name: &Bound<'py, PyString>,
    arguments: impl Arguments<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    call(&object.getattr(name)?, arguments, None)
}

/// Calls a function of NumPy.
pub(crate) fn call_numpy<'py>(
    py: Python<'py>,
    name: &Bound<'py, PyString>,
    arguments: impl Arguments<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let numpy = py.import(pyo3::intern!(py, "numpy"))?;
    call(&numpy.getattr(name)?, arguments, None)
}

/// An iterator over an object.
pub(crate) fn iterate<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyIterator>> {
    // SAFETY: the object outlives the call.
    let iterator = stopping_at_exit(|| unsafe { PyObject_GetIter(object.as_ptr()) });
    // SAFETY: the call returned a new reference, or null and an exception.
    let iterator = unsafe { Bound::from_owned_ptr_or_err(object.py(), iterator) }?;
    Ok(iterator.cast_into::<PyIterator>()?)
}

/// The next object of an iterator, if there is one.
pub(crate) fn next<'py>(iterator: &Bound<'py, PyIterator>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = iterator.py();
    // SAFETY: it is an iterator, and outlives the call.
    let item = stopping_at_exit(|| unsafe { PyIter_Next(iterator.as_ptr()) });
    // SAFETY: the call returned a new reference, or null.
    match unsafe { Bound::from_owned_ptr_or_opt(py, item) } {
        Some(item) => Ok(Some(item)),
        None => PyErr::take(py).map_or(Ok(None), Err),
    }
}
