//! Decides which versions to keep when runs are written.
//!
//! ```text
//!   key k       @90 v   @70 v   @60 ✕   @40 v   @30 v           snapshots 65 and 35
//!   seen by     latest    -       65      -       35
//!               keep    drop    keep    drop    keep
//! ```
//!
//! A version is kept if a reader may see it: the newest one of its key, and the newest one that
//! each live snapshot sees. A deletion is dropped too if it hides nothing below it.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::comparator::KeyOrder;
use crate::ranges::Ranges;
use crate::versions::{Kind, Version};

/// Decides which versions to keep, given in order.
#[derive(Clone, Debug)]
pub(crate) struct Retain {
    order: KeyOrder,
    /// Range deletions; none of the sets is empty.
    ranges: Vec<Arc<Ranges>>,
    /// Versions up to this sequence number have expired.
    expired_sequence: u64,
    /// The live snapshots' sequence numbers, ascending.
    snapshots: Vec<u64>,
    /// For the last version's key: how many snapshots are too old to see it. `None` before the
    /// first version.
    last: Option<usize>,
    key: Vec<u8>,
    /// Dropped versions, and the deletions among them.
    dropped: u64,
    dropped_deletions: u64,
}

impl Retain {
    /// Keeps what the newest reader and the readers at `snapshots`, in any order, see.
    pub(crate) fn new(order: KeyOrder, mut snapshots: Vec<u64>) -> Retain {
        snapshots.sort_unstable();
        snapshots.dedup();
        Retain {
            ranges: Vec::new(),
            expired_sequence: 0,
            order,
            snapshots,
            last: None,
            key: Vec::new(),
            dropped: 0,
            dropped_deletions: 0,
        }
    }

    /// Also drops what these range deletions cover.
    pub(crate) fn with_ranges(self, mut ranges: Vec<Arc<Ranges>>) -> Retain {
        ranges.retain(|ranges| !ranges.is_empty());
        Retain { ranges, ..self }
    }

    /// Also drops what has expired for all readers, including snapshots: versions up to this
    /// sequence number.
    pub(crate) fn with_expired(self, expired_sequence: u64) -> Retain {
        Retain {
            expired_sequence,
            ..self
        }
    }

    /// Up to which range deletion all covered versions have been dropped. Versions that an older
    /// snapshot sees are kept.
    pub(crate) fn ranges_applied(&self) -> u64 {
        let oldest = self.snapshots.first().copied().unwrap_or(u64::MAX);
        let largest = self.ranges.iter().map(|of| of.largest_sequence()).max();
        largest.unwrap_or(0).min(oldest)
    }

    /// Whether to keep a version. Versions come in order. `below` says whether an older version of
    /// the key may exist outside these versions; it is called for some deletions only.
    pub(crate) fn keeps(
        &mut self,
        version: &Version<'_>,
        below: impl FnOnce(&[u8]) -> bool,
    ) -> bool {
        let blind = self
            .snapshots
            .partition_point(|snapshot| *snapshot < version.sequence);
        let newer_blind = match self.last {
            Some(blind) if self.order.compare(&self.key, version.key) == Ordering::Equal => {
                Some(blind)
            }
            _ => {
                self.key.clear();
                self.key.extend_from_slice(version.key);
                None
            }
        };
        self.last = Some(blind);
        // Snapshots that see this version but not the newer one are between the two in the list. A
        // reader without a snapshot sees the newest version.
        let is_seen = newer_blind.is_none_or(|newer_blind| blind < newer_blind);
        let has_expired = version.sequence <= self.expired_sequence;
        // The range deletion must be visible to the oldest snapshot that sees the version. Then
        // every reader that sees the version sees the deletion too.
        let first_to_see = self.snapshots.get(blind).copied().unwrap_or(u64::MAX);
        let is_covered = self
            .ranges
            .iter()
            .any(|ranges| ranges.cover(version.key, first_to_see) > version.sequence);
        let is_deletion = version.kind == Kind::Deletion;
        // An older snapshot may have kept an older version, which this deletion must hide.
        let hides_nothing = is_deletion && blind == 0 && is_seen && !below(version.key);
        let keep = is_seen && !hides_nothing && !is_covered && !has_expired;
        if !keep {
            self.dropped += 1;
            self.dropped_deletions += u64::from(is_deletion);
        }
        keep
    }

    /// Whether a version has the same key as the last one.
    pub(crate) fn is_of_last_key(&self, key: &[u8]) -> bool {
        self.last.is_some() && self.order.compare(&self.key, key) == Ordering::Equal
    }

    /// How many versions were dropped, and how many of them were deletions.
    pub(crate) fn dropped(&self) -> (u64, u64) {
        (self.dropped, self.dropped_deletions)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::testing::version_list::{Held, Sorted, all_of, held};

    /// The version of `key` that a reader at `sequence` sees.
    fn read<'a>(
        versions: impl Iterator<Item = &'a Held>,
        key: u8,
        sequence: u64,
    ) -> Option<Vec<u8>> {
        versions
            .filter(|version| version.key == [key] && version.sequence <= sequence)
            .max_by_key(|version| version.sequence)
            .and_then(|version| version.value.clone())
    }

    proptest! {
        #[test]
        fn every_reader_sees_the_same_and_nothing_else_is_left(
            writes in prop::collection::vec((0_u8..4, any::<bool>(), any::<bool>()), 0..40),
            snapshots in prop::collection::btree_set(0_u64..42, 0..4),
        ) {
            // Half of the versions are merged. Those below are older than all merged versions of
            // the same key.
            let (mut here, mut below) = (Vec::new(), Vec::new());
            for (i, (key, is_value, goes_below)) in writes.into_iter().enumerate() {
                let value = format!("{i}");
                let version = held(&[key], i as u64 + 1, is_value.then_some(value.as_bytes()));
                let is_oldest = here.iter().all(|other: &Held| other.key != version.key);
                if goes_below && is_oldest { &mut below } else { &mut here }.push(version);
            }
            let below_keys: BTreeSet<u8> = below.iter().map(|version| version.key[0]).collect();
            let sorted = all_of(&mut Sorted::new(KeyOrder::Bytewise, here.clone())).unwrap();
            let mut retain =
                Retain::new(KeyOrder::Bytewise, snapshots.iter().rev().copied().collect());
            let kept: Vec<Held> = sorted
                .iter()
                .filter(|held| retain.keeps(&held.version(), |key| below_keys.contains(&key[0])))
                .cloned()
                .collect();
            let (dropped, dropped_deletions) = retain.dropped();
            prop_assert_eq!(dropped as usize, sorted.len() - kept.len());
            prop_assert!(dropped_deletions <= dropped);

            let readers: Vec<u64> = snapshots.iter().copied().chain([u64::MAX]).collect();
            for key in 0..4 {
                for reader in &readers {
                    prop_assert_eq!(
                        read(kept.iter().chain(&below), key, *reader),
                        read(here.iter().chain(&below), key, *reader),
                        "key {} as of {}", key, reader
                    );
                }
            }
            // Some reader sees each kept version.
            for version in &kept {
                let met = readers.iter().any(|reader| {
                    kept.iter()
                        .filter(|other| other.key == version.key && other.sequence <= *reader)
                            .max_by_key(|other| other.sequence)
                        == Some(version)
                });
                prop_assert!(met, "{:?}", version);
                let is_oldest_reader = snapshots.iter()
                    .all(|snapshot| *snapshot >= version.sequence);
                if version.value.is_none() && is_oldest_reader {
                    prop_assert!(below_keys.contains(&version.key[0]), "{:?} hides nothing",
                        version);
                }
            }
        }
    }

    #[test]
    fn a_deletion_stays_while_a_snapshot_sees_what_it_hides() {
        let versions = [held(b"k", 60, None), held(b"k", 40, Some(b"old"))];
        let kept = |snapshots: Vec<u64>| {
            let mut retain = Retain::new(KeyOrder::Bytewise, snapshots);
            versions
                .iter()
                .map(|held| retain.keeps(&held.version(), |_| false))
                .collect::<Vec<_>>()
        };
        assert_eq!(kept(vec![50]), [true, true]);
        assert_eq!(kept(vec![60]), [false, false]);
        assert_eq!(kept(vec![39]), [true, false]);
        assert_eq!(kept(vec![]), [false, false]);
    }
}
