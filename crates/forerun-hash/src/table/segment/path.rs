//! Frees a slot by a cuckoo path: a short chain of moves that ends at a free slot. Each move takes
//! an entry to its other bucket.
//!
//! ```text
//!   home (full) --slot 2--> other bucket of that entry (full) --slot 0--> a bucket with a free slot
//!   second (full) --...
//! ```
//!
//! The search is breadth first, as in libcuckoo (Li et al. 2014), and so finds a shortest path;
//! MemC3 searches depth first. The path is found before anything is moved, and its entries are
//! moved from its end, so that every entry can be found throughout. A lookup finds an entry in its
//! home bucket by reading one cache line, so a new entry is placed at home if a displaced entry
//! there can return to its own home.

use super::super::bucket::{Identity, SLOTS, Side};
use super::{Segment, SlotRef};

/// How many buckets a search visits before it gives up and the segment grows.
///
/// At a load of 95%, 25 buckets suffice in 99 of 100 cases.
const BUCKETS_MAX: usize = 512;

/// A bucket that the search has reached.
#[derive(Clone, Copy, Debug)]
struct Step {
    bucket: usize,
    /// The step that it was reached from, and the slot there whose entry would move here.
    from: Option<(usize, usize)>,
}

/// The steps of a search. The allocation is reused.
#[derive(Debug, Default)]
pub(super) struct SearchPath {
    steps: Vec<Step>,
}

/// Frees a slot for an entry whose home bucket is full. Returns the slot and its side. `None` if
/// the segment is too full.
pub(super) fn free_slot_for(
    segment: &Segment,
    identity: Identity,
    home: usize,
    search_path: &mut SearchPath,
) -> Option<(SlotRef, Side)> {
    if let Some(slot) = return_one_home(segment, home) {
        return Some((SlotRef { bucket: home, slot }, Side::Home));
    }
    let second = segment.geometry.other(home, identity.remainder());
    let root = |bucket| Step { bucket, from: None };
    search_path.steps.clear();
    search_path.steps.extend([root(second), root(home)]);

    let mut at = 0;
    while at < search_path.steps.len() {
        let Step { bucket, .. } = search_path.steps[at];
        if let Some(slot) = segment.buckets()[bucket].free_slot() {
            let slot_ref = move_along(segment, &search_path.steps, at, slot);
            let side = if slot_ref.bucket == home {
                Side::Home
            } else {
                Side::Second
            };
            return Some((slot_ref, side));
        }
        for slot in 0..SLOTS {
            let Some(entry) = segment.buckets()[bucket].entry(slot) else {
                continue;
            };
            let next = segment.geometry.other(bucket, entry.remainder());
            if search_path.steps.len() < BUCKETS_MAX && !search_path.passes(at, next) {
                segment.buckets()[next].prefetch();
                let from = Some((at, slot));
                search_path.steps.push(Step { bucket: next, from });
            }
        }
        at += 1;
    }
    None
}

impl SearchPath {
    /// Whether the path to a step passes through a bucket, whose slots cannot be emptied twice.
    fn passes(&self, mut at: usize, bucket: usize) -> bool {
        loop {
            let step = self.steps[at];
            if step.bucket == bucket {
                return true;
            }
            match step.from {
                Some((before, _)) => at = before,
                None => return false,
            }
        }
    }
}

/// Moves the entries of a path, last first, and returns the slot that this frees in its first
/// bucket.
fn move_along(segment: &Segment, steps: &[Step], mut at: usize, mut slot: usize) -> SlotRef {
    loop {
        let to = SlotRef {
            bucket: steps[at].bucket,
            slot,
        };
        let Some((before, from_slot)) = steps[at].from else {
            return to;
        };
        let from = SlotRef {
            bucket: steps[before].bucket,
            slot: from_slot,
        };
        segment.move_entry(from, to);
        (at, slot) = (before, from_slot);
    }
}

/// Moves a displaced entry of this bucket back to its home if a slot is free there, and returns the
/// slot that this frees.
fn return_one_home(segment: &Segment, bucket: usize) -> Option<usize> {
    let displaced = || {
        let entries =
            (0..SLOTS).filter_map(|slot| Some((slot, segment.buckets()[bucket].entry(slot)?)));
        entries.filter(|(_, entry)| entry.side() == Side::Second)
    };
    for (_, entry) in displaced() {
        segment.buckets()[segment.geometry.other(bucket, entry.remainder())].prefetch();
    }
    displaced().find_map(|(slot, entry)| {
        let home = segment.geometry.other(bucket, entry.remainder());
        let free = segment.buckets()[home].free_slot()?;
        // Both buckets of an entry may be the same; then it cannot move.
        (home != bucket).then(|| {
            segment.move_entry(
                SlotRef { bucket, slot },
                SlotRef {
                    bucket: home,
                    slot: free,
                },
            );
            slot
        })
    })
}
