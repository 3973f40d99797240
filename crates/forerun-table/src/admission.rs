//! Admission: which rows a lookup promotes into a tier.

use crate::Result;
use crate::ghosts::Ghosts;
use crate::options::{Admission, Policies, Promotion};

/// The filter remembers about as many keys as the tier has rows. It has twice the places, because a
/// key replaces the other keys of its place.
const PLACES_PER_ROW: usize = 2;

/// The admission filter of a tier; each tier in memory has one.
#[derive(Debug)]
pub(crate) struct AdmissionFilter {
    admission: Admission,
    /// Recent lookups, if admission depends on them.
    ghosts: Option<Ghosts>,
}

impl AdmissionFilter {
    /// A filter for a tier of `capacity` rows; 0 if no tier below can promote rows.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory).
    pub(crate) fn new(policies: &Policies, capacity: usize) -> Result<AdmissionFilter> {
        let ghosts = (Self::counts_lookups(policies) && capacity > 0)
            .then(|| Ghosts::new(capacity.saturating_mul(PLACES_PER_ROW)))
            .transpose()?;
        Ok(AdmissionFilter {
            admission: policies.admission,
            ghosts,
        })
    }

    /// Prefetches the filter's lines of these keys.
    pub(crate) fn prefetch(&self, keys: &[u64]) {
        if let Some(ghosts) = &self.ghosts {
            keys.iter().for_each(|&key| ghosts.prefetch(key));
        }
    }

    /// Counts a lookup of a key that was found below. Returns whether to promote its row, and the
    /// number of earlier lookups.
    pub(crate) fn admits(&self, key: u64) -> (bool, u16) {
        let before = self.ghosts.as_ref().map_or(0, |ghosts| ghosts.touch(key));
        let admitted = self.admission != Admission::SecondTouch || before > 0;
        (admitted, before)
    }

    /// Bytes of memory for each row of the tier.
    pub(crate) fn bytes_per_row(policies: &Policies) -> usize {
        if Self::counts_lookups(policies) {
            PLACES_PER_ROW * Ghosts::PLACE_BYTES
        } else {
            0
        }
    }

    /// Whether admission depends on earlier lookups.
    fn counts_lookups(policies: &Policies) -> bool {
        let counts = match policies.admission {
            Admission::Always => false,
            Admission::SecondTouch => true,
            Admission::ByScore => policies.evict_strategy.counts_lookups(),
        };
        counts && policies.promotion == Promotion::OnFind
    }

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.ghosts.as_ref().map_or(0, Ghosts::memory_bytes)
    }
}
