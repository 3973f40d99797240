//! Insertion of nodes into the list and the hash index, with several of a batch in flight.
//!
//! ```text
//!   number    the node gets its sequence number
//!   start     the skip-list index, for a group of nodes in lock-step; asks for the node it leads to
//!   locate    asks for the bucket of the hash index
//!   descend   awaits each node before it reads it, and keeps the path
//!   link      every level of the tower, bottom up
//!   index     the bucket
//! ```

use std::cell::Cell;
use std::mem::MaybeUninit;

use forerun_core::{block_on, interleave, suspend};

use super::descent::{Descent, Step, Trail, start};
use super::hash_index::HashIndex;
use super::memory_checks::{Checked, Trusting};
use super::node::{HEIGHT_MAX, Node, Seen};
use super::search_starts::SearchStarts;
use super::skip_list::SkipList;

/// Insertions in flight together.
const IN_FLIGHT: usize = 12;

/// Inserts a node under its sequence number. If two nodes have the same key and number, searches
/// find either. Returns whether the hash index has had a version of its key.
///
/// # Safety
/// The node must have been drafted in the list's arena, be in no list, and be held by no other
/// thread. The hash index must be the list's.
#[inline]
pub(super) unsafe fn insert<'a>(
    list: &'a SkipList,
    hash_index: Option<&'a HashIndex>,
    node: Node<'a>,
    sequence: u64,
) -> bool {
    // SAFETY: the caller vouches for the node.
    let target = unsafe { list.number(node, sequence) };
    let descent = above_tower(list, node, start::<Trusting>(list, target));
    let path = Path::new();
    // SAFETY: the caller vouches for the node, and its place is sought from above its tower.
    let insertion = unsafe { insert_from(list, hash_index, node, descent, &path) };
    block_on(insertion).has_other_version
}

/// Inserts nodes under their sequence numbers. Returns for how many of them [`insert`] would have
/// returned true.
///
/// # Safety
/// As for [`insert`], for each node.
pub(super) unsafe fn insert_all<'a>(
    list: &'a SkipList,
    hash_index: Option<&'a HashIndex>,
    nodes: impl Iterator<Item = (Node<'a>, u64)>,
) -> usize {
    let paths: [Path<'a>; IN_FLIGHT] = std::array::from_fn(|_| Path::new());
    // The paths of no insertion are those up to `free`. They are apart from the states of the
    // insertions, because a state is moved.
    let (unused, free) = (paths.each_ref().map(Cell::new), Cell::new(IN_FLIGHT));
    let numbered = nodes.map(|(node, sequence)| {
        // SAFETY: the caller vouches for the node.
        (unsafe { list.number(node, sequence) }, node)
    });
    let insertions = SearchStarts::<Trusting, _, _>::new(list, numbered).map(|(descent, node)| {
        let descent = above_tower(list, node, descent);
        free.set(free.get() - 1);
        let path = unused[free.get()].get();
        // SAFETY: as in `insert`.
        unsafe { insert_from(list, hash_index, node, descent, path) }
    });
    let mut with_other_version = 0;
    interleave::<IN_FLIGHT, _>(insertions, |_, inserted| {
        unused[free.get()].set(inserted.path);
        free.set(free.get() + 1);
        with_other_version += usize::from(inserted.has_other_version);
    });
    with_other_version
}

/// A search that starts above the node's tower, if `descent` starts below its top.
#[inline(always)]
fn above_tower<'a>(
    list: &'a SkipList,
    node: Node<'a>,
    descent: Descent<'a, 'a>,
) -> Descent<'a, 'a> {
    if node.height() <= list.shape().index_level + 1 {
        descent
    } else {
        Descent::new(list, *descent.target())
    }
}

/// What comes out of an insertion.
struct Inserted<'p, 'a> {
    has_other_version: bool,
    /// The path, for the next insertion.
    path: &'p Path<'a>,
}

/// Inserts a node at the place that `descent` seeks.
///
/// # Safety
/// As for [`insert`]. The node must be numbered, and `descent` seek its place and start on its
/// highest level or above.
#[inline(always)]
unsafe fn insert_from<'p, 'a>(
    list: &'a SkipList,
    hash_index: Option<&'a HashIndex>,
    node: Node<'a>,
    mut descent: Descent<'a, 'a>,
    path: &'p Path<'a>,
) -> impl Future<Output = Inserted<'p, 'a>> {
    let indexed = hash_index.map(|index| (index, index.locate(list.arena(), node.key())));
    // An async fn would move its arguments once more when it is first polled.
    async move {
        let mut trail = path;
        while untroubled(descent.step::<Trusting, _>(&mut trail)) == Step::Read {
            suspend().await;
        }
        // Bottom up: once a level leads to the node, every level below it does.
        for level in 0..node.height() {
            // SAFETY: the search has come down through this level.
            let Neighbors { before, seen } = unsafe { path.levels[level].get().assume_init() };
            // SAFETY: the node reaches up to `level`, and so does what the search met there.
            unsafe { list.link(node, descent.target(), level, before, seen) };
        }
        let is_new = indexed.is_none_or(|(index, at)| index.insert(list.arena(), at, node));
        Inserted {
            has_other_version: !is_new,
            path,
        }
    }
}

/// The result of a search that checks nothing and therefore cannot fail.
#[inline(always)]
pub(super) fn untroubled<T>(checked: Checked<T>) -> T {
    checked.unwrap_or_else(|corrupt| unreachable!("a search without checks found {corrupt:?}"))
}

/// Room for the path of a search. A level has no value before the search has recorded it.
struct Path<'a> {
    levels: [Cell<MaybeUninit<Neighbors<'a>>>; HEIGHT_MAX],
}

/// The last node before the target on a level, and what followed it.
#[derive(Clone, Copy)]
struct Neighbors<'a> {
    before: Node<'a>,
    seen: Seen<'a>,
}

impl Path<'_> {
    #[inline(always)]
    fn new() -> Self {
        Path {
            levels: [const { Cell::new(MaybeUninit::uninit()) }; HEIGHT_MAX],
        }
    }
}

impl<'a> Trail<'a> for &Path<'a> {
    const KEEPS_ALL: bool = true;

    #[inline(always)]
    fn record(&mut self, level: usize, before: Node<'a>, seen: Seen<'a>) {
        self.levels[level].set(MaybeUninit::new(Neighbors { before, seen }));
    }
}
