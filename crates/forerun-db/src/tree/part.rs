//! A part of a compaction: some keys, and about where the bytes of its runs are.
//!
//! ```text
//!   anchors   │ 00120 │ 00340 │ 00511 │ 00700 │     about so many bytes come from each key on
//!   left      │  12 M │   9 M │   5 M │   2 M │
//!                                 ^ here, a run is full: about 3.5 M are left, and become 0.9 M if
//!                                   three quarters of what came before were dropped
//! ```
//!
//! If that is little, it joins the run. Otherwise each part would end with a run of any size, also
//! a tiny one.

use crate::comparator::KeyOrder;
use crate::tree::key_bounds::KeySpan;

/// What is left at the end joins the last run if it is at most this part of a run's bytes.
const REST_SHARE: u64 = 8;

/// A run takes what is left up to this part of its bytes: twice as much, since it is an estimate.
const EXTENSION_SHARE: u64 = 4;

/// Keys of a compaction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Part {
    pub(crate) keys: KeySpan,
    /// Keys, ascending, and about how many bytes of the compacted runs come from there on. Empty if
    /// nothing is known.
    left: Vec<(Vec<u8>, u64)>,
}

impl Part {
    /// These keys, with the anchors among them, which ascend.
    pub(crate) fn new(keys: KeySpan, anchors: Vec<(Vec<u8>, u64)>) -> Part {
        let mut left = anchors;
        let mut sum = 0;
        for (_, bytes) in left.iter_mut().rev() {
            sum += *bytes;
            *bytes = sum;
        }
        Part { keys, left }
    }

    /// About how many bytes of the compacted runs it has.
    pub(crate) fn bytes(&self) -> u64 {
        self.left.first().map_or(0, |(_, bytes)| *bytes)
    }

    /// The size at which a full run of `run_bytes` ends before a version with this key, if not
    /// here: when little is left. `written_bytes` is the size of what was made of the versions
    /// before it.
    pub(crate) fn extended_bytes(
        &self,
        order: &KeyOrder,
        key: &[u8],
        run_bytes: u64,
        written_bytes: u64,
    ) -> Option<u64> {
        let next = self
            .left
            .partition_point(|(anchor, _)| order.compare(anchor, key).is_le());
        // Between what follows the anchor before the key and the one behind it.
        let behind = self.left.get(next).map_or(0, |(_, bytes)| *bytes);
        let before = self.left.get(next.checked_sub(1)?)?.1;
        let left_bytes = behind + (before - behind) / 2;
        let read_bytes = self.bytes() - left_bytes;
        // It shrinks as what came before has.
        let rest = u128::from(left_bytes) * u128::from(written_bytes);
        let is_little = rest <= u128::from(run_bytes / REST_SHARE) * u128::from(read_bytes);
        is_little.then(|| run_bytes.saturating_add(run_bytes / EXTENSION_SHARE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(anchors: &[(u8, u64)]) -> Part {
        let anchors = anchors.iter().map(|(key, bytes)| (vec![*key], *bytes));
        Part::new(KeySpan::default(), anchors.collect())
    }

    #[test]
    fn a_run_takes_what_is_left_if_it_is_little() {
        let order = KeyOrder::Bytewise;
        let part = part(&[(10, 400), (20, 400), (30, 150), (40, 50)]);
        assert_eq!(part.bytes(), 1000);
        let extended = |key, written| part.extended_bytes(&order, &[key], 800, written);
        // 400 of 1,000 are left; 100 are a small part of 800.
        assert_eq!(extended(25, 600), None);
        assert_eq!(extended(25, 149), Some(1000));
        // 125 and 25 are left.
        assert_eq!(extended(35, 875), None);
        assert_eq!(extended(35, 700), Some(1000));
        assert_eq!(extended(45, 975), Some(1000));
    }

    #[test]
    fn without_anchors_every_run_ends_where_it_is_full() {
        let order = KeyOrder::Bytewise;
        assert_eq!(Part::default().bytes(), 0);
        assert_eq!(Part::default().extended_bytes(&order, b"k", 800, 0), None);
        let part = part(&[(10, 400)]);
        assert_eq!(part.extended_bytes(&order, &[5], 800, 0), None);
    }
}
