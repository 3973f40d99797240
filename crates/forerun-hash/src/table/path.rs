//! Making room: a short chain of moves, each entry to its other bucket, that ends at a free slot.
//!
//! ```text
//!   home (full) --slot 2--> other bucket of that entry (full) --slot 0--> a bucket with a free slot
//!   away (full) --...
//! ```
//!
//! Breadth first, so that the chain is the shortest there is (MemC3's paths are found depth first;
//! breadth first is libcuckoo's, Li et al. 2014). It is found before anything is moved, and moved from
//! its end, so that every entry can be found throughout. A lookup finds an entry at home with one
//! cache line, so a new entry goes home if a guest there can itself go home.

use super::bucket::{Identity, SLOTS, Side};
use super::segment::{Segment, Spot};

/// Buckets a search looks into before it gives up and the segment grows.
///
/// At 95% of the slots taken, 25 are enough 99 times in 100.
const MAX_BUCKETS: usize = 512;

/// A bucket on the way.
#[derive(Clone, Copy, Debug)]
struct Step {
    bucket: usize,
    /// The step it was reached from, and the slot there whose entry would move here.
    from: Option<(usize, usize)>,
}

/// The steps of a search; kept to be used again.
#[derive(Debug, Default)]
pub(super) struct Trail {
    steps: Vec<Step>,
}

/// Frees a slot for an entry whose home bucket is full, and tells which, on which side of the entry.
/// `None` if the segment is too full.
pub(super) fn make_room(
    segment: &Segment,
    identity: Identity,
    home: usize,
    trail: &mut Trail,
) -> Option<(Spot, Side)> {
    if let Some(slot) = send_guest_home(segment, home) {
        return Some((Spot { bucket: home, slot }, Side::Home));
    }
    let away = segment.geometry.other(home, identity.remainder());
    let root = |bucket| Step { bucket, from: None };
    trail.steps.clear();
    trail.steps.extend([root(away), root(home)]);

    let mut at = 0;
    while at < trail.steps.len() {
        let Step { bucket, .. } = trail.steps[at];
        if let Some(slot) = segment.buckets()[bucket].free_slot() {
            let spot = shift_along(segment, &trail.steps, at, slot);
            let side = if spot.bucket == home {
                Side::Home
            } else {
                Side::Away
            };
            return Some((spot, side));
        }
        for slot in 0..SLOTS {
            let Some(entry) = segment.buckets()[bucket].entry(slot) else {
                continue;
            };
            let next = segment.geometry.other(bucket, entry.remainder());
            if trail.steps.len() < MAX_BUCKETS && !trail.passes(at, next) {
                segment.buckets()[next].prefetch();
                let from = Some((at, slot));
                trail.steps.push(Step { bucket: next, from });
            }
        }
        at += 1;
    }
    None
}

impl Trail {
    /// Whether the way to a step passes through a bucket: its slots cannot be emptied twice.
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

/// Moves the entries of a way, last first, and tells which slot of its first bucket that freed.
fn shift_along(segment: &Segment, steps: &[Step], mut at: usize, mut slot: usize) -> Spot {
    loop {
        let to = Spot {
            bucket: steps[at].bucket,
            slot,
        };
        let Some((before, from_slot)) = steps[at].from else {
            return to;
        };
        let from = Spot {
            bucket: steps[before].bucket,
            slot: from_slot,
        };
        segment.shift(from, to);
        (at, slot) = (before, from_slot);
    }
}

/// Moves an entry that is away in this bucket to its home, if there is room, and tells its slot.
fn send_guest_home(segment: &Segment, bucket: usize) -> Option<usize> {
    let guests = || {
        let entries =
            (0..SLOTS).filter_map(|slot| Some((slot, segment.buckets()[bucket].entry(slot)?)));
        entries.filter(|(_, entry)| entry.side() == Side::Away)
    };
    for (_, guest) in guests() {
        segment.buckets()[segment.geometry.other(bucket, guest.remainder())].prefetch();
    }
    guests().find_map(|(slot, guest)| {
        let home = segment.geometry.other(bucket, guest.remainder());
        let free = segment.buckets()[home].free_slot()?;
        // A bucket may be both of an entry's; then there is nowhere to send it.
        (home != bucket).then(|| {
            segment.shift(
                Spot { bucket, slot },
                Spot {
                    bucket: home,
                    slot: free,
                },
            );
            slot
        })
    })
}
