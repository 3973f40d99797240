//! Systems where no process is traced instruction by instruction.

use super::counted_lookups::{CountCase, Lookups, traced_line};
use anyhow::{Result, bail};

/// What a key costs.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepCounts {
    pub(super) instructions: f64,
    pub(super) lines: f64,
}

/// Nothing is counted.
///
/// # Errors
/// Always.
pub(super) fn count(lookups: &Lookups, cases: &[CountCase]) -> Result<Vec<StepCounts>> {
    bail!(
        "`{}` is traced on Linux on x86-64 only",
        traced_line(lookups, cases)[0]
    )
}
