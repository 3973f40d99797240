//! Why a table was not built.

use super::Word;
use forerun_core::RegionError;

/// Why a table was not built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// More slots than can be addressed.
    #[error("a table of {slots} slots is beyond the limit of {max}")]
    TooManySlots {
        /// The requested number.
        slots: usize,
        /// The limit, which is lower for keys of two bytes.
        max: usize,
    },
    /// The memory for the slots could not be allocated.
    #[error(transparent)]
    Memory(#[from] RegionError),
}

impl BuildError {
    /// Returns the number of slots if a table of such keys can have that many.
    pub(super) fn check_slots<K: Word>(slots: usize) -> Result<usize, BuildError> {
        let max = K::SLOTS_MAX;
        if slots > max {
            return Err(BuildError::TooManySlots { slots, max });
        }
        Ok(slots)
    }
}
