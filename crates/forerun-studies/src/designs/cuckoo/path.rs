//! Which entries to move to free a slot. A breadth-first search keeps the number of moves small.
//!
//! ```text
//!   the new key's buckets, all full      [a0 a1 a2 a3]      [b0 b1 b2 b3]
//!                                         │                     │
//!   other buckets of their entries       [c …] [d …] …        [e …] [f _ …]  ◄─ free slot
//!
//!   moves, last first:   f's bucket takes b3;  b3's slot takes the new key
//! ```
//!
//! The search visits the other candidates of a bucket's entries level by level, as in libcuckoo
//! (Li, Andersen, Kaminsky and Freedman, "Algorithmic Improvements for Fast Concurrent Cuckoo
//! Hashing", 2014). It gives up after [`BUCKETS_MAX`] buckets, so an insertion always ends. It
//! visits a bucket once, so no slot is on a path twice.

/// Buckets that a search visits before it gives up.
pub(in super::super) const BUCKETS_MAX: usize = 4096;
/// Twice as many positions as buckets keep the chains of the visited set short.
const VISITED: usize = 2 * BUCKETS_MAX;
/// No parent: a bucket of the new key itself.
const ROOT: u32 = u32::MAX;

/// A full bucket that the search reached.
#[derive(Clone, Copy, Debug)]
struct Node {
    bucket: u32,
    /// The node whose entry can move here, and the entry's slot there.
    parent: u32,
    slot: u32,
}

/// A search's finding in a bucket.
pub(in super::super) enum BucketState {
    /// This slot can take an entry.
    Free(usize),
    /// The bucket is full.
    Full,
}

/// One move: the entry in slot `from` goes to slot `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Move {
    pub(in super::super) from: Slot,
    pub(in super::super) to: Slot,
}

/// A slot of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Slot {
    pub(in super::super) bucket: u32,
    pub(in super::super) slot: usize,
}

/// The interface through which the search sees a table.
pub(in super::super) trait Buckets {
    /// Slots in a bucket.
    const SLOTS: usize;

    /// Whether a bucket has a free slot.
    fn bucket_state(&self, bucket: u32) -> BucketState;

    /// The candidate buckets of the entry in a slot of a full bucket, in order, including that
    /// bucket.
    fn choices(&self, at: Slot) -> impl Iterator<Item = u32>;
}

/// The working memory of searches.
#[derive(Debug)]
pub(in super::super) struct Search {
    nodes: Vec<Node>,
    /// Open addressing. A position is in use if its upper half is this search's number; the lower
    /// half is the bucket.
    visited: Vec<u64>,
    number: u32,
    moves: Vec<Move>,
}

impl Search {
    pub(in super::super) fn new() -> Search {
        Search {
            nodes: Vec::new(),
            visited: Vec::new(),
            number: 0,
            moves: Vec::new(),
        }
    }

    /// Finds moves that free a slot in one of `roots`, which are all full. Returns the slot, and
    /// the moves in the order to make them. `None` if the search gave up.
    pub(in super::super) fn run<B: Buckets>(
        &mut self,
        table: &B,
        roots: impl Iterator<Item = u32>,
    ) -> Option<(Slot, &[Move])> {
        self.begin();
        for bucket in roots {
            self.visit(bucket, ROOT, 0);
        }
        let mut at = 0;
        while at < self.nodes.len() {
            let from = self.nodes[at].bucket;
            for slot in 0..B::SLOTS {
                let entry = Slot { bucket: from, slot };
                for bucket in table.choices(entry).filter(|&choice| choice != from) {
                    if let BucketState::Free(free) = table.bucket_state(bucket) {
                        return Some(self.path(at, entry, Slot { bucket, slot: free }));
                    }
                    if self.nodes.len() < BUCKETS_MAX {
                        self.visit(bucket, at as u32, slot as u32);
                    }
                }
            }
            at += 1;
        }
        None
    }

    /// Clears the previous search.
    fn begin(&mut self) {
        self.nodes.clear();
        self.number = self.number.wrapping_add(1);
        if self.visited.is_empty() || self.number == 0 {
            self.visited = vec![0; VISITED];
            self.number = 1;
        }
    }

    /// Appends a bucket, unless this search has already reached it.
    fn visit(&mut self, bucket: u32, parent: u32, slot: u32) {
        let stamp = u64::from(self.number) << 32 | u64::from(bucket);
        let mut at = bucket.wrapping_mul(0x9e37_79b1) as usize >> 7;
        loop {
            let place = &mut self.visited[at % VISITED];
            if *place == stamp {
                return;
            }
            if *place >> 32 != u64::from(self.number) {
                *place = stamp;
                break;
            }
            at += 1;
        }
        self.nodes.push(Node {
            bucket,
            parent,
            slot,
        });
    }

    /// The moves from a root to `free`, which takes the entry `last` of node `at`.
    fn path(&mut self, at: usize, last: Slot, free: Slot) -> (Slot, &[Move]) {
        self.moves.clear();
        let (mut free, mut entry, mut node) = (free, last, self.nodes[at]);
        loop {
            self.moves.push(Move {
                from: entry,
                to: free,
            });
            free = entry;
            if node.parent == ROOT {
                return (free, &self.moves);
            }
            let parent = self.nodes[node.parent as usize];
            entry = Slot {
                bucket: parent.bucket,
                slot: node.slot as usize,
            };
            node = parent;
        }
    }
}
