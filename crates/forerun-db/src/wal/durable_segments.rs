//! Which segments later records prove to have been on stable storage.
//!
//! A loss of power may take unsynced parts of several segments, in any order. Bad bytes are damage,
//! and not such a loss, if a later record says that they were durable when it was written.

use std::path::Path;

use super::log_file::{self, Header};
use super::record_search::RecordSearch;
use super::segment_bytes::SegmentBytes;
use crate::io::{Io, OpenMode};
use crate::{Error, Result};

/// The proof, as far as it has been looked for.
pub(crate) struct DurableSegments<'a> {
    io: &'a dyn Io,
    dir: &'a Path,
    /// The existing segments, ascending.
    numbers: &'a [u64],
    /// Segments with lower numbers were durable.
    below: u64,
}

impl<'a> DurableSegments<'a> {
    pub(crate) fn new(io: &'a dyn Io, dir: &'a Path, numbers: &'a [u64]) -> DurableSegments<'a> {
        DurableSegments {
            io,
            dir,
            numbers,
            below: 0,
        }
    }

    /// Notes that a record in a segment says that all earlier segments were durable.
    pub(crate) fn note(&mut self, number: u64) {
        self.below = self.below.max(number);
    }

    /// Whether a record that was read says that this segment was durable.
    pub(crate) fn is_noted(&self, number: u64) -> bool {
        number < self.below
    }

    /// Whether a record in any later segment says that this segment was durable.
    pub(crate) fn is_proved(&mut self, number: u64) -> Result<bool> {
        let numbers = self.numbers;
        let after = numbers.partition_point(|other| *other <= number);
        for later in &numbers[after..] {
            if self.is_noted(number) {
                break;
            }
            if self.says_so(*later)? {
                self.note(*later);
            }
        }
        Ok(self.is_noted(number))
    }

    /// Whether a record in a segment says that all earlier ones were durable.
    fn says_so(&self, number: u64) -> Result<bool> {
        let path = log_file::path(self.dir, number);
        let file = self.io.open(&path, OpenMode::Read);
        let file = file.map_err(|error| Error::io("open", &path, error))?;
        let failed = |error| Error::io("read", &path, error);
        let mut bytes = SegmentBytes::new(&*file).map_err(failed)?;
        let header_bytes = bytes.len().min(log_file::HEADER_BYTES);
        // Without the salt in the header, a record cannot be distinguished from random bytes.
        let Ok(header) = Header::decode(bytes.get(0..header_bytes).map_err(failed)?) else {
            return Ok(false);
        };
        let mut search = RecordSearch::new(&*file, header.salt).map_err(failed)?;
        search
            .proves_earlier_durable(header.first_sequence)
            .map_err(failed)
    }
}
