//! The live snapshots: compaction keeps what they see, and what a snapshot taken now would see.

use forerun_core::sync::atomic::{AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forerun_core::sync::{Mutex, MutexGuard, PoisonError, time};

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
    fn new(of: Vec<(u32, u64)>) -> Expired {
        // The default value has number 0.
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        Expired {
            // Relaxed: the numbers only have to differ.
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            of,
        }
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

#[derive(Debug, Default)]
struct Live {
    /// By what they see.
    views: BTreeMap<ViewId, LiveView>,
    /// What had expired when the last one was taken.
    expired: Arc<Expired>,
}

/// The snapshots that see the same.
#[derive(Debug)]
struct LiveView {
    expired: Arc<Expired>,
    /// When the first of them was taken.
    taken: Instant,
    count: usize,
}

impl Snapshots {
    /// Adds a snapshot of the moment that `now` returns: the newest visible sequence number, and
    /// the one up to which everything has expired in each keyspace whose entries expire, ascending.
    ///
    /// `now` runs under the lock. What [`list`](Self::list) returns later includes the snapshot.
    /// Work that uses an earlier list drops only versions that a snapshot of this moment does not
    /// need, since newer ones were already visible.
    pub(super) fn add(&self, now: impl FnOnce() -> (u64, Vec<(u32, u64)>)) -> SnapshotPoint {
        let mut live = self.lock();
        let (sequence, expired) = now();
        let point = live.point(sequence, expired);
        live.add(&point);
        point
    }

    /// Adds another snapshot that sees the same.
    pub(super) fn add_again(&self, point: &SnapshotPoint) {
        self.lock().add(point);
    }

    pub(super) fn remove(&self, point: &SnapshotPoint) {
        let views = &mut self.lock().views;
        if let Some(view) = views.get_mut(&point.id()) {
            view.count -= 1;
            if view.count == 0 {
                views.remove(&point.id());
            }
        }
    }

    /// Returns the smallest sequence number at which a reader reads. `now` returns that of readers
    /// without a snapshot.
    pub(super) fn oldest(&self, now: impl FnOnce() -> u64) -> u64 {
        let live = self.lock();
        let oldest = live.views.keys().next().map(|id| id.sequence);
        oldest.unwrap_or_else(now)
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
        let mut sequences: Vec<u64> = live.views.keys().map(|id| id.sequence).collect();
        let now = now();
        sequences.push(now.sequence);
        sequences.dedup();
        let views = live.views.values();
        let expired_for = views.map(|of| of.expired.in_keyspace(keyspace));
        (sequences, expired_for.fold(now.expired_sequence, u64::min))
    }

    /// How many there are, and how long ago the oldest was taken.
    pub(super) fn count_and_age(&self, now: Instant) -> (usize, Duration) {
        let live = self.lock();
        let count = live.views.values().map(|of| of.count).sum();
        let oldest = live.views.values().next();
        let age = oldest.map(|of| now.saturating_duration_since(of.taken));
        (count, age.unwrap_or_default())
    }

    fn lock(&self) -> MutexGuard<'_, Live> {
        // Nothing panics while the lock is held, so a poisoned lock is still consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Live {
    /// What a snapshot sees that is taken now.
    fn point(&mut self, sequence: u64, expired: Vec<(u32, u64)>) -> SnapshotPoint {
        if self.expired.of != expired {
            self.expired = Arc::new(Expired::new(expired));
        }
        SnapshotPoint {
            sequence,
            expired: Arc::clone(&self.expired),
        }
    }

    fn add(&mut self, point: &SnapshotPoint) {
        let view = self.views.entry(point.id());
        let begin = || LiveView {
            expired: Arc::clone(&point.expired),
            taken: time::now(),
            count: 0,
        };
        view.or_insert_with(begin).count += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_is_live_while_one_of_its_snapshots_is() {
        let now = |expired_sequence| ReadPoint {
            sequence: 8,
            expired_sequence,
        };
        let snapshots = Snapshots::default();
        assert_eq!(snapshots.list(0, || now(9)), (vec![8], 9));
        let first = snapshots.add(|| (7, vec![(0, 2), (3, 5)]));
        assert_eq!(first.in_keyspace(3).expired_sequence, 5);
        assert_eq!(snapshots.list(0, || now(9)), (vec![7, 8], 2));
        let second = snapshots.add(|| (7, vec![(0, 4), (3, 6)]));
        snapshots.add_again(&second);
        let old = snapshots.add(|| (3, vec![]));
        assert_eq!(snapshots.list(0, || now(9)), (vec![3, 7, 8], 0));
        snapshots.remove(&old);
        snapshots.remove(&second);
        assert_eq!(snapshots.list(0, || now(9)), (vec![7, 8], 2));
        assert_eq!(snapshots.list(3, || now(9)), (vec![7, 8], 5));
        assert_eq!(snapshots.list(3, || now(1)), (vec![7, 8], 1));
        snapshots.remove(&first);
        assert_eq!(snapshots.list(0, || now(9)), (vec![7, 8], 4));
        snapshots.remove(&second);
        assert_eq!(snapshots.list(0, || now(9)), (vec![8], 9));
    }

    #[test]
    fn the_age_is_that_of_the_snapshot_that_sees_the_oldest_state() {
        let (snapshots, second) = (Snapshots::default(), Duration::from_secs(1));
        let before = time::now();
        assert_eq!(snapshots.count_and_age(before), (0, Duration::ZERO));
        let old = snapshots.add(|| (3, vec![]));
        let between = time::now();
        let new = snapshots.add(|| (7, vec![]));
        snapshots.add_again(&new);
        let (count, age) = snapshots.count_and_age(between + second);
        assert!(count == 3 && age >= second && age <= between - before + second);
        snapshots.remove(&old);
        let (count, age) = snapshots.count_and_age(between + second);
        assert!(count == 2 && age <= second);
        assert_eq!(snapshots.count_and_age(before).1, Duration::ZERO);
    }

    #[test]
    fn snapshots_that_see_the_same_have_one_id() {
        let snapshots = Snapshots::default();
        let [first, second] = [(); 2].map(|()| snapshots.add(|| (7, vec![(0, 2)])));
        assert_eq!(first.id(), second.id());
        assert_ne!(first.id(), snapshots.add(|| (7, vec![(0, 3)])).id());
    }
}
