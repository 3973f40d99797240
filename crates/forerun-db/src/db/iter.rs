//! Entries in key order, from both ends.
//!
//! ```text
//!   start ├──────────────────────────────────────────┤ end        bounds as given
//!               ├──────────────────────────┤                      bounds as the ends have moved in
//!           next ──>                  <── next_back
//! ```
//!
//! Each end has a cursor of its own: a merge of all that the state holds, memtables and runs, of which it shows what
//! the snapshot sees. A step moves the cursor and sees whether the entry lies inside the other end's bound: the range's,
//! or the entry that the other end gave last. So the ends meet and never cross, however their steps are mixed.
//!
//! An iterator keeps the state it began with. What is flushed or compacted meanwhile changes nothing for it; what it
//! keeps is given back with it.

use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::Arc;

use self_cell::self_cell;

use super::snapshots::Moment;
use super::state::State;
use super::uncovered::Uncovered;
use crate::comparator::KeyOrder;
use crate::versions::{Entry, Visible};
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
pub struct Iter {
    order: KeyOrder,
    ends: Ends,
    range: (Bound<Vec<u8>>, Bound<Vec<u8>>),
    /// The keys of the entries that the front and the back gave last, once they gave one.
    front: Option<Vec<u8>>,
    back: Option<Vec<u8>>,
    error: Option<Error>,
    is_done: bool,
}

/// The cursors of both ends.
struct Cursors<'a> {
    front: Visible<Uncovered<'a>>,
    back: Visible<Uncovered<'a>>,
}

self_cell! {
    /// Cursors, with the state they run over.
    struct Ends {
        owner: Arc<State>,
        #[covariant]
        dependent: Cursors,
    }
}

impl Iter {
    pub(super) fn new(
        state: Arc<State>,
        order: &KeyOrder,
        moment: Moment,
        range: (Bound<Vec<u8>>, Bound<Vec<u8>>),
    ) -> Iter {
        let ends = Ends::new(state, |state| {
            let end = || {
                let versions = Uncovered::new(state, order, moment);
                Visible::new(versions, order.clone(), moment.sequence)
            };
            Cursors {
                front: end(),
                back: end(),
            }
        });
        Iter {
            order: order.clone(),
            ends,
            range,
            front: None,
            back: None,
            error: None,
            is_done: false,
        }
    }

    /// The same iterator, which gives this error and ends.
    pub(super) fn failing(self, error: Error) -> Iter {
        Iter {
            error: Some(error),
            ..self
        }
    }

    /// The next entry from the front, lent until the next call.
    ///
    /// # Errors
    /// [`Error::Io`] and [`Error::CorruptFile`] from runs; [`Error::CorruptEntry`], with paranoid checks only;
    /// [`Error::PrefixOrder`] from a prefix scan.
    pub fn next_entry(&mut self) -> Result<Option<Entry<'_>>> {
        if self.is_over()? {
            return Ok(None);
        }
        let (start, is_begun) = (&self.range.0, self.front.is_some());
        let moved = self.ends.with_dependent_mut(|_, ends| {
            let front = &mut ends.front;
            let entry = match start {
                _ if is_begun => front.next(),
                Bound::Unbounded => front.seek_first(),
                Bound::Included(key) => front.seek(key),
                Bound::Excluded(key) => front.seek_after(key),
            };
            entry.map(drop)
        });
        self.note(moved)?;
        let entry = self.ends.borrow_dependent().front.entry();
        let entry = entry.filter(|entry| match (&self.back, &self.range.1) {
            (Some(back), _) => self.order.compare(entry.key, back) == Ordering::Less,
            (None, Bound::Unbounded) => true,
            (None, Bound::Included(end)) => self.order.compare(entry.key, end) != Ordering::Greater,
            (None, Bound::Excluded(end)) => self.order.compare(entry.key, end) == Ordering::Less,
        });
        self.is_done = entry.is_none();
        keep(&mut self.front, &entry);
        Ok(entry)
    }

    /// The next entry from the back, lent until the next call.
    ///
    /// # Errors
    /// As [`next_entry`](Self::next_entry).
    pub fn next_entry_back(&mut self) -> Result<Option<Entry<'_>>> {
        if self.is_over()? {
            return Ok(None);
        }
        let (end, is_begun) = (&self.range.1, self.back.is_some());
        let moved = self.ends.with_dependent_mut(|_, ends| {
            let back = &mut ends.back;
            let entry = match end {
                _ if is_begun => back.prev(),
                Bound::Unbounded => back.seek_last(),
                Bound::Included(key) => back.seek_back(key),
                Bound::Excluded(key) => back.seek_before(key),
            };
            entry.map(drop)
        });
        self.note(moved)?;
        let entry = self.ends.borrow_dependent().back.entry();
        let entry = entry.filter(|entry| match (&self.front, &self.range.0) {
            (Some(front), _) => self.order.compare(entry.key, front) == Ordering::Greater,
            (None, Bound::Unbounded) => true,
            (None, Bound::Included(start)) => {
                self.order.compare(entry.key, start) != Ordering::Less
            }
            (None, Bound::Excluded(start)) => {
                self.order.compare(entry.key, start) == Ordering::Greater
            }
        });
        self.is_done = entry.is_none();
        keep(&mut self.back, &entry);
        Ok(entry)
    }

    fn is_over(&mut self) -> Result<bool> {
        if let Some(error) = self.error.take() {
            self.is_done = true;
            return Err(error);
        }
        Ok(self.is_done)
    }

    /// Ends the iteration if a move failed.
    fn note(&mut self, moved: Result<()>) -> Result<()> {
        self.is_done |= moved.is_err();
        moved
    }
}

/// Keeps an entry's key, in the memory of the one before.
fn keep(last: &mut Option<Vec<u8>>, entry: &Option<Entry<'_>>) {
    if let Some(entry) = entry {
        let key = last.get_or_insert_default();
        key.clear();
        key.extend_from_slice(entry.key);
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

fn owned(entry: Result<Option<Entry<'_>>>) -> Option<Result<(Vec<u8>, Vec<u8>)>> {
    entry
        .map(|entry| entry.map(|entry| (entry.key.to_vec(), entry.value.to_vec())))
        .transpose()
}
