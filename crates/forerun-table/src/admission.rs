//! Which rows of the tiers below come up into a tier when they are looked up.

use crate::Result;
use crate::ghosts::Ghosts;
use crate::inner::Policies;
use crate::options::{Admission, Promotion, Score};

/// A tier's door: one stands before each tier in memory.
#[derive(Debug)]
pub(crate) struct AdmissionFilter {
    admission: Admission,
    /// Where admission has to know what was looked up before.
    ghosts: Option<Ghosts>,
}

impl AdmissionFilter {
    /// Before a tier of so many rows; 0 where there is nothing below that could come up.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory).
    pub(crate) fn new(policies: &Policies, capacity: usize) -> Result<AdmissionFilter> {
        let counts = match policies.admission {
            Admission::Always => false,
            Admission::SecondTouch => true,
            Admission::ByScore => policies.score == Score::Lfu,
        };
        // As many keys as rows are remembered, at twice the places, since keys that meet at one forget each other.
        let ghosts = (counts && policies.promotion == Promotion::OnFind && capacity > 0)
            .then(|| Ghosts::new(capacity.saturating_mul(2)))
            .transpose()?;
        Ok(AdmissionFilter {
            admission: policies.admission,
            ghosts,
        })
    }

    /// Asks for what is remembered of these keys.
    pub(crate) fn prefetch(&self, keys: &[u64]) {
        if let Some(ghosts) = &self.ghosts {
            keys.iter().for_each(|&key| ghosts.prefetch(key));
        }
    }

    /// Whether the row of a key that was found below is to come up, and how often it was looked up before.
    pub(crate) fn admits(&self, key: u64) -> (bool, u16) {
        let before = self.ghosts.as_ref().map_or(0, |ghosts| ghosts.touch(key));
        let admitted = self.admission != Admission::SecondTouch || before > 0;
        (admitted, before)
    }

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.ghosts.as_ref().map_or(0, Ghosts::memory_bytes)
    }
}
