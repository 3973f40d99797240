//! Leaves that a cursor reads past the cache, several with one read.

use std::ops::Range;

use super::{Direction, RunCursor};
use crate::Result;
use crate::io::reads::read_exact_at;
use crate::run::stored::PageLocation;

/// Sizes of the first and of the largest read-ahead.
pub(super) const READ_AHEAD_MIN_BYTES: u64 = 32 << 10;
const READ_AHEAD_MAX_BYTES: u64 = 256 << 10;

/// A part of the file that holds the next leaves.
#[derive(Debug, Default)]
pub(super) struct ReadAhead {
    pub(super) bytes: Vec<u8>,
    offset: u64,
    /// Size of the next read.
    pub(super) window: u64,
}

impl ReadAhead {
    fn find(&self, location: PageLocation) -> Option<&[u8]> {
        let start = usize::try_from(location.offset.checked_sub(self.offset)?).ok()?;
        self.bytes
            .get(start..start.checked_add(location.stored_len as usize)?)
    }
}

impl RunCursor<'_> {
    /// Loads a leaf without the cache: from the read-ahead buffer, or together with the leaves
    /// before or after it.
    pub(super) fn load_ahead(
        &mut self,
        number: u32,
        location: PageLocation,
        (first, last): (PageLocation, PageLocation),
        direction: Direction,
    ) -> Result<()> {
        self.run.check_location(location)?;
        if self.ahead.find(location).is_none() {
            let window = self.ahead.window.max(u64::from(location.stored_len));
            self.ahead.window =
                (self.ahead.window * 2).clamp(READ_AHEAD_MIN_BYTES, READ_AHEAD_MAX_BYTES);
            let range = match direction {
                Direction::Forward => {
                    location.offset..last.end().clamp(location.end(), location.offset + window)
                }
                Direction::Backward => {
                    let from = location.end().saturating_sub(window);
                    first
                        .offset
                        .clamp(from.min(location.offset), location.offset)
                        ..location.end()
                }
            };
            self.read_ahead(range);
        }
        self.leaf.trim_buffer(location.raw_len as usize);
        let (run, ahead) = (self.run, &mut self.ahead);
        self.leaf.fill(number, |page| match ahead.find(location) {
            Some(stored) => {
                page.resize(location.raw_len as usize, 0);
                run.unstore_page(number, location, stored, page)
            }
            // The large read failed, perhaps because of another leaf. Read this one alone.
            None => {
                run.read_page(number, location, &mut ahead.bytes, page)?;
                ahead.offset = location.offset;
                Ok(())
            }
        })
    }

    /// Reads a part of the file ahead. On an error, the buffer is empty.
    fn read_ahead(&mut self, range: Range<u64>) {
        let ahead = &mut self.ahead;
        ahead.offset = range.start;
        ahead.bytes.clear();
        let len = (range.end - range.start) as usize;
        if ahead.bytes.capacity() > (READ_AHEAD_MAX_BYTES as usize).max(4 * len) {
            ahead.bytes = Vec::new();
        }
        if ahead.bytes.try_reserve(len).is_err() {
            return;
        }
        ahead.bytes.resize(len, 0);
        if read_exact_at(self.run.file(), &mut ahead.bytes, range.start).is_err() {
            ahead.bytes.clear();
        }
    }
}
