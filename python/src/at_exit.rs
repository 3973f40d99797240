//! Flushes and closes the tables that are open when the interpreter exits.
//!
//! Python need not destroy live objects at exit, and a table that is not destroyed is not flushed.
//! The handles are weak, so a table is closed as soon as the program drops it.

use std::sync::{Mutex, PoisonError};

use forerun::table::WeakTable;
use pyo3::prelude::*;

use crate::errors::table_exception;

/// Tables that may be open, with the process that opened each.
static TABLES: Mutex<Vec<(u32, WeakTable)>> = Mutex::new(Vec::new());

/// Records an opened table.
pub(crate) fn remember(table: &forerun::table::Table) {
    let mut tables = TABLES.lock().unwrap_or_else(PoisonError::into_inner);
    tables.retain(|(_, table)| table.is_alive());
    tables.push((std::process::id(), table.downgrade()));
}

/// Closes all tables of this process. Errors are reported the way Python reports them in a
/// destructor.
#[pyfunction]
fn _close_tables(py: Python<'_>) {
    let tables = std::mem::take(&mut *TABLES.lock().unwrap_or_else(PoisonError::into_inner));
    for (process, table) in tables {
        // In a fork, the parent flushes its own tables.
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

/// Makes the interpreter close the tables at exit.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let close = wrap_pyfunction!(_close_tables, module)?;
    let atexit = module.py().import("atexit")?;
    atexit.call_method1("register", (close,)).map(drop)
}
