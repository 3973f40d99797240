//! Handles of the engine that Python objects own, dropped while other Python threads run.
//!
//! Dropping the last handle to a store closes the store: it syncs the log and waits for a flush or
//! a compaction step. Dropping a cache or a snapshot frees its memory. Python destroys an object
//! while it holds the interpreter's lock, so such a drop would stop all other Python threads.

use std::ops::Deref;

use pyo3::prelude::*;

/// Drops a handle while other Python threads run, or at once if the interpreter is gone.
pub(crate) fn drop_detached<T: Send>(handle: T) {
    let mut handle = Some(handle);
    Python::try_attach(|py| {
        let handle = handle.take();
        py.detach(|| drop(handle));
    });
}

/// A handle that lives as long as the Python object that owns it.
pub(crate) struct EngineHandle<T: Send> {
    /// `None` only while it is dropped.
    handle: Option<T>,
}

impl<T: Send> EngineHandle<T> {
    pub(crate) fn new(handle: T) -> EngineHandle<T> {
        EngineHandle {
            handle: Some(handle),
        }
    }
}

impl<T: Send> Deref for EngineHandle<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &self.handle {
            Some(handle) => handle,
            None => unreachable!("only `drop` takes the handle"),
        }
    }
}

impl<T: Send> Drop for EngineHandle<T> {
    fn drop(&mut self) {
        drop_detached(self.handle.take());
    }
}
