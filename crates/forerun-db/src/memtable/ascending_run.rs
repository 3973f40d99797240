//! Insertion of ascending keys with no other key between them, such as those of a log or of a
//! sorted load: each insertion starts where the one before it ended.
//!
//! ```text
//!   level 2  head ───────────────► b ──────────────────────► end     before[2] = b
//!   level 1  head ───────────────► b ─────────► d ─────────► end     before[1] = d
//!   level 0  head ─► a ─► … ─────► b ───► c ──► d ───► e ──► end     before[0] = e, the last one
//! ```
//!
//! Keys ascend, so whatever is before the last key is before the next one. Where other writers put
//! keys between the two meanwhile, the insertion walks over them.

use super::descent::{Descent, Trail};
use super::hash_index::{HashIndex, Located};
use super::insertion::untroubled;
use super::memory_checks::Trusting;
use super::node::{HEIGHT_MAX, Node, Seen, Stands, Target};
use super::skip_list::SkipList;
use crate::versions::{ReadPoint, SEQUENCE_MAX};

/// The least number of entries of a batch that may be a run. To find out takes a search of the list
/// with nothing else in flight.
pub(super) const RUN_FROM: usize = 16;

/// How far ahead of the insertions the buckets of the hash index are asked for.
const AHEAD: usize = 12;

/// Inserts nodes under their sequence numbers if there is no key between theirs, which ascend from
/// `first` to `last`. Otherwise it takes none or only the first one from `nodes`. Returns for how
/// many of them the hash index has had a version of the key.
///
/// # Safety
/// The nodes must have been drafted in the list's arena, be in no list, and be held by no other
/// thread. The hash index must be the list's.
pub(super) unsafe fn insert_run<'a>(
    list: &'a SkipList,
    hash_index: Option<&'a HashIndex>,
    (first, last): (Node<'a>, Node<'a>),
    nodes: &mut impl Iterator<Item = (Node<'a>, u64)>,
) -> usize {
    if !is_likely(list, first, last) {
        return 0;
    }
    let mut run = AscendingRun::before(list, first);
    let mut located = nodes.map(|(node, sequence)| {
        let indexed = hash_index.map(|index| (index, index.locate(list.arena(), node.key())));
        (node, sequence, indexed)
    });
    let Some((node, sequence, indexed)) = located.next() else {
        return 0;
    };
    // SAFETY: the caller vouches for the nodes, whose keys ascend.
    let mut with_other_version = usize::from(unsafe { run.insert(node, sequence, indexed) });
    if !leads_beyond(list, first, last) {
        return with_other_version;
    }
    loop {
        let ahead: [_; AHEAD] = std::array::from_fn(|_| located.next());
        let is_end = ahead[AHEAD - 1].is_none();
        for (node, sequence, indexed) in ahead.into_iter().flatten() {
            // SAFETY: as above.
            with_other_version += usize::from(unsafe { run.insert(node, sequence, indexed) });
        }
        if is_end {
            return with_other_version;
        }
    }
}

/// Whether the skip-list index has no node between two keys. It costs little to ask, and far more
/// to be wrong.
fn is_likely(list: &SkipList, first: Node<'_>, last: Node<'_>) -> bool {
    let targets = [first, last].map(|node| newest(list, node));
    list.index().is_none_or(|index| {
        let [before_first, before_last] = index.enter(list.order(), &targets);
        before_first == before_last
    })
}

/// Whether the node that follows one in the list is not before another.
fn leads_beyond(list: &SkipList, node: Node<'_>, other: Node<'_>) -> bool {
    // SAFETY: every node has level 0.
    let next = unsafe { node.link(0) }.load().next;
    let target = newest(list, other);
    next.is_none_or(|next| next.stands(list.order(), &target) != Stands::Before)
}

/// The place before all versions of a node's key.
fn newest<'a>(list: &SkipList, node: Node<'a>) -> Target<'a> {
    Target::new(list.order(), node.key(), ReadPoint::at(SEQUENCE_MAX))
}

/// The place behind the last node that was inserted.
struct AscendingRun<'a> {
    list: &'a SkipList,
    /// On each level, the last node before that place.
    before: [Node<'a>; HEIGHT_MAX],
}

impl<'a> AscendingRun<'a> {
    /// The place before all versions of a node's key.
    fn before(list: &'a SkipList, first: Node<'a>) -> Self {
        let mut run = AscendingRun {
            list,
            before: [list.head(); HEIGHT_MAX],
        };
        // From the top, because the path is needed on every level.
        let descent = Descent::new(list, newest(list, first));
        let _ = untroubled(descent.land::<Trusting, _>(&mut run));
        run
    }

    /// Inserts the next node. Returns whether the hash index has had a version of its key.
    ///
    /// # Safety
    /// As for [`insert_run`], and the node's key must be after the last one inserted and not before
    /// the one that the run was made for.
    unsafe fn insert(
        &mut self,
        node: Node<'a>,
        sequence: u64,
        indexed: Option<(&HashIndex, Located<'a>)>,
    ) -> bool {
        // SAFETY: the caller vouches for the node.
        let target = unsafe { self.list.number(node, sequence) };
        // Bottom up: once a level leads to the node, every level below it does.
        for level in 0..node.height() {
            // SAFETY: the node reaches up to `level`, and so does the one before it, which is the
            // head, was reached on that level, or was inserted here. It is before the last key or
            // the first, and therefore before this one.
            unsafe {
                let (before, seen) = self.list.advance(self.before[level], level, &target);
                self.list.link(node, &target, level, before, seen);
            }
            self.before[level] = node;
        }
        let is_new = indexed.is_none_or(|(index, at)| index.insert(self.list.arena(), at, node));
        !is_new
    }
}

impl<'a> Trail<'a> for AscendingRun<'a> {
    const KEEPS_ALL: bool = true;

    fn record(&mut self, level: usize, before: Node<'a>, _: Seen<'a>) {
        self.before[level] = before;
    }
}
