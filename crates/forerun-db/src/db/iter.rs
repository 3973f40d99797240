//! Entries in key order, from both ends.
//!
//! ```text
//!   start ├──────────────────────────────────────────┤ end        bounds as given
//!               ├──────────────────────────┤                      bounds as the ends have moved in
//!           next ──>                  <── next_back
//! ```
//!
//! Each end has a cursor of its own. A step moves the cursor, sees whether the entry lies inside
//! the bounds, and moves its own bound in to just behind that entry. So the ends meet and never
//! cross, however their steps are mixed.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::ops::Bound;

use crate::memtable::{Comparator, Cursor, Entry, MemTable};
use crate::{Error, Result};

/// An iterator over the entries of a range, as one snapshot sees them.
///
/// As an [`Iterator`] it gives owned pairs; [`next_entry`](Iter::next_entry) and
/// [`next_entry_back`](Iter::next_entry_back) lend each entry and copy nothing. After an error it
/// is at its end.
///
/// ```
/// use forerun_db::{Db, Options};
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("store");
/// let db = Db::open(path, Options::default())?;
/// for key in ["ant", "bee", "cow", "dog"] {
///     db.put(key.as_bytes(), b"")?;
/// }
/// let mut iter = db.range("b".."d");
/// assert_eq!(iter.next_entry_back()?.map(|entry| entry.key), Some(&b"cow"[..]));
/// assert_eq!(iter.next_entry()?.map(|entry| entry.key), Some(&b"bee"[..]));
/// assert!(iter.next_entry()?.is_none());
/// # Ok::<(), forerun_db::Error>(())
/// ```
pub struct Iter<'a> {
    comparator: &'a dyn Comparator,
    front: End<'a>,
    back: End<'a>,
    start: Bound<Cow<'a, [u8]>>,
    end: Bound<Cow<'a, [u8]>>,
    error: Option<Error>,
    is_done: bool,
}

/// One end's cursor; it stands nowhere before its first step.
struct End<'a> {
    cursor: Cursor<'a>,
    is_placed: bool,
}

impl<'a> Iter<'a> {
    pub(super) fn new(
        table: &'a MemTable,
        comparator: &'a dyn Comparator,
        snapshot: u64,
        start: Bound<Cow<'a, [u8]>>,
        end: Bound<Cow<'a, [u8]>>,
    ) -> Iter<'a> {
        let cursor = || End {
            cursor: table.cursor(snapshot),
            is_placed: false,
        };
        Iter {
            comparator,
            front: cursor(),
            back: cursor(),
            start,
            end,
            error: None,
            is_done: false,
        }
    }

    /// The same iterator, which gives this error and ends.
    pub(super) fn failing(self, error: Error) -> Iter<'a> {
        Iter {
            error: Some(error),
            ..self
        }
    }

    /// The next entry from the front, lent until the next call.
    ///
    /// # Errors
    /// [`Error::CorruptEntry`], with paranoid checks only; [`Error::PrefixOrder`] from a prefix
    /// scan.
    pub fn next_entry(&mut self) -> Result<Option<Entry<'_>>> {
        self.forward()
    }

    /// The next entry from the back, lent until the next call.
    ///
    /// # Errors
    /// As [`next_entry`](Self::next_entry).
    pub fn next_entry_back(&mut self) -> Result<Option<Entry<'_>>> {
        self.backward()
    }

    fn forward(&mut self) -> Result<Option<Entry<'a>>> {
        if self.is_over()? {
            return Ok(None);
        }
        let cursor = &mut self.front.cursor;
        let moved = match &self.start {
            _ if self.front.is_placed => cursor.next(),
            Bound::Unbounded => cursor.seek_first(),
            Bound::Included(key) => cursor.seek(key),
            Bound::Excluded(key) => cursor.seek_after(key),
        };
        self.front.is_placed = true;
        let entry = self.settle(moved, |iter, key| match &iter.end {
            Bound::Unbounded => true,
            Bound::Included(end) => iter.comparator.compare(key, end) != Ordering::Greater,
            Bound::Excluded(end) => iter.comparator.compare(key, end) == Ordering::Less,
        })?;
        if let Some(entry) = entry {
            self.start = Bound::Excluded(Cow::Borrowed(entry.key));
        }
        Ok(entry)
    }

    fn backward(&mut self) -> Result<Option<Entry<'a>>> {
        if self.is_over()? {
            return Ok(None);
        }
        let cursor = &mut self.back.cursor;
        let moved = match &self.end {
            _ if self.back.is_placed => cursor.prev(),
            Bound::Unbounded => cursor.seek_last(),
            Bound::Included(key) => match cursor.seek(key) {
                Ok(Some(entry)) if self.comparator.compare(entry.key, key) == Ordering::Equal => {
                    Ok(Some(entry))
                }
                Ok(_) => cursor.seek_before(key),
                Err(error) => Err(error),
            },
            Bound::Excluded(key) => cursor.seek_before(key),
        };
        self.back.is_placed = true;
        let entry = self.settle(moved, |iter, key| match &iter.start {
            Bound::Unbounded => true,
            Bound::Included(start) => iter.comparator.compare(key, start) != Ordering::Less,
            Bound::Excluded(start) => iter.comparator.compare(key, start) == Ordering::Greater,
        })?;
        if let Some(entry) = entry {
            self.end = Bound::Excluded(Cow::Borrowed(entry.key));
        }
        Ok(entry)
    }

    fn is_over(&mut self) -> Result<bool> {
        if let Some(error) = self.error.take() {
            self.is_done = true;
            return Err(error);
        }
        Ok(self.is_done)
    }

    /// Takes the entry a cursor moved to if it lies inside the other end's bound, and ends the
    /// iteration if not.
    fn settle(
        &mut self,
        moved: Result<Option<Entry<'a>>>,
        is_inside: impl Fn(&Self, &[u8]) -> bool,
    ) -> Result<Option<Entry<'a>>> {
        let entry = match moved {
            Ok(entry) => entry.filter(|entry| is_inside(self, entry.key)),
            Err(error) => {
                self.is_done = true;
                return Err(error);
            }
        };
        self.is_done = entry.is_none();
        Ok(entry)
    }
}

impl Iterator for Iter<'_> {
    type Item = Result<(Vec<u8>, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        owned(self.forward())
    }
}

impl DoubleEndedIterator for Iter<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        owned(self.backward())
    }
}

impl std::iter::FusedIterator for Iter<'_> {}

impl std::fmt::Debug for Iter<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Iter")
            .field("start", &self.start)
            .field("end", &self.end)
            .field("is_done", &self.is_done)
            .finish_non_exhaustive()
    }
}

fn owned(entry: Result<Option<Entry<'_>>>) -> Option<Result<(Vec<u8>, Vec<u8>)>> {
    entry
        .map(|entry| entry.map(|entry| (entry.key.to_vec(), entry.value.to_vec())))
        .transpose()
}
