//! The shape of a skip list: how much memory it spends to make searches fast.
//!
//! ```text
//!                         level 1   above    nodes     skip-list index
//!   SEARCHED              1 in 2    1 in 2   aligned   level 4, 1 in 16, rebuilt at 5/4 the size
//!   BESIDE_A_HASH_INDEX   1 in 4    1 in 2   packed    level 2, 1 in 8, rebuilt at twice the size
//! ```
//!
//! The prefix beside each pointer shows where a step would overshoot, so the cost of a search is
//! its steps forward. Between the level of the skip-list index and level 0, a search takes two of
//! them on average in a list of either shape. If point lookups go through a hash index, only
//! insertions, seeks and scans use the list, so it saves memory: a node has 1.5 links instead of
//! two.

/// The shape of a list, which does not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ListShape {
    /// Level 1 has one in `1 << low_fan_out_bits` of all nodes.
    pub(super) low_fan_out_bits: u32,
    pub(super) placement: Placement,
    /// The level whose nodes the skip-list index holds.
    pub(super) index_level: usize,
    /// The skip-list index is rebuilt when one entry in `1 << growth_bits` of those that it was
    /// built for has been added.
    growth_bits: u32,
}

/// Where nodes start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placement {
    /// Placed so that what a search reads of a node is in one cache line.
    Aligned,
    /// Placed where the previous node ends.
    Packed,
}

impl ListShape {
    /// For a list that point lookups search.
    pub(super) const SEARCHED: ListShape = ListShape {
        low_fan_out_bits: 1,
        placement: Placement::Aligned,
        // Towers are lower in loom models.
        index_level: if cfg!(loom) { 1 } else { 4 },
        growth_bits: 2,
    };

    /// For a list beside a hash index.
    pub(super) const BESIDE_A_HASH_INDEX: ListShape = ListShape {
        low_fan_out_bits: 2,
        placement: Placement::Packed,
        index_level: 2,
        growth_bits: 0,
    };

    /// The number of entries at which a skip-list index that was built for `entries` is rebuilt.
    pub(super) fn index_due(&self, entries: usize) -> usize {
        entries + (entries >> self.growth_bits)
    }
}
