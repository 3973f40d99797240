//! Which snapshots are alive: compaction keeps what they see.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a snapshot sees: operations up to `sequence`, but for those up to `expired_sequence`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment {
    pub(super) sequence: u64,
    pub(super) expired_sequence: u64,
}

/// The snapshots that are alive, and how many are of each moment.
#[derive(Debug, Default)]
pub(super) struct Snapshots(Mutex<BTreeMap<Moment, usize>>);

impl Snapshots {
    /// Adds a snapshot of the moment that `now` gives.
    ///
    /// It is taken under the lock: what [`list`](Self::list) tells afterwards has it, and what it told before was made
    /// of versions that a snapshot of this moment does not need, since newer ones were visible already.
    pub(super) fn add(&self, now: impl FnOnce() -> Moment) -> Moment {
        let mut live = self.lock();
        let moment = now();
        *live.entry(moment).or_default() += 1;
        moment
    }

    /// Adds another snapshot of a moment that has one.
    pub(super) fn add_again(&self, moment: Moment) {
        *self.lock().entry(moment).or_default() += 1;
    }

    pub(super) fn remove(&self, moment: Moment) {
        let mut live = self.lock();
        if let Some(count) = live.get_mut(&moment) {
            *count -= 1;
            if *count == 0 {
                live.remove(&moment);
            }
        }
    }

    /// The sequence numbers, ascending, and up to which everything has expired for all of them: at most `expired`.
    pub(super) fn list(&self, expired: u64) -> (Vec<u64>, u64) {
        let live = self.lock();
        let mut sequences: Vec<u64> = live.keys().map(|moment| moment.sequence).collect();
        sequences.dedup();
        let expired_for = live.keys().map(|moment| moment.expired_sequence);
        (sequences, expired_for.fold(expired, u64::min))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Moment, usize>> {
        // Nothing under the lock panics half-way through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_alive_as_long_as_one_of_its_snapshots() {
        let moment = |sequence, expired_sequence| Moment {
            sequence,
            expired_sequence,
        };
        let snapshots = Snapshots::default();
        assert_eq!(snapshots.list(9), (vec![], 9));
        assert_eq!(snapshots.add(|| moment(7, 2)), moment(7, 2));
        snapshots.add(|| moment(7, 4));
        snapshots.add(|| moment(3, 1));
        snapshots.add_again(moment(7, 4));
        assert_eq!(snapshots.list(9), (vec![3, 7], 1));
        snapshots.remove(moment(3, 1));
        snapshots.remove(moment(7, 4));
        assert_eq!(snapshots.list(9), (vec![7], 2));
        snapshots.remove(moment(7, 2));
        assert_eq!(snapshots.list(9), (vec![7], 4));
        snapshots.remove(moment(7, 4));
        assert_eq!(snapshots.list(9), (vec![], 9));
    }
}
