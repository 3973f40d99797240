//! Tables that are open when the interpreter exits: they are flushed and closed.
//!
//! Python need not destroy what is alive at its exit, and what it does not destroy is not flushed.
//! The handles are weak: a table that its program drops is closed then.

use std::sync::{Mutex, PoisonError};

use forerun::table::WeakTable;
use pyo3::prelude::*;

use crate::errors::table_exception;

/// Tables that may be open, and the process that opened each.
static TABLES: Mutex<Vec<(u32, WeakTable)>> = Mutex::new(Vec::new());

/// Notes a table that was opened.
pub(crate) fn remember(table: &forerun::table::Table) {
    let mut tables = TABLES.lock().unwrap_or_else(PoisonError::into_inner);
    tables.retain(|(_, table)| table.is_alive());
    tables.push((std::process::id(), table.downgrade()));
}

/// Closes all tables of this process. What goes wrong is reported as Python reports it in a
/// destructor.
#[pyfunction]
fn _close_tables(py: Python<'_>) {
    let tables = std::mem::take(&mut *TABLES.lock().unwrap_or_else(PoisonError::into_inner));
    for (process, table) in tables {
        // A table of the parent of a fork is the parent's to flush.
        if process != std::process::id() {
            continue;
        }
        if let Some(table) = table.upgrade()
            && let Err(error) = py.detach(|| table.close())
        {
            table_exception(error).write_unraisable(py, None);
        }
    }
}

/// Has the interpreter close them when it exits.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let close = wrap_pyfunction!(_close_tables, module)?;
    let atexit = module.py().import("atexit")?;
    atexit.call_method1("register", (close,)).map(drop)
}
