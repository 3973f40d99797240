//! Interrupting a long call.

use crate::{Error, Result};
use std::fmt;
use std::sync::Arc;

/// Maximum number of rows of a long lookup between two checks.
const ROWS: usize = 1 << 16;
/// Maximum bytes of these rows.
const BYTES: usize = 64 << 20;

/// An optional function that long calls ask whether to stop.
#[derive(Clone, Default)]
pub(crate) struct Interrupt(Option<Arc<dyn Fn() -> bool + Send + Sync>>);

impl Interrupt {
    pub(crate) fn new(ask: impl Fn() -> bool + Send + Sync + 'static) -> Interrupt {
        Interrupt(Some(Arc::new(ask)))
    }

    /// Calls the function.
    ///
    /// # Errors
    /// [`Error::Interrupted`].
    pub(crate) fn check(&self) -> Result<()> {
        match &self.0 {
            Some(ask) if ask() => Err(Error::Interrupted),
            _ => Ok(()),
        }
    }

    /// The number of rows to copy between two checks, given their size: they take tens of
    /// milliseconds.
    pub(crate) fn check_interval(row_bytes: usize) -> usize {
        (BYTES / row_bytes).clamp(1, ROWS)
    }
}

impl fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Asked" } else { "None" })
    }
}
