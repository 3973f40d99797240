//! The device tier of a build without the feature `gpu`: there is none.
//!
//! The type has no values, so the code for tables with a device tier compiles and never runs.

use crate::admission::AdmissionFilter;
use crate::stats::DeviceStats;

/// Rows on a device.
#[derive(Debug)]
pub(crate) enum Device {}

/// Where a lookup copies rows to.
#[expect(dead_code, reason = "only a device reads it")]
pub(crate) enum Destination<'r> {
    /// The process's memory.
    Memory(&'r mut [u8]),
}

impl Device {
    pub(crate) fn failure(&self) -> Option<&str> {
        match *self {}
    }

    pub(crate) fn admission_filter(&self) -> &AdmissionFilter {
        match *self {}
    }

    pub(crate) fn find(
        &self,
        _keys: &[u64],
        _rows: &mut Destination<'_>,
        _found: &mut [bool],
    ) -> Option<usize> {
        match *self {}
    }

    pub(crate) fn find_scored(
        &self,
        _keys: &[u64],
        _rows: &mut [u8],
        _scores: &mut [u64],
    ) -> Option<Vec<bool>> {
        match *self {}
    }

    pub(crate) fn contains(&self, _keys: &[u64]) -> Option<Vec<bool>> {
        match *self {}
    }

    pub(crate) fn erase(&self, _keys: &[u64]) {
        match *self {}
    }

    pub(crate) fn wants_touches(&self) -> bool {
        match *self {}
    }

    pub(crate) fn touch(&self, _keys: &[u64]) {
        match *self {}
    }

    pub(crate) fn len(&self) -> usize {
        match *self {}
    }

    pub(crate) fn stats(&self) -> DeviceStats {
        match *self {}
    }
}
