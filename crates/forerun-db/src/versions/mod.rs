//! Versions of keys, in the one order that memtables, runs and merges share.
//!
//! ```text
//!   apple @9 value │ apple @4 deletion │ apple @2 value │ bee @7 value │ …
//!   └── user key ascending ──────────────────────────────────────────────>
//!   └── sequence number descending ────┘
//! ```
//!
//! A read at a snapshot takes the first version of each key that is not newer than the snapshot.

mod visible_entries;

use std::cmp::Ordering;

use crate::Result;
use crate::comparator::KeyOrder;

pub use visible_entries::Entry;
pub(crate) use visible_entries::VisibleEntries;

/// The largest sequence number. It sorts before all versions of a key.
pub(crate) const SEQUENCE_MAX: u64 = (1 << 56) - 1;

/// Sorts after all versions of a key: their numbers start at 1.
pub(crate) const BEHIND_ALL: u64 = 0;

/// The kind of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The key is deleted.
    Deletion,
    /// The key has a value.
    Value,
}

/// The operations that a read of a keyspace sees: those up to `sequence`, except those up to
/// `expired_sequence`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadPoint {
    pub(crate) sequence: u64,
    pub(crate) expired_sequence: u64,
}

impl ReadPoint {
    /// At a sequence number, with nothing expired.
    pub(crate) fn at(sequence: u64) -> ReadPoint {
        ReadPoint {
            sequence,
            expired_sequence: 0,
        }
    }

    /// The same point for a key whose versions up to `deleted_sequence` are deleted.
    #[inline(always)]
    pub(crate) fn with_deleted_up_to(self, deleted_sequence: u64) -> ReadPoint {
        ReadPoint {
            expired_sequence: self.expired_sequence.max(deleted_sequence),
            ..self
        }
    }
}

/// One version, borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) sequence: u64,
    pub(crate) kind: Kind,
    /// Empty for a deletion.
    pub(crate) value: &'a [u8],
}

impl Version<'_> {
    /// Orders versions by key, then newest first.
    pub(crate) fn compare(&self, order: &KeyOrder, other: &Version<'_>) -> Ordering {
        order
            .compare(self.key, other.key)
            .then(other.sequence.cmp(&self.sequence))
    }
}

/// Where a seek goes: to the first version at or after a position, or to the last one before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SeekTarget<'k> {
    pub(crate) key: &'k [u8],
    pub(crate) sequence: u64,
    pub(crate) side: SeekSide,
}

/// The side of a position on which a seek ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SeekSide {
    /// As [`VersionCursor::seek`] does.
    AtOrAfter,
    /// As [`VersionCursor::seek_before`] does.
    Before,
}

impl SeekTarget<'_> {
    /// Moves a cursor there.
    pub(crate) fn seek<C: VersionCursor + ?Sized>(self, cursor: &mut C) -> Result<()> {
        match self.side {
            SeekSide::AtOrAfter => cursor.seek(self.key, self.sequence),
            SeekSide::Before => cursor.seek_before(self.key, self.sequence),
        }
    }
}

/// A cursor over all versions of something, in order. It is positioned at a version or has no
/// position.
///
/// After an error it has no position.
pub(crate) trait VersionCursor: Send {
    /// Moves to the first version.
    fn seek_first(&mut self) -> Result<()>;

    /// Moves to the last version.
    fn seek_last(&mut self) -> Result<()>;

    /// Moves to the first version at or after (`key`, `sequence`): the newest version of `key` that
    /// is not newer than `sequence`, or else the next version. With [`SEQUENCE_MAX`], the first
    /// version of `key` or the next key.
    fn seek(&mut self, key: &[u8], sequence: u64) -> Result<()>;

    /// Moves to the last version strictly before (`key`, `sequence`).
    fn seek_before(&mut self, key: &[u8], sequence: u64) -> Result<()>;

    /// Moves to the next version. After the last one, the cursor has no position. A cursor without
    /// a position does not move.
    fn next(&mut self) -> Result<()>;

    /// Moves to the previous version. Before the first one, the cursor has no position. A cursor
    /// without a position does not move.
    fn prev(&mut self) -> Result<()>;

    /// The current version.
    fn at(&self) -> Option<Version<'_>>;

    /// Whether the current version is known to be the newest of its key: the version before it, if
    /// there is one, has another key. `false` if that would take a search. Call it only after
    /// `seek_last`, `seek_before` or `prev`.
    fn is_newest_of_key(&self) -> bool {
        false
    }

    /// Whether whoever moves the cursor has said that it needs neither the current version nor any
    /// further one in this direction.
    fn is_limit_passed(&self) -> bool {
        false
    }

    /// Prepares the cursor for reuse: it has no position and keeps little memory.
    fn reset(&mut self) {}
}

/// What [`VisibleEntries`] tells the cursor below it, so that a scan can skip keys that earlier
/// scans have found deleted. A cursor that knows of none implements nothing.
pub(crate) trait SkipDeleted: VersionCursor {
    /// Notes that whoever moves the cursor has found a key that is deleted. Returns whether it is
    /// worth calling [`skip_deleted`](Self::skip_deleted).
    #[inline(always)]
    fn note_deleted(&mut self) -> bool {
        false
    }

    /// Skips keys that are deleted, from the deleted key `key` on, if the cursor knows of any.
    /// Returns whether it has moved. The cursor is at `key`, or behind it on the way to `side`.
    fn skip_deleted(&mut self, _key: &[u8], _side: SeekSide) -> Result<bool> {
        Ok(false)
    }

    /// Notes that whoever moves the cursor has met a version that is too new for it.
    fn note_too_new(&mut self) {}

    /// Notes whether the cursor may move on although it is not known yet whether the key that it
    /// has passed is deleted.
    #[inline(always)]
    fn set_undecided(&mut self, _is_undecided: bool) {}

    /// Notes that a search for a key that is not deleted has ended: at `found`, or if that is
    /// `None`, at the current version.
    #[inline(always)]
    fn end_search(&mut self, _found: Option<&[u8]>, _side: SeekSide) {}
}

impl<C: VersionCursor + ?Sized> VersionCursor for Box<C> {
    fn seek_first(&mut self) -> Result<()> {
        (**self).seek_first()
    }

    fn seek_last(&mut self) -> Result<()> {
        (**self).seek_last()
    }

    fn seek(&mut self, key: &[u8], sequence: u64) -> Result<()> {
        (**self).seek(key, sequence)
    }

    fn seek_before(&mut self, key: &[u8], sequence: u64) -> Result<()> {
        (**self).seek_before(key, sequence)
    }

    fn next(&mut self) -> Result<()> {
        (**self).next()
    }

    fn prev(&mut self) -> Result<()> {
        (**self).prev()
    }

    fn at(&self) -> Option<Version<'_>> {
        (**self).at()
    }

    fn is_newest_of_key(&self) -> bool {
        (**self).is_newest_of_key()
    }

    fn is_limit_passed(&self) -> bool {
        (**self).is_limit_passed()
    }

    fn reset(&mut self) {
        (**self).reset();
    }
}
