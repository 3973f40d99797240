//! Iteration, one segment at a time.
//!
//! ```text
//!   selectors   0 ... | segment 0110, copied | next ...          the current copy; where to continue
//! ```
//!
//! The iterator advances by selectors, not by segments. No matter what has been split or merged in
//! the meantime, the next segment is the one that holds the next selector.

use super::HashTable;
use super::place::{selector, selector_hash};
use std::fmt;

/// The entries of a table: see [`HashTable::iter`].
pub struct HashTableIter<'t> {
    table: &'t HashTable,
    /// Entries that were copied and not yet returned. Their selectors are below `next`.
    entries: std::vec::IntoIter<(u64, u64)>,
    /// The first selector that was not copied yet.
    next: Option<u64>,
}

impl<'t> HashTableIter<'t> {
    pub(super) fn new(table: &'t HashTable) -> HashTableIter<'t> {
        HashTableIter {
            table,
            entries: Vec::new().into_iter(),
            next: Some(0),
        }
    }

    /// Copies the entries of a selector's segment that have not been returned yet.
    fn copy(&mut self, from: u64) {
        let guard = self.table.pin_epoch();
        let locked = self.table.lock(selector_hash(from), &guard);
        let segment = locked.segment;
        let mut entries = Vec::with_capacity(segment.entries() as usize);
        locked.for_each(|hash, value| {
            // After a rebuild, the segment may begin earlier.
            if selector(hash) >= from {
                entries.push((self.table.permutation.key(hash), value));
            }
        });
        self.entries = entries.into_iter();
        // One more than the last selector with the segment's prefix. The last segment has no
        // successor.
        let selectors = 1u64.checked_shl(64 - segment.depth).unwrap_or(0);
        self.next = Some(segment.prefix.wrapping_add(selectors)).filter(|&next| next != 0);
    }
}

impl Iterator for HashTableIter<'_> {
    /// A key and its value.
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        loop {
            if let Some(entry) = self.entries.next() {
                return Some(entry);
            }
            self.copy(self.next?);
        }
    }
}

impl fmt::Debug for HashTableIter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HashTableIter")
            .field("table", self.table)
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}
