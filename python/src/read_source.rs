//! The source of reads: a keyspace in its current state, or as a snapshot saw it.

use std::cmp::Ordering;
use std::ops::Bound as End;
use std::sync::Arc;

use forerun::{Bytewise, Comparator, Db, Iter, Keyspace, ReverseBytewise, Snapshot, Values};
use pyo3::prelude::*;

use crate::errors::exception;
use crate::key_range::{Range, range_of};
use crate::views;

/// Entries counted between two checks for signals, which are a few milliseconds apart.
const COUNTED_BETWEEN_SIGNALS: usize = 16_384;

/// Something that can be read.
#[derive(Clone)]
pub(crate) enum ReadSource {
    /// A keyspace of a store in its current state.
    Keyspace(Db, Keyspace),
    /// The state in a snapshot. The iterators over the snapshot share it.
    Snapshot(Arc<Snapshot>, Keyspace),
}

impl ReadSource {
    /// Rejects every process except the one that opened the store.
    pub(crate) fn check_process(&self) -> Result<(), forerun::DbError> {
        match self {
            ReadSource::Keyspace(db, _) => db.check_process(),
            ReadSource::Snapshot(snapshot, _) => snapshot.check_process(),
        }
    }

    /// A source that stays as it is now.
    pub(crate) fn snapshot(&self) -> ReadSource {
        match self {
            ReadSource::Keyspace(db, keyspace) => {
                ReadSource::Snapshot(db.snapshot().into(), keyspace.clone())
            }
            ReadSource::Snapshot(..) => self.clone(),
        }
    }

    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, forerun::DbError> {
        match self {
            ReadSource::Keyspace(_, keyspace) => keyspace.get(key),
            ReadSource::Snapshot(snapshot, keyspace) => snapshot.keyspace(keyspace).get(key),
        }
    }

    pub(crate) fn multi_get(
        &self,
        keys: &[&[u8]],
        values: &mut Values,
    ) -> Result<(), forerun::DbError> {
        match self {
            ReadSource::Keyspace(_, keyspace) => keyspace.multi_get(keys, values),
            ReadSource::Snapshot(snapshot, keyspace) => {
                snapshot.keyspace(keyspace).multi_get(keys, values)
            }
        }
    }

    /// The order of the keys. It is one of these two, because the package does not open a store
    /// that has any other.
    fn order(&self) -> &'static dyn Comparator {
        let (ReadSource::Keyspace(_, keyspace) | ReadSource::Snapshot(_, keyspace)) = self;
        if keyspace.comparator_name() == ReverseBytewise.name() {
            &ReverseBytewise
        } else {
            &Bytewise
        }
    }

    /// The ends of a view's range, in the order of the keys.
    pub(crate) fn range_of(&self, range: views::Range) -> PyResult<Range> {
        let (start, end, prefix, _) = range;
        let is_of_prefix = prefix.is_some();
        let (low, high) = range_of(start, end, prefix)?;
        // The keys with a prefix lie together in the reverse order too. There the first of them is
        // the highest.
        if is_of_prefix && self.order().name() == ReverseBytewise.name() {
            Ok((high, low))
        } else {
            Ok((low, high))
        }
    }

    /// Whether a key lies within a range, in the order of the keys.
    pub(crate) fn covers(&self, range: &Range, key: &[u8]) -> bool {
        let compare = |end: &[u8]| self.order().compare(end, key);
        let is_after_start = match &range.0 {
            End::Included(start) => compare(start) != Ordering::Greater,
            End::Excluded(start) => compare(start) == Ordering::Less,
            End::Unbounded => true,
        };
        let is_before_end = match &range.1 {
            End::Included(end) => compare(end) != Ordering::Less,
            End::Excluded(end) => compare(end) == Ordering::Greater,
            End::Unbounded => true,
        };
        is_after_start && is_before_end
    }

    pub(crate) fn range(&self, range: Range) -> Iter {
        match self {
            ReadSource::Keyspace(_, keyspace) => keyspace.range::<Vec<u8>>(range),
            ReadSource::Snapshot(snapshot, keyspace) => {
                snapshot.keyspace(keyspace).range::<Vec<u8>>(range)
            }
        }
    }

    /// Counts the entries and checks for signals. Called while other Python threads run.
    pub(crate) fn count(&self, range: Range) -> PyResult<usize> {
        if matches!(range, (End::Unbounded, End::Unbounded)) {
            return self.count_all();
        }
        let mut entries = self.range(range);
        let mut count = 0;
        while entries.next_entry().map_err(exception)?.is_some() {
            count += 1;
            if count % COUNTED_BETWEEN_SIGNALS == 0 {
                Python::attach(|py| py.check_signals())?;
            }
        }
        Ok(count)
    }

    /// Counts all entries without reading each.
    fn count_all(&self) -> PyResult<usize> {
        let mut signal = None;
        let go_on = || {
            signal = Python::attach(|py| py.check_signals()).err();
            signal.is_none()
        };
        let count = match self {
            ReadSource::Keyspace(_, keyspace) => keyspace.count_while(go_on),
            ReadSource::Snapshot(snapshot, keyspace) => {
                snapshot.keyspace(keyspace).count_while(go_on)
            }
        };
        match signal {
            Some(signal) => Err(signal),
            None => Ok(count.map_err(exception)? as usize),
        }
    }

    pub(crate) fn has_any(&self) -> Result<bool, forerun::DbError> {
        let mut entries = self.range((End::Unbounded, End::Unbounded));
        Ok(entries.next_entry()?.is_some())
    }
}
