//! Iteration, one segment at a time.
//!
//! ```text
//!   selectors   0 ... | segment 0110, copied | next ...          the current copy; where to continue
//! ```
//!
//! The iterator advances by selectors, not by segments. No matter what has been split or merged in
//! the meantime, the next segment is the one that holds the next selector.

use super::place::{selector, selector_hash};
use super::{Error, HashTable};
use forerun_core::RegionError;
use std::alloc::{Layout, handle_alloc_error};
use std::fmt;

/// The entries of a table: see [`HashTable::iter`].
pub struct HashTableIter<'t> {
    table: &'t HashTable,
    /// Entries that were copied and not yet returned. Their selectors are below `next`.
    entries: Vec<(u64, u64)>,
    /// The first selector that was not copied yet.
    next: Option<u64>,
}

impl<'t> HashTableIter<'t> {
    pub(super) fn new(table: &'t HashTable) -> HashTableIter<'t> {
        HashTableIter {
            table,
            entries: Vec::new(),
            next: Some(0),
        }
    }

    /// The next entry, or an error where [`next`](Iterator::next) would end the process.
    ///
    /// ```
    /// use forerun_hash::HashTable;
    ///
    /// let table = HashTable::new()?;
    /// table.insert(1, 10)?;
    /// let mut entries = table.iter();
    /// assert_eq!(entries.try_next()?, Some((1, 10)));
    /// assert_eq!(entries.try_next()?, None);
    /// # Ok::<(), forerun_hash::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Memory`]: there is no memory for the copy of a segment. A later call tries again.
    pub fn try_next(&mut self) -> Result<Option<(u64, u64)>, Error> {
        loop {
            if let Some(entry) = self.entries.pop() {
                return Ok(Some(entry));
            }
            let Some(from) = self.next else {
                return Ok(None);
            };
            self.copy(from)?;
        }
    }

    /// Copies the entries of a selector's segment that have not been returned yet.
    fn copy(&mut self, from: u64) -> Result<(), Error> {
        let guard = self.table.pin_epoch();
        let locked = self.table.lock(selector_hash(from), &guard);
        let segment = locked.segment;
        let count = segment.entries() as usize;
        if self.entries.try_reserve_exact(count).is_err() {
            let len_bytes = count * size_of::<(u64, u64)>();
            return Err(RegionError::OutOfMemory { len_bytes }.into());
        }
        locked.for_each(|hash, value| {
            // After a rebuild, the segment may begin earlier.
            if selector(hash) >= from {
                self.entries.push((self.table.permutation.key(hash), value));
            }
        });
        // One more than the last selector with the segment's prefix. The last segment has no
        // successor.
        let selectors = 1u64.checked_shl(64 - segment.depth).unwrap_or(0);
        self.next = Some(segment.prefix.wrapping_add(selectors)).filter(|&next| next != 0);
        Ok(())
    }
}

impl Iterator for HashTableIter<'_> {
    /// A key and its value.
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        match self.try_next() {
            Ok(entry) => entry,
            // As for a vector that grows: an iterator of entries has no place for an error.
            Err(_) => handle_alloc_error(Layout::new::<(u64, u64)>()),
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
