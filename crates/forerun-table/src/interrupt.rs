//! How a long call is ended before its time.

use crate::{Error, Result};
use std::fmt;
use std::sync::Arc;

/// Rows of a long lookup between two questions, at most.
const ROWS: usize = 1 << 16;
/// And their bytes.
const BYTES: usize = 64 << 20;

/// A function that long calls ask whether to go on, if there is one.
#[derive(Clone, Default)]
pub(crate) struct Interrupt(Option<Arc<dyn Fn() -> bool + Send + Sync>>);

impl Interrupt {
    pub(crate) fn new(ask: impl Fn() -> bool + Send + Sync + 'static) -> Interrupt {
        Interrupt(Some(Arc::new(ask)))
    }

    /// Asks.
    ///
    /// # Errors
    /// [`Error::Interrupted`].
    pub(crate) fn check(&self) -> Result<()> {
        match &self.0 {
            Some(ask) if ask() => Err(Error::Interrupted),
            _ => Ok(()),
        }
    }

    /// Rows of so many bytes that are copied between two questions: tens of milliseconds.
    pub(crate) fn stretch(row_bytes: usize) -> usize {
        (BYTES / row_bytes).clamp(1, ROWS)
    }
}

impl fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Asked" } else { "None" })
    }
}
