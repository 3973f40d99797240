//! Deletions of ranges of keys.
//!
//! ```text
//!   tombstones    b ├──────── @7 ────────┤ m          h ├──── @9 ────┤ t
//!   fragments     b ├──── 7 ────┤ h ├ 7 9 ┤ m ├── 9 ──┤ t
//! ```
//!
//! A range is deleted by one record, however many keys are in it: it covers their versions with smaller sequence
//! numbers. Which ranges cover a key is asked of the fragments that their ends cut the keys into.
//!
//! Ranges are few, and so they are kept in memory all together, beside the memtable they were written with, and when
//! that is flushed, in the manifest. Runs are written without what is covered (`tree/retain.rs`), and one all of which is
//! covered is removed unread. A range is forgotten once every run that it could cover anything of was written knowing
//! it.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use crate::comparator::KeyOrder;

/// The deletion of all keys from `start` up to, not including, `end`, as of `sequence`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RangeTombstone {
    pub(crate) start: Vec<u8>,
    pub(crate) end: Vec<u8>,
    pub(crate) sequence: u64,
}

/// Deletions of ranges, so that those which cover a key are found by a search.
#[derive(Clone, Debug)]
pub(crate) struct Ranges {
    order: KeyOrder,
    tombstones: Vec<RangeTombstone>,
    /// Ascending; each reaches up to the next.
    fragments: Vec<Fragment>,
}

#[derive(Clone, Debug)]
struct Fragment {
    start: Vec<u8>,
    /// Of the tombstones that cover it, ascending.
    sequences: Vec<u64>,
}

impl Ranges {
    /// These ranges.
    pub(crate) fn new(order: KeyOrder, tombstones: Vec<RangeTombstone>) -> Ranges {
        let fragments = fragments(&order, &tombstones);
        Ranges {
            order,
            tombstones,
            fragments,
        }
    }

    /// These and others.
    pub(crate) fn with(&self, others: &[RangeTombstone]) -> Ranges {
        let mut tombstones = self.tombstones.clone();
        tombstones.extend_from_slice(others);
        Ranges::new(self.order.clone(), tombstones)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tombstones.is_empty()
    }

    pub(crate) fn tombstones(&self) -> &[RangeTombstone] {
        &self.tombstones
    }

    /// The largest sequence number; 0 if there is no range.
    pub(crate) fn largest_sequence(&self) -> u64 {
        let sequences = self.tombstones.iter().map(|range| range.sequence);
        sequences.max().unwrap_or(0)
    }

    /// The newest range that covers `key` and is not newer than `snapshot`: versions of the key with smaller sequence
    /// numbers are deleted for it. 0: there is none.
    pub(crate) fn cover(&self, key: &[u8], snapshot: u64) -> u64 {
        let sequences = self.covering(key);
        let seen = sequences.partition_point(|sequence| *sequence <= snapshot);
        sequences[..seen].last().copied().unwrap_or(0)
    }

    /// The oldest range that covers the version of `key` with this sequence number.
    pub(crate) fn first_over(&self, key: &[u8], sequence: u64) -> Option<u64> {
        let sequences = self.covering(key);
        let older = sequences.partition_point(|other| *other <= sequence);
        sequences.get(older).copied()
    }

    fn covering(&self, key: &[u8]) -> &[u64] {
        let behind = |fragment: &Fragment| self.order.compare(&fragment.start, key).is_le();
        let at = self.fragments.partition_point(behind);
        match at.checked_sub(1) {
            Some(at) => &self.fragments[at].sequences,
            None => &[],
        }
    }
}

impl RangeTombstone {
    /// Whether it covers keys from `smallest` to `largest`, both included: some of them.
    pub(crate) fn touches(&self, order: &KeyOrder, smallest: &[u8], largest: &[u8]) -> bool {
        order.compare(&self.start, largest).is_le() && order.compare(smallest, &self.end).is_lt()
    }

    /// Whether it covers all keys from `smallest` to `largest`, both included.
    pub(crate) fn spans(&self, order: &KeyOrder, smallest: &[u8], largest: &[u8]) -> bool {
        order.compare(&self.start, smallest).is_le() && order.compare(largest, &self.end).is_lt()
    }
}

/// Goes through the ends of the ranges in order, with the set of those that are open.
fn fragments(order: &KeyOrder, tombstones: &[RangeTombstone]) -> Vec<Fragment> {
    let mut ends: Vec<(&[u8], u64, bool)> = Vec::with_capacity(2 * tombstones.len());
    for range in tombstones {
        // An empty one has no fragment of its own; one that ends before it starts must not be opened for ever.
        if order.compare(&range.start, &range.end) == Ordering::Less {
            ends.push((&range.start, range.sequence, true));
            ends.push((&range.end, range.sequence, false));
        }
    }
    ends.sort_by(|a, b| order.compare(a.0, b.0));
    let mut open = BTreeSet::new();
    let mut fragments: Vec<Fragment> = Vec::new();
    for (i, (key, sequence, is_start)) in ends.iter().enumerate() {
        match is_start {
            true => open.insert(*sequence),
            false => open.remove(sequence),
        };
        let is_last_here = ends
            .get(i + 1)
            .is_none_or(|next| order.compare(next.0, key).is_ne());
        if is_last_here {
            fragments.push(Fragment {
                start: key.to_vec(),
                sequences: open.iter().copied().collect(),
            });
        }
    }
    fragments
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::ReverseBytewise;

    proptest! {
        #[test]
        fn what_covers_a_key_is_found_as_by_looking_at_each_range(
            ranges in prop::collection::vec((0_u8..12, 0_u8..12), 0..12),
            key in 0_u8..13,
            sequence in 0_u64..40,
            is_reverse in any::<bool>(),
        ) {
            let order = match is_reverse {
                true => KeyOrder::new(Arc::new(ReverseBytewise)),
                false => KeyOrder::Bytewise,
            };
            let tombstones: Vec<_> = ranges.iter().zip(1_u64..).map(|((start, end), i)| RangeTombstone {
                start: vec![*start],
                end: vec![*end],
                sequence: 3 * i,
            }).collect();
            let key = [key];
            let covering: Vec<u64> = tombstones
                .iter()
                .filter(|range| range.spans(&order, &key, &key))
                .map(|range| range.sequence)
                .collect();
            let ranges = Ranges::new(order, tombstones);
            let seen = covering.iter().copied().filter(|s| *s <= sequence).max();
            prop_assert_eq!(ranges.cover(&key, sequence), seen.unwrap_or(0));
            let over = covering.iter().copied().filter(|s| *s > sequence).min();
            prop_assert_eq!(ranges.first_over(&key, sequence), over);
        }
    }
}
