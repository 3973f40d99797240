//! Entries in key order, from both ends.
//!
//! ```text
//!   start ├──────────────────────────────────────────┤ end        bounds as given
//!               ├──────────────────────────┤                      bounds as the ends have moved in
//!           next ──>                  <── next_back
//! ```
//!
//! Each end has its own cursor: a merge of all memtables and runs in the super version, filtered to
//! what the snapshot sees. A step moves the cursor and checks that the entry lies within the other
//! end's bound: that of the range, or the entry that the other end returned last. So the ends meet
//! and never cross, in whatever order they move. The cursors know the range's bound too: they read
//! no run behind it, and pass over no deleted keys there.
//!
//! An iterator keeps the super version it began with, so flushes and compactions change nothing for
//! it. When it is dropped, its cursor is freed or pooled for the thread's next iterator: see
//! `cursor_pool.rs`.

use std::cmp::Ordering;
use std::ops::Bound;

use forerun_core::Owner;

use super::cursor::{Cursor, End};
use crate::panics;
use crate::tree::scan_limit::Direction;
use crate::versions::Entry;
use crate::{Error, Result};

/// An iterator over the entries of a range, as one snapshot sees them.
///
/// As an [`Iterator`] it returns owned pairs, which takes two allocations per entry.
/// [`next_entry`](Iter::next_entry) and [`next_entry_back`](Iter::next_entry_back) lend each entry
/// until the next call and allocate nothing. Both kinds of calls can be mixed. An error ends the
/// iterator.
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
pub struct Iter {
    /// `None` after a failure.
    cursor: Option<Box<Cursor>>,
    range: Range,
    /// Whether the front and the back have returned an entry. Until the iterator has ended, their
    /// cursors stay on the entries that they returned last.
    is_front_begun: bool,
    is_back_begun: bool,
    error: Option<Error>,
    is_done: bool,
    owner: Owner,
}

impl Iter {
    pub(super) fn new(cursor: Box<Cursor>, range: Range) -> Iter {
        Iter {
            cursor: Some(cursor),
            range,
            is_front_begun: false,
            is_back_begun: false,
            error: None,
            is_done: false,
            owner: Owner::this_process(),
        }
    }

    /// An iterator that returns this error and ends.
    pub(super) fn failed(error: Error) -> Iter {
        Iter {
            cursor: None,
            range: (Bound::Unbounded, Bound::Unbounded),
            is_front_begun: false,
            is_back_begun: false,
            error: Some(error),
            is_done: false,
            owner: Owner::this_process(),
        }
    }

    /// Makes the iterator return this error and end.
    pub(super) fn failing(mut self, error: Error) -> Iter {
        self.error = Some(error);
        self
    }

    /// The next entry from the front, lent until the next call.
    ///
    /// ```
    /// use forerun_db::{Db, Options};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("store");
    /// let db = Db::open(path, Options::default())?;
    /// db.put("paris", "48.85,2.35")?;
    /// let (mut entries, mut bytes) = (db.iter(), 0);
    /// while let Some(entry) = entries.next_entry()? {
    ///     bytes += entry.key.len() + entry.value.len(); // borrowed, not copied
    /// }
    /// assert_eq!(bytes, 15);
    /// # Ok::<(), forerun_db::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Io`] and [`Error::CorruptFile`] from runs; [`Error::CorruptEntry`], with paranoid
    /// checks only; [`Error::PrefixOrder`] from a prefix scan; [`Error::Forked`] in a fork.
    pub fn next_entry(&mut self) -> Result<Option<Entry<'_>>> {
        if self.is_over()? {
            return Ok(None);
        }
        // An iterator whose step panics has ended: its cursor has no position.
        self.is_done = true;
        let has_entry = self.guard(Iter::step_front);
        self.is_done = !self.note(has_entry)?;
        let cursor = self.cursor.as_ref().filter(|_| !self.is_done);
        self.is_front_begun = true;
        Ok(cursor.and_then(|cursor| cursor.front()))
    }

    /// Moves the front to the next entry. Returns whether it lies in the range and before the back.
    fn step_front(&mut self) -> Result<bool> {
        let Some(cursor) = &mut self.cursor else {
            return Ok(false);
        };
        let (range, is_begun) = (&self.range, self.is_front_begun);
        cursor.move_front(|front| {
            if is_begun {
                front.step_forward()
            } else {
                begin_front(front, range)
            }
        })?;
        if !cursor.has_front() {
            return Ok(false);
        }
        let back = if self.is_back_begun {
            cursor.back()
        } else {
            None
        };
        let compare_with = |key: &[u8]| {
            let front = cursor
                .front()
                .map(|front| cursor.order().compare(front.key, key));
            front.unwrap_or(Ordering::Greater)
        };
        Ok(match (back, &self.range.1) {
            (Some(back), _) => compare_with(back.key) == Ordering::Less,
            (None, Bound::Unbounded) => true,
            (None, Bound::Included(end)) => compare_with(end) != Ordering::Greater,
            (None, Bound::Excluded(end)) => compare_with(end) == Ordering::Less,
        })
    }

    /// The next entry from the back, lent until the next call.
    ///
    /// ```
    /// use forerun_db::{Db, Options};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("store");
    /// let db = Db::open(path, Options::default())?;
    /// db.put("ant", "1")?;
    /// db.put("bee", "2")?;
    /// let mut entries = db.iter();
    /// assert_eq!(entries.next_entry_back()?.map(|entry| entry.key), Some(&b"bee"[..]));
    /// # Ok::<(), forerun_db::Error>(())
    /// ```
    ///
    /// # Errors
    /// The same as for [`next_entry`](Self::next_entry).
    pub fn next_entry_back(&mut self) -> Result<Option<Entry<'_>>> {
        if self.is_over()? {
            return Ok(None);
        }
        self.is_done = true;
        let has_entry = self.guard(Iter::step_back);
        self.is_done = !self.note(has_entry)?;
        let cursor = self.cursor.as_ref().filter(|_| !self.is_done);
        self.is_back_begun = true;
        Ok(cursor.and_then(|cursor| cursor.back()))
    }

    /// Moves the back to the previous entry. Returns whether it lies in the range and after the
    /// front.
    fn step_back(&mut self) -> Result<bool> {
        let Some(cursor) = &mut self.cursor else {
            return Ok(false);
        };
        let (range, is_begun) = (&self.range, self.is_back_begun);
        cursor.move_back(|back| {
            if is_begun {
                back.step_backward()
            } else {
                begin_back(back, range)
            }
        })?;
        if !cursor.has_back() {
            return Ok(false);
        }
        let front = if self.is_front_begun {
            cursor.front()
        } else {
            None
        };
        let compare_with = |key: &[u8]| {
            let back = cursor
                .back()
                .map(|back| cursor.order().compare(back.key, key));
            back.unwrap_or(Ordering::Less)
        };
        Ok(match (front, &self.range.0) {
            (Some(front), _) => compare_with(front.key) == Ordering::Greater,
            (None, Bound::Unbounded) => true,
            (None, Bound::Included(start)) => compare_with(start) != Ordering::Less,
            (None, Bound::Excluded(start)) => compare_with(start) == Ordering::Greater,
        })
    }

    fn guard(&mut self, step: impl FnOnce(&mut Iter) -> Result<bool>) -> Result<bool> {
        let cursor = self.cursor.as_ref();
        let may_panic = cursor.is_some_and(|cursor| cursor.order().may_panic());
        panics::catch_if(may_panic, "iterating", || step(self))
    }

    fn is_over(&mut self) -> Result<bool> {
        if self.is_done {
            return Ok(true);
        }
        if let Err(forked) = self.owner.check() {
            self.is_done = true;
            return Err(forked.into());
        }
        match self.error {
            None => Ok(false),
            Some(_) => {
                self.is_done = true;
                self.error.take().map_or(Ok(true), Err)
            }
        }
    }

    /// Ends the iteration if a move failed.
    fn note<T>(&mut self, moved: Result<T>) -> Result<T> {
        if moved.is_err() {
            self.is_done = true;
            self.cursor = None;
        }
        moved
    }
}

impl Drop for Iter {
    fn drop(&mut self) {
        if let Some(cursor) = self.cursor.take() {
            if self.owner.is_this_process() {
                cursor.recycle();
            } else {
                // What it holds belongs to the parent, down to the files of runs.
                std::mem::forget(cursor);
            }
        }
    }
}

impl Iterator for Iter {
    type Item = Result<(Vec<u8>, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        owned(self.next_entry())
    }
}

impl DoubleEndedIterator for Iter {
    fn next_back(&mut self) -> Option<Self::Item> {
        owned(self.next_entry_back())
    }
}

impl std::iter::FusedIterator for Iter {}

impl std::fmt::Debug for Iter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Iter")
            .field("range", &self.range)
            .field("is_done", &self.is_done)
            .finish_non_exhaustive()
    }
}

type Range = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// Moves the front cursor to the first entry of a range.
fn begin_front(front: &mut End<'_>, (start, end): &Range) -> Result<()> {
    front
        .versions_mut()
        .set_limit(Direction::Forward, limit(end));
    let found = match start {
        Bound::Unbounded => front.seek_first(),
        Bound::Included(key) => front.seek(key),
        Bound::Excluded(key) => front.seek_after(key),
    };
    found.map(drop)
}

/// Moves the back cursor to the last entry of a range.
fn begin_back(back: &mut End<'_>, (start, end): &Range) -> Result<()> {
    back.versions_mut()
        .set_limit(Direction::Backward, limit(start));
    let found = match end {
        Bound::Unbounded => back.seek_last(),
        Bound::Included(key) => back.seek_back(key),
        Bound::Excluded(key) => back.seek_before(key),
    };
    found.map(drop)
}

/// The limit of the cursor that comes from the other end of the range.
fn limit(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

fn owned(entry: Result<Option<Entry<'_>>>) -> Option<Result<(Vec<u8>, Vec<u8>)>> {
    entry
        .map(|entry| entry.map(|entry| (entry.key.to_vec(), entry.value.to_vec())))
        .transpose()
}
