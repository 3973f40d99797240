//! Versions of keys: what a memtable, a run and a merge of them hold, in one order.
//!
//! ```text
//!   apple @9 value │ apple @4 deletion │ apple @2 value │ bee @7 value │ …
//!   └── user key ascending ──────────────────────────────────────────────>
//!   └── sequence number descending ────┘
//! ```
//!
//! A read as of a snapshot takes, of each key, the first version that is not newer than the snapshot.

#[cfg(test)]
pub(crate) mod testing;
mod visible_entries;

use std::cmp::Ordering;

use crate::Result;
use crate::comparator::KeyOrder;

pub use visible_entries::Entry;
pub(crate) use visible_entries::VisibleEntries;

/// The largest sequence number; stands before all versions of a key.
pub(crate) const MAX_SEQUENCE: u64 = (1 << 56) - 1;

/// What a version says of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It is not there.
    Deletion,
    /// It has a value.
    Value,
}

/// What a read of a keyspace sees: operations up to `sequence`, but for those up to `expired_sequence`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadPoint {
    pub(crate) sequence: u64,
    pub(crate) expired_sequence: u64,
}

impl ReadPoint {
    /// As of a sequence number, where nothing has expired.
    pub(crate) fn at(sequence: u64) -> ReadPoint {
        ReadPoint {
            sequence,
            expired_sequence: 0,
        }
    }
}

/// One version, where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) sequence: u64,
    pub(crate) kind: Kind,
    /// Empty for a deletion.
    pub(crate) value: &'a [u8],
}

impl Version<'_> {
    /// Where this version stands relative to another: by key, then newest first.
    pub(crate) fn compare(&self, order: &KeyOrder, other: &Version<'_>) -> Ordering {
        order
            .compare(self.key, other.key)
            .then(other.sequence.cmp(&self.sequence))
    }
}

/// A cursor over all versions of something, in order; it stands at one of them or nowhere.
///
/// After an error it stands nowhere.
pub(crate) trait VersionCursor: Send {
    /// Goes to the first version.
    fn seek_first(&mut self) -> Result<()>;

    /// Goes to the last version.
    fn seek_last(&mut self) -> Result<()>;

    /// Goes to the first version of `key` that is not newer than `sequence`, or if there is none, to the first
    /// one behind. With [`MAX_SEQUENCE`]: to the newest version of `key`, or behind.
    fn seek(&mut self, key: &[u8], sequence: u64) -> Result<()>;

    /// Goes to the last version that stands strictly before (`key`, `sequence`).
    fn seek_before(&mut self, key: &[u8], sequence: u64) -> Result<()>;

    /// Goes one version on; from the last one, nowhere. Standing nowhere, it stays there.
    fn next(&mut self) -> Result<()>;

    /// Goes one version back; from the first one, nowhere. Standing nowhere, it stays there.
    fn prev(&mut self) -> Result<()>;

    /// The version it stands at.
    fn at(&self) -> Option<Version<'_>>;

    /// Makes it as good as new, for another use: it stands nowhere. It keeps memory for pages, but not much.
    fn reset(&mut self) {}
}
