//! Handles that do not keep a table open.

use std::fmt;
use std::sync::{Arc, Weak};

use forerun_core::ProcessBound;

use crate::close::Open;
use crate::table::Table;

/// A handle that does not keep a table open: see [`Table::downgrade`].
#[derive(Clone)]
pub struct WeakTable {
    open: Weak<ProcessBound<Open>>,
}

impl WeakTable {
    pub(crate) fn of(open: &Arc<ProcessBound<Open>>) -> WeakTable {
        WeakTable {
            open: Arc::downgrade(open),
        }
    }

    /// Whether a handle still exists.
    pub fn is_alive(&self) -> bool {
        self.open.strong_count() > 0
    }

    /// The table, if a handle to it still exists.
    pub fn upgrade(&self) -> Option<Table> {
        self.open.upgrade().map(Table::of)
    }
}

impl fmt::Debug for WeakTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeakTable").finish_non_exhaustive()
    }
}

impl Table {
    /// A handle that does not keep the table open.
    ///
    /// ```
    /// use forerun_table::{Dtype, Table};
    ///
    /// let table = Table::builder(Dtype::F32, 4).host_capacity(1000).open()?;
    /// let weak = table.downgrade();
    /// assert!(weak.upgrade().is_some());
    /// drop(table);
    /// assert!(!weak.is_alive());
    /// # Ok::<(), forerun_table::Error>(())
    /// ```
    pub fn downgrade(&self) -> WeakTable {
        WeakTable::of(&self.open)
    }
}
