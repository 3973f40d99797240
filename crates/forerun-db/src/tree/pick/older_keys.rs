//! What a compaction must know of the runs that it does not take.
//!
//! It keeps a deletion as long as an older version of the key may exist elsewhere. Only the bounds
//! of those runs are copied: a compaction that held the runs would keep their files and their
//! memory until it has ended, while others replace them.

use std::sync::Arc;

use super::Compaction;
use super::running::Keys;
use crate::comparator::KeyOrder;
use crate::run::Run;
use crate::tree::key_bounds::KeyRange;
use crate::tree::levels::Levels;
use crate::tree::manifest::LEVELS;

/// The keys of which older versions may be in runs that a compaction does not take.
#[derive(Clone, Debug)]
pub(crate) struct OlderKeys {
    order: KeyOrder,
    /// Ascending and disjoint.
    ranges: Vec<Keys>,
}

impl OlderKeys {
    /// Those of a compaction that was picked from these levels. All such runs are on deeper levels,
    /// or behind its own on level 0 if it stays there: the others there have other keys or are
    /// newer.
    pub(super) fn new(compaction: &Compaction, levels: &Levels) -> OlderKeys {
        let order = levels.order();
        let deeper = compaction.into + 1..LEVELS;
        let deeper = deeper.flat_map(|level| levels.level(level).runs());
        let is_taken = |run: &Arc<Run>| compaction.upper.iter().any(|of| Arc::ptr_eq(of, run));
        let behind = levels.level(0).runs().iter().rev();
        let behind = behind.take_while(|run| compaction.into == 0 && !is_taken(run));
        let keys = compaction.keys();
        let mut older: Vec<KeyRange<'_>> = deeper
            .chain(behind)
            .map(|run| KeyRange::of(run))
            .filter(|range| keys.is_some_and(|keys| keys.overlaps(order, *range)))
            .collect();
        older.sort_by(|a, b| order.compare(a.from, b.from));
        let mut joined: Vec<KeyRange<'_>> = Vec::new();
        for range in older {
            match joined.last_mut() {
                Some(last) if last.overlaps(order, range) => *last = last.with(order, range),
                _ => joined.push(range),
            }
        }
        OlderKeys {
            order: order.clone(),
            ranges: joined
                .into_iter()
                .map(|range| Keys {
                    from: range.from.into(),
                    to: range.to.into(),
                })
                .collect(),
        }
    }

    /// Whether an older version of a key may be in one of those runs.
    pub(crate) fn may_hold(&self, key: &[u8]) -> bool {
        let ends_before = |range: &Keys| self.order.compare(&range.to, key).is_lt();
        let first = self.ranges.partition_point(ends_before);
        let next = self.ranges.get(first);
        next.is_some_and(|range| self.order.compare(&range.from, key).is_le())
    }

    /// Whether there are no such keys.
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
}
