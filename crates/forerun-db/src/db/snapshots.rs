//! The live snapshots: compaction keeps what they see, and what a snapshot taken now would see.

use forerun_core::sync::atomic::{AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::sync::Arc;

use forerun_core::sync::{Mutex, MutexGuard, PoisonError};

pub(super) use crate::versions::ReadPoint;

/// The sequence number up to which everything has expired, for each keyspace. Immutable: a new
/// value replaces it.
#[derive(Debug, Default)]
pub(super) struct Expired {
    /// Greater numbers mean that more has expired.
    number: u64,
    /// Ascending by keyspace; only keyspaces whose entries expire.
    of: Vec<(u32, u64)>,
}

impl Expired {
    /// For these keyspaces, in ascending order.
    pub(super) fn new(of: Vec<(u32, u64)>) -> Expired {
        // The default value has number 0.
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        Expired {
            // Relaxed: the numbers only have to differ.
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            of,
        }
    }

    pub(super) fn is_same(&self, other: &Expired) -> bool {
        self.of == other.of
    }

    fn in_keyspace(&self, id: u32) -> u64 {
        let found = self.of.binary_search_by_key(&id, |of| of.0);
        found.map_or(0, |index| self.of[index].1)
    }
}

/// The part of each keyspace that a snapshot sees.
#[derive(Clone, Debug, Default)]
pub(super) struct SnapshotPoint {
    pub(super) sequence: u64,
    pub(super) expired: Arc<Expired>,
}

impl SnapshotPoint {
    /// The part that it sees of one keyspace.
    pub(super) fn in_keyspace(&self, id: u32) -> ReadPoint {
        ReadPoint {
            sequence: self.sequence,
            expired_sequence: self.expired.in_keyspace(id),
        }
    }

    /// Identifies it.
    pub(super) fn id(&self) -> ViewId {
        ViewId {
            sequence: self.sequence,
            expired: self.expired.number,
        }
    }
}

/// Identifies what a [`Snapshot`](crate::Snapshot) sees: see
/// [`Snapshot::view_id`](crate::Snapshot::view_id).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ViewId {
    sequence: u64,
    /// The number of [`Expired`].
    expired: u64,
}

/// The live snapshots; those that see the same are counted together.
#[derive(Debug, Default)]
pub(super) struct Snapshots(Mutex<Live>);

impl Snapshots {
    /// Adds a snapshot of the moment that `now` returns.
    ///
    /// `now` runs under the lock. What [`list`](Self::list) returns later includes the snapshot.
    /// Work that uses an earlier list drops only versions that a snapshot of this moment does not
    /// need, since newer ones were already visible.
    pub(super) fn add(&self, now: impl FnOnce() -> SnapshotPoint) -> SnapshotPoint {
        let mut live = self.lock();
        let point = now();
        add(&mut live, &point);
        point
    }

    /// Adds another snapshot that sees the same.
    pub(super) fn add_again(&self, point: &SnapshotPoint) {
        add(&mut self.lock(), point);
    }

    pub(super) fn remove(&self, point: &SnapshotPoint) {
        let mut live = self.lock();
        if let Some((_, count)) = live.get_mut(&point.id()) {
            *count -= 1;
            if *count == 0 {
                live.remove(&point.id());
            }
        }
    }

    /// Runs `change`, which publishes a sequence number and shows runs that hold it. No snapshot is
    /// taken or listed between the two.
    pub(super) fn while_locked<T>(&self, change: impl FnOnce() -> T) -> T {
        let _live = self.lock();
        change()
    }

    /// Returns the sequence numbers at which readers read, ascending: those of the snapshots, and
    /// the newest visible one, from `now`, since later readers read at a greater one. Also returns
    /// the number up to which everything in a keyspace has expired for all of them, and thus for
    /// later readers too.
    pub(super) fn list(&self, keyspace: u32, now: impl FnOnce() -> ReadPoint) -> (Vec<u64>, u64) {
        let live = self.lock();
        let mut sequences: Vec<u64> = live.keys().map(|id| id.sequence).collect();
        let now = now();
        sequences.push(now.sequence);
        sequences.dedup();
        let expired_for = live.values().map(|(of, _)| of.in_keyspace(keyspace));
        (sequences, expired_for.fold(now.expired_sequence, u64::min))
    }

    fn lock(&self) -> MutexGuard<'_, Live> {
        // Nothing panics while the lock is held, so a poisoned lock is still consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The live snapshots by what they see, and how many there are of each.
type Live = BTreeMap<ViewId, (Arc<Expired>, usize)>;

fn add(live: &mut Live, point: &SnapshotPoint) {
    let entry = live.entry(point.id());
    entry.or_insert_with(|| (Arc::clone(&point.expired), 0)).1 += 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_is_live_while_one_of_its_snapshots_is() {
        let none = Arc::new(Expired::new(vec![]));
        let some = Arc::new(Expired::new(vec![(0, 2), (3, 5)]));
        let more = Arc::new(Expired::new(vec![(0, 4), (3, 6)]));
        let point = |sequence, expired: &Arc<Expired>| SnapshotPoint {
            sequence,
            expired: Arc::clone(expired),
        };
        let now = |expired_sequence| ReadPoint {
            sequence: 8,
            expired_sequence,
        };
        let snapshots = Snapshots::default();
        assert_eq!(snapshots.list(0, || now(9)), (vec![8], 9));
        assert_eq!(
            snapshots
                .add(|| point(7, &some))
                .in_keyspace(3)
                .expired_sequence,
            5
        );
        assert_eq!(snapshots.list(0, || now(9)), (vec![7, 8], 2));
        snapshots.add(|| point(7, &more));
        snapshots.add(|| point(3, &none));
        snapshots.add_again(&point(7, &more));
        assert_eq!(snapshots.list(0, || now(9)), (vec![3, 7, 8], 0));
        snapshots.remove(&point(3, &none));
        snapshots.remove(&point(7, &more));
        assert_eq!(snapshots.list(0, || now(9)), (vec![7, 8], 2));
        assert_eq!(snapshots.list(3, || now(9)), (vec![7, 8], 5));
        assert_eq!(snapshots.list(3, || now(1)), (vec![7, 8], 1));
        snapshots.remove(&point(7, &some));
        assert_eq!(snapshots.list(0, || now(9)), (vec![7, 8], 4));
        snapshots.remove(&point(7, &more));
        assert_eq!(snapshots.list(0, || now(9)), (vec![8], 9));
    }
}
