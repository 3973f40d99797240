//! The guide: a sorted array of the tall nodes, by which a search enters the list half-way down.
//!
//! ```text
//!   prefixes │ p0 │ p1 │ p2 │ …    sorted; searched without touching a node
//!   nodes    │ n0 │ n1 │ n2 │ …    every node that reaches GUIDE_LEVEL, when the guide was made
//!                    │
//!   level 6  head ──►n0 ─────►n1 ──────►n2 ─►     the search goes on from here
//! ```
//!
//! The upper levels of a skip list are in the cache, and yet cost most of a batched search: each step is an
//! unpredictable turn of a coroutine. The guide replaces them by a search of a flat array, the same few steps for
//! every key, so that a group of keys runs it in lock-step. It is a snapshot: nodes that come later are found
//! through the list, and when the table has grown by a quarter a new guide is made. Starting from a node that is
//! before the target is always right, so a stale guide costs steps and nothing else.
//!
//! The prefix here is that of the key *behind the bytes that all keys share* (of the first and last key when the
//! guide is made), so keys like `user:0000012345` are told apart as well.
//!
//! Guides lie in the table's arena, counted in its use and freed with it.

use std::ptr::NonNull;

use super::comparator::KeyOrder;
use super::list::SkipList;
use super::node::{Header, Node, Target};

/// The level whose nodes the guide holds: one in 64 of all.
pub(super) const GUIDE_LEVEL: usize = 4;

/// Entries from which on a guide is worth having.
pub(super) const GUIDE_FROM: usize = 2048;

/// Keys that go through the guide in lock-step.
pub(super) const GROUP: usize = 8;

/// A guide, in the arena.
#[repr(C)]
pub(super) struct Guide {
    len: usize,
    shared_len: usize,
    prefixes: NonNull<u64>,
    nodes: NonNull<NonNull<Header>>,
    shared: NonNull<u8>,
}

impl Guide {
    /// Makes a guide of the nodes on `GUIDE_LEVEL`, if the arena has room. `old` only helps to prefetch.
    pub(super) fn build<'a>(list: &'a SkipList, old: Option<&Guide>) -> Option<&'a Guide> {
        let first = chain(list).next()?;
        let last = chain(list).last()?; // replaced below by one walk
        let shared = shared_prefix(list.order(), first.key(), last.key());
        let nodes: Vec<Node<'a>> = chain(list)
            .filter(|node| node.key().starts_with(shared))
            .collect();
        let _ = old;
        let len = nodes.len();
        let bytes = size_of::<Guide>() + len * 16 + shared.len().next_multiple_of(8);
        let place = list.arena().allocate(bytes).ok()?;
        // SAFETY: the parts lie one behind the other in the bytes just allocated for us alone, aligned to 8.
        unsafe {
            let guide = place.cast::<Guide>();
            let prefixes = guide.add(1).cast::<u64>();
            let places = prefixes.add(len).cast::<NonNull<Header>>();
            let shared_at = places.add(len).cast::<u8>();
            shared_at.copy_from_nonoverlapping(NonNull::from(shared).cast(), shared.len());
            for (i, node) in nodes.iter().enumerate() {
                prefixes
                    .add(i)
                    .write(list.order().prefix(&node.key()[shared.len()..]));
                places.add(i).write(node.into_raw());
            }
            guide.write(Guide {
                len,
                shared_len: shared.len(),
                prefixes,
                nodes: places,
                shared: shared_at,
            });
            Some(guide.as_ref())
        }
    }

    fn prefixes(&self) -> &[u64] {
        // SAFETY: `build` initialised `len` prefixes there, and they do not change.
        unsafe { NonNull::slice_from_raw_parts(self.prefixes, self.len).as_ref() }
    }

    fn shared(&self) -> &[u8] {
        // SAFETY: as above.
        unsafe { NonNull::slice_from_raw_parts(self.shared, self.shared_len).as_ref() }
    }

    /// The key's place among the guide's prefixes: nodes below the returned prefix are before the key.
    #[inline(always)]
    fn bound(&self, order: &KeyOrder, target: &Target<'_>) -> u64 {
        if self.shared_len == 0 {
            return target.prefix;
        }
        match target.key.strip_prefix(self.shared()) {
            Some(rest) => order.prefix(rest),
            None if target.key < self.shared() => 0,
            None => u64::MAX,
        }
    }

    /// For each target the last node that is certainly before it; none where it is before all.
    #[inline(always)]
    pub(super) fn enter<'a, const N: usize>(
        &'a self,
        order: &KeyOrder,
        targets: &[Target<'_>; N],
    ) -> [Option<Node<'a>>; N] {
        let prefixes = self.prefixes();
        let bounds: [u64; N] = std::array::from_fn(|i| self.bound(order, &targets[i]));
        let mut base = [0_usize; N];
        let mut size = self.len;
        // A binary search without branches: the range halves for every key alike.
        while size > 1 {
            let half = size / 2;
            for i in 0..N {
                // SAFETY: `base + size <= len` holds throughout, and `half < size`.
                let middle = unsafe { *prefixes.get_unchecked(base[i] + half) };
                base[i] =
                    std::hint::select_unpredictable(middle < bounds[i], base[i] + half, base[i]);
            }
            size -= half;
        }
        std::array::from_fn(|i| {
            // SAFETY: `base` is below `len`, which is not zero; the nodes were in the list, so they are for good.
            unsafe {
                (prefixes[base[i]] < bounds[i])
                    .then(|| Node::from_raw(self.nodes.add(base[i]).read()))
            }
        })
    }
}

fn chain(list: &SkipList) -> impl Iterator<Item = Node<'_>> {
    let mut at = list.head();
    std::iter::from_fn(move || {
        // SAFETY: the head has every level, and the others were reached on this one.
        at = unsafe { at.link(GUIDE_LEVEL) }.load().next?;
        Some(at)
    })
}

/// What the keys between two keys begin with.
fn shared_prefix<'k>(order: &KeyOrder, first: &'k [u8], last: &[u8]) -> &'k [u8] {
    let KeyOrder::Bytewise = order else {
        return &[];
    };
    let len = first.iter().zip(last).take_while(|(a, b)| a == b).count();
    &first[..len]
}
