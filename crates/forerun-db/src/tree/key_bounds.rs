//! The first and the last key of a run.

use crate::run::Run;

/// The smallest key of a run.
#[inline]
pub(crate) fn smallest(run: &Run) -> &[u8] {
    &run.meta().smallest
}

/// The largest key of a run.
#[inline]
pub(crate) fn largest(run: &Run) -> &[u8] {
    &run.meta().largest
}
