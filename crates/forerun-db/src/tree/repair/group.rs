//! Places runs that no manifest names on levels: above every run that they overlap and are newer
//! than.

use std::sync::Arc;

use crate::comparator::KeyOrder;
use crate::run::Run;
use crate::tree::key_bounds::{largest, smallest};
use crate::tree::manifest::LEVELS;

/// Runs to merge, because it is unknown which one is newer where they overlap.
pub(super) struct Group {
    pub(super) runs: Vec<Arc<Run>>,
}

impl Group {
    pub(super) fn of(run: Arc<Run>) -> Group {
        Group { runs: vec![run] }
    }

    fn sequences(&self) -> (u64, u64) {
        let metas = || self.runs.iter().map(|run| run.meta());
        let from = metas()
            .map(|meta| meta.smallest_sequence)
            .min()
            .unwrap_or(0);
        let to = metas().map(|meta| meta.largest_sequence).max().unwrap_or(0);
        (from, to)
    }

    fn keys(&self, order: &KeyOrder) -> Option<(&[u8], &[u8])> {
        let from = self
            .runs
            .iter()
            .map(|run| smallest(run))
            .min_by(|a, b| order.compare(a, b))?;
        let to = self
            .runs
            .iter()
            .map(|run| largest(run))
            .max_by(|a, b| order.compare(a, b))?;
        Some((from, to))
    }

    /// Whether their key ranges overlap. Gaps count too, since a merge may write them to one run.
    fn overlaps(&self, other: &Group, order: &KeyOrder) -> bool {
        match (self.keys(order), other.keys(order)) {
            (Some((from, to)), Some((other_from, other_to))) => {
                order.compare(from, other_to).is_le() && order.compare(other_from, to).is_le()
            }
            _ => false,
        }
    }

    /// Two groups that overlap while neither is entirely newer than the other; the smaller index
    /// comes first.
    pub(super) fn unclear_pair(groups: &[Group], order: &KeyOrder) -> Option<(usize, usize)> {
        for (b, other) in groups.iter().enumerate() {
            for (a, group) in groups[..b].iter().enumerate() {
                let ((from, to), (other_from, other_to)) = (group.sequences(), other.sequences());
                let is_clear = to < other_from || other_to < from;
                if !is_clear && group.overlaps(other, order) {
                    return Some((a, b));
                }
            }
        }
        None
    }

    /// A level for each group: as deep as possible, and above all older groups that it overlaps.
    pub(super) fn assign_levels(groups: &[Group], order: &KeyOrder) -> Vec<usize> {
        let mut by_age: Vec<usize> = (0..groups.len()).collect();
        by_age.sort_by_key(|group| groups[*group].sequences().1);
        let mut levels = vec![LEVELS - 1; groups.len()];
        for (i, group) in by_age.iter().enumerate() {
            let below = by_age[..i]
                .iter()
                .filter(|older| groups[*group].overlaps(&groups[**older], order));
            let highest = below.map(|older| levels[*older]).min();
            // Level 0 takes every group without a level left; it is sorted by age.
            levels[*group] = highest.map_or(LEVELS - 1, |level| level.saturating_sub(1));
        }
        levels
    }
}
