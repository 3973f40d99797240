//! Immutable blocks of range tombstones, searched by key.
//!
//! ```text
//!   tombstones   b ├──────── @7 ────────┤ m            sixteen per leaf, in the order of arrival
//!                            h ├──── @9 ────┤ t
//!   fragments    b ├── @7 ──┤h ├──── @9 ────┤ t        the newest tombstone over each: at most 2 each
//! ```
//!
//! A reader that sees a whole block searches its fragments. A reader whose sequence number falls
//! inside a block searches the blocks that it was merged from; it sees most of these entirely or
//! not at all. A block keeps them by factors of sixteen, so that all levels together take a few
//! bytes per tombstone, and it scans the smallest ones.
//!
//! RocksDB also fragments tombstones, but lists every covering sequence number in each fragment.
//! For n nested ranges that makes n^2 numbers; here there is one per fragment.

use std::cmp::Ordering;
use std::sync::Arc;

use super::RangeRef;
use crate::comparator::KeyOrder;

/// Tombstones in a leaf.
pub(super) const LEAF: usize = 16;

/// A block this many times as large as its largest part becomes a part itself.
const PARTS: usize = 16;

/// A block with at most this many tombstones has no parts and is scanned instead.
const SCANNED: usize = LEAF * PARTS;

/// Maximum number of tombstones in a block, so that the numbers of bounds fit into 32 bits.
const TOMBSTONES_MAX: usize = 1 << 30;

/// A leaf of 16 tombstones.
struct Leaf {
    /// Start and end of each, concatenated.
    keys: Box<[u8]>,
    /// Where each of these ends.
    stops: [u32; 2 * LEAF],
    sequences: [u64; LEAF],
}

/// Extends from its start to the start of the next fragment.
#[derive(Clone, Copy)]
struct Fragment {
    /// The bound at which it starts: `2 * tombstone` is the tombstone's start, `2 * tombstone + 1`
    /// its end.
    start: u32,
    /// The newest tombstone that covers it, or [`NONE`].
    newest: u32,
}

/// No tombstone.
const NONE: u32 = u32::MAX;

/// A block of tombstones; their number is a multiple of [`LEAF`].
pub(super) struct Block {
    leaves: Box<[Arc<Leaf>]>,
    /// Ascending. No two neighbors name the same tombstone.
    fragments: Box<[Fragment]>,
    /// Blocks that together hold the same tombstones, oldest first; empty for a small block.
    parts: Box<[Arc<Block>]>,
    /// The number of tombstones in the largest part.
    largest_part: usize,
    /// A block of level n is merged from two of level n - 1.
    level: u32,
    smallest_sequence: u64,
    largest_sequence: u64,
}

impl Leaf {
    fn new(tombstones: &[RangeRef<'_>; LEAF]) -> Leaf {
        let mut stops = [0; 2 * LEAF];
        let bounds = tombstones.iter().flat_map(|of| [of.start, of.end]);
        let mut keys = Vec::with_capacity(bounds.clone().map(<[u8]>::len).sum());
        for (stop, bound) in stops.iter_mut().zip(bounds) {
            keys.extend_from_slice(bound);
            // 32 keys of at most 64 KiB.
            *stop = keys.len() as u32;
        }
        Leaf {
            keys: keys.into_boxed_slice(),
            stops,
            sequences: tombstones.map(|tombstone| tombstone.sequence),
        }
    }

    fn bound(&self, number: usize) -> &[u8] {
        let start = number.checked_sub(1).map_or(0, |before| self.stops[before]);
        &self.keys[start as usize..self.stops[number] as usize]
    }

    fn tombstone(&self, number: usize) -> RangeRef<'_> {
        RangeRef {
            start: self.bound(2 * number),
            end: self.bound(2 * number + 1),
            sequence: self.sequences[number],
        }
    }
}

/// Leaves, addressed by tombstone number.
#[derive(Clone, Copy)]
struct Leaves<'a>(&'a [Arc<Leaf>]);

impl<'a> Leaves<'a> {
    fn bound(self, number: u32) -> &'a [u8] {
        let number = number as usize;
        self.0[number / (2 * LEAF)].bound(number % (2 * LEAF))
    }

    fn sequence(self, tombstone: u32) -> u64 {
        let number = tombstone as usize;
        self.0[number / LEAF].sequences[number % LEAF]
    }

    fn tombstone(self, number: u32) -> RangeRef<'a> {
        let number = number as usize;
        self.0[number / LEAF].tombstone(number % LEAF)
    }

    fn iter(self) -> impl Iterator<Item = RangeRef<'a>> {
        self.0
            .iter()
            .flat_map(|leaf| (0..LEAF).map(|number| leaf.tombstone(number)))
    }

    fn newer(self, a: u32, b: u32) -> u32 {
        match (a, b) {
            (NONE, other) | (other, NONE) => other,
            _ if self.sequence(a) > self.sequence(b) => a,
            _ => b,
        }
    }

    /// Overlays two lists of fragments. The numbers in `b` do not yet count the first `b_first`
    /// tombstones.
    fn overlay(
        self,
        order: &KeyOrder,
        a: &[Fragment],
        b: &[Fragment],
        b_first: u32,
    ) -> Vec<Fragment> {
        let mut laid: Vec<Fragment> = Vec::with_capacity(a.len() + b.len());
        let (mut a, mut b) = (a.iter().copied().peekable(), {
            let renumbered = |fragment: &Fragment| Fragment {
                start: fragment.start + 2 * b_first,
                newest: match fragment.newest {
                    NONE => NONE,
                    newest => newest + b_first,
                },
            };
            b.iter().map(renumbered).peekable()
        });
        let (mut over_a, mut over_b) = (NONE, NONE);
        loop {
            let is_next = match (a.peek(), b.peek()) {
                (None, None) => return laid,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(a), Some(b)) => order.compare(self.bound(a.start), self.bound(b.start)),
            };
            let mut start = 0;
            if is_next.is_ge()
                && let Some(fragment) = b.next()
            {
                (start, over_b) = (fragment.start, fragment.newest);
            }
            if is_next.is_le()
                && let Some(fragment) = a.next()
            {
                (start, over_a) = (fragment.start, fragment.newest);
            }
            let newest = self.newer(over_a, over_b);
            if laid.last().map_or(NONE, |before| before.newest) != newest {
                laid.push(Fragment { start, newest });
            }
        }
    }
}

impl Block {
    /// A block of one leaf.
    pub(super) fn of_leaf(order: &KeyOrder, tombstones: &[RangeRef<'_>; LEAF]) -> Block {
        let leaf = [Arc::new(Leaf::new(tombstones))];
        let leaves = Leaves(&leaf);
        let mut laid: Vec<Vec<Fragment>> = (0..LEAF as u32)
            .map(|newest| {
                let tombstone = leaves.tombstone(newest);
                // A tombstone that ends before it starts covers nothing.
                if order.compare(tombstone.start, tombstone.end).is_lt() {
                    vec![
                        Fragment {
                            start: 2 * newest,
                            newest,
                        },
                        Fragment {
                            start: 2 * newest + 1,
                            newest: NONE,
                        },
                    ]
                } else {
                    Vec::new()
                }
            })
            .collect();
        while laid.len() > 1 {
            let pairs = laid.chunks(2);
            laid = pairs
                .map(|pair| leaves.overlay(order, &pair[0], &pair[1], 0))
                .collect();
        }
        let sequences = || tombstones.iter().map(|tombstone| tombstone.sequence);
        Block {
            fragments: laid.pop().unwrap_or_default().into_boxed_slice(),
            parts: Box::default(),
            largest_part: 0,
            level: 0,
            smallest_sequence: sequences().min().unwrap_or(0),
            largest_sequence: sequences().max().unwrap_or(0),
            leaves: Box::new(leaf),
        }
    }

    /// Merges two blocks.
    pub(super) fn merge(order: &KeyOrder, a: &Arc<Block>, b: &Arc<Block>) -> Block {
        let leaves: Box<[_]> = a.leaves.iter().chain(&b.leaves).cloned().collect();
        let a_count = a.count() as u32;
        let overlay = Leaves(&leaves).overlay(order, &a.fragments, &b.fragments, a_count);
        let parts: Box<[Arc<Block>]> = if leaves.len() * LEAF <= SCANNED {
            Box::default()
        } else {
            a.as_parts().iter().chain(b.as_parts()).cloned().collect()
        };
        let largest_part = parts.iter().map(|part| part.count()).max();
        Block {
            leaves,
            fragments: overlay.into_boxed_slice(),
            parts,
            largest_part: largest_part.unwrap_or(0),
            level: a.level.max(b.level) + 1,
            smallest_sequence: a.smallest_sequence.min(b.smallest_sequence),
            largest_sequence: a.largest_sequence.max(b.largest_sequence),
        }
    }

    /// The part of this block that a merged block keeps: the block itself or its parts.
    fn as_parts(self: &Arc<Block>) -> &[Arc<Block>] {
        if self.count() >= PARTS * self.largest_part {
            std::slice::from_ref(self)
        } else {
            &self.parts
        }
    }

    /// Whether to merge the next block into this one: they have the same size.
    pub(super) fn takes(&self, next: &Block) -> bool {
        self.level <= next.level && self.can_take(next)
    }

    /// Whether another block fits into this one.
    pub(super) fn can_take(&self, next: &Block) -> bool {
        self.count() + next.count() <= TOMBSTONES_MAX
    }

    pub(super) fn count(&self) -> usize {
        self.leaves.len() * LEAF
    }

    pub(super) fn largest_sequence(&self) -> u64 {
        self.largest_sequence
    }

    /// Memory in use, with or without the leaves.
    #[cfg(test)]
    pub(super) fn taken_bytes(&self, with_leaves: bool) -> usize {
        const ARC_BYTES: usize = 16;
        let of_leaf = |leaf: &Arc<Leaf>| ARC_BYTES + size_of::<Leaf>() + leaf.keys.len();
        let in_leaves = if with_leaves {
            self.leaves.iter().map(of_leaf).sum()
        } else {
            0
        };
        // Parts share the leaves.
        let in_parts = self.parts.iter().map(|part| 8 + part.taken_bytes(false));
        let lists = 8 * self.leaves.len() + size_of::<Fragment>() * self.fragments.len();
        ARC_BYTES + size_of::<Block>() + lists + in_leaves + in_parts.sum::<usize>()
    }

    /// The tombstones, in the order they were added.
    pub(super) fn iter(&self) -> impl Iterator<Item = RangeRef<'_>> {
        Leaves(&self.leaves).iter()
    }

    /// The newest tombstone that covers `key` and is not newer than `snapshot`.
    pub(super) fn newest_over(
        &self,
        order: &KeyOrder,
        key: &[u8],
        snapshot: u64,
    ) -> Option<RangeRef<'_>> {
        if self.largest_sequence <= snapshot {
            let leaves = Leaves(&self.leaves);
            let at = self.first_behind(order, key).checked_sub(1)?;
            let newest = self.fragments[at].newest;
            return (newest != NONE).then(|| leaves.tombstone(newest));
        }
        if self.smallest_sequence > snapshot {
            return None;
        }
        if self.parts.is_empty() {
            return newest_of(self.iter(), order, key, snapshot);
        }
        let of_parts = self.parts.iter();
        let of_parts = of_parts.filter_map(|part| part.newest_over(order, key, snapshot));
        of_parts.max_by_key(|tombstone| tombstone.sequence)
    }

    /// Whether a tombstone newer than `sequence` covers any key from `smallest` to `largest`, both
    /// included.
    pub(super) fn any_newer_within(
        &self,
        order: &KeyOrder,
        smallest: &[u8],
        largest: &[u8],
        sequence: u64,
    ) -> bool {
        if self.largest_sequence <= sequence {
            return false;
        }
        let leaves = Leaves(&self.leaves);
        let first = self.first_behind(order, smallest).saturating_sub(1);
        let starts_by = |of: &&Fragment| order.compare(leaves.bound(of.start), largest).is_le();
        let mut within = self.fragments[first..].iter().take_while(starts_by);
        within.any(|of| of.newest != NONE && leaves.sequence(of.newest) > sequence)
    }

    /// The first fragment that starts after `key`.
    fn first_behind(&self, order: &KeyOrder, key: &[u8]) -> usize {
        let leaves = Leaves(&self.leaves);
        self.fragments
            .partition_point(|of| order.compare(leaves.bound(of.start), key).is_le())
    }
}

/// The newest of these tombstones that covers `key` and is not newer than `snapshot`.
pub(super) fn newest_of<'a>(
    tombstones: impl Iterator<Item = RangeRef<'a>>,
    order: &KeyOrder,
    key: &[u8],
    snapshot: u64,
) -> Option<RangeRef<'a>> {
    tombstones
        .filter(|of| of.sequence <= snapshot && of.covers(order, key))
        .max_by_key(|of| of.sequence)
}
