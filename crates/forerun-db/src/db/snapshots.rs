//! Which snapshots are alive: compaction keeps what they see.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The sequence numbers of the snapshots that are alive, and how many are of each.
#[derive(Debug, Default)]
pub(super) struct Snapshots(Mutex<BTreeMap<u64, usize>>);

impl Snapshots {
    /// Adds a snapshot of the sequence number that `now` gives.
    ///
    /// The number is taken under the lock: what [`list`](Self::list) tells afterwards has it, and what it told before
    /// was made of versions that a snapshot of this number does not need, since newer ones were visible already.
    pub(super) fn add(&self, now: impl FnOnce() -> u64) -> u64 {
        let mut live = self.lock();
        let sequence = now();
        *live.entry(sequence).or_default() += 1;
        sequence
    }

    /// Adds another snapshot of a number that has one.
    pub(super) fn add_again(&self, sequence: u64) {
        *self.lock().entry(sequence).or_default() += 1;
    }

    pub(super) fn remove(&self, sequence: u64) {
        let mut live = self.lock();
        if let Some(count) = live.get_mut(&sequence) {
            *count -= 1;
            if *count == 0 {
                live.remove(&sequence);
            }
        }
    }

    /// The sequence numbers, ascending.
    pub(super) fn list(&self) -> Vec<u64> {
        self.lock().keys().copied().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, usize>> {
        // Nothing under the lock panics half-way through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_alive_as_long_as_one_of_its_snapshots() {
        let snapshots = Snapshots::default();
        assert_eq!(snapshots.add(|| 7), 7);
        snapshots.add(|| 3);
        snapshots.add_again(7);
        assert_eq!(snapshots.list(), [3, 7]);
        snapshots.remove(7);
        assert_eq!(snapshots.list(), [3, 7]);
        snapshots.remove(7);
        snapshots.remove(3);
        assert!(snapshots.list().is_empty());
    }
}
