//! The index: a sorted array of the tall nodes, through which a search enters the list half-way
//! down.
//!
//! ```text
//!   prefixes │ p0 │ p1 │ p2 │ …    sorted; searched without touching a node
//!   nodes    │ n0 │ n1 │ n2 │ …    every node that reached the index's level when it was built
//!                    │
//!   level 4  head ──►n0 ─────►n1 ──────►n2 ─►     the search continues from here
//! ```
//!
//! The upper levels of a skip list are in the cache, and yet they account for most of the cost of a
//! batched search, because each step is an unpredictable turn of a coroutine. The index replaces
//! them by a search of a flat array. The search takes the same few steps for every key, so a group
//! of keys runs it in lock-step. The index is a snapshot that is rebuilt when the table has grown
//! by a quarter, or beside a hash index to twice its size (`list_shape.rs`). Nodes added in between
//! are found through the list, by way of its upper levels where there are many. Starting from a
//! node before the target is always correct, so a stale index only costs extra steps.
//!
//! The prefix here is that of the key *after the bytes that all keys share* (those that the first
//! and last key shared when the index was built). So it also tells keys like `user:0000012345`
//! apart.
//!
//! Indexes are allocated in the table's arena, counted in its usage and freed with it.

use std::ptr::NonNull;

use super::node::{Header, Node, Target};
use super::skip_list::SkipList;
use crate::comparator::KeyOrder;

/// An index pays from this many entries on.
pub(super) const INDEXED_ENTRIES_MIN: usize = 2048;

/// Keys that go through the index in lock-step.
pub(super) const GROUP: usize = 8;

/// How far ahead of itself the walk that builds an index prefetches the nodes of the last index.
const AHEAD: usize = 16;

/// An index, in the arena.
#[repr(C)]
pub(super) struct SkipListIndex {
    len: usize,
    prefixes: NonNull<u64>,
    headers: NonNull<NonNull<Header>>,
    shared: NonNull<[u8]>,
}

impl SkipListIndex {
    /// Builds an index of the nodes on its level, if there are any and the arena has space.
    pub(super) fn build(list: &SkipList) -> Option<&SkipListIndex> {
        let nodes: Vec<Node<'_>> = tall_nodes(list).collect();
        let (first, last) = (nodes.first()?, nodes.last()?);
        let shared = shared_bytes(list.order(), first.key(), last.key());
        let len = nodes.len();
        let len_bytes = size_of::<SkipListIndex>()
            + len * (size_of::<u64>() + size_of::<NonNull<Header>>())
            + shared.len().next_multiple_of(align_of::<SkipListIndex>());
        let place = list.arena().allocate(len_bytes).ok()?;
        // SAFETY: the parts follow each other in the bytes just allocated for this call alone; each
        // is aligned to 8, as the allocation is, and written before it is read.
        unsafe {
            let index = place.cast::<SkipListIndex>();
            let prefixes = index.add(1).cast::<u64>();
            let headers = prefixes.add(len).cast::<NonNull<Header>>();
            let shared_start = headers.add(len).cast::<u8>();
            shared_start.copy_from_nonoverlapping(NonNull::from(shared).cast(), shared.len());
            for (i, node) in nodes.iter().enumerate() {
                // Every key between two keys begins with the bytes that both begin with.
                prefixes
                    .add(i)
                    .write(list.order().prefix(&node.key()[shared.len()..]));
                headers.add(i).write(node.into_raw());
            }
            let shared = NonNull::slice_from_raw_parts(shared_start, shared.len());
            index.write(SkipListIndex {
                len,
                prefixes,
                headers,
                shared,
            });
            Some(index.as_ref())
        }
    }

    fn prefixes(&self) -> &[u64] {
        // SAFETY: `build` initialised `len` prefixes there, and they do not change.
        unsafe { NonNull::slice_from_raw_parts(self.prefixes, self.len).as_ref() }
    }

    fn headers(&self) -> &[NonNull<Header>] {
        // SAFETY: `build` initialised `len` headers there, and they do not change.
        unsafe { NonNull::slice_from_raw_parts(self.headers, self.len).as_ref() }
    }

    /// The number with which a target is sought: a node with a smaller prefix is before the target.
    #[inline(always)]
    fn bound(&self, order: &KeyOrder, target: &Target<'_>) -> u64 {
        // SAFETY: `build` initialised these bytes, and they do not change.
        let shared = unsafe { self.shared.as_ref() };
        if shared.is_empty() {
            return target.prefix;
        }
        match target.key.strip_prefix(shared) {
            Some(rest) => order.prefix(rest),
            None if target.key < shared => 0,
            None => u64::MAX,
        }
    }

    /// For each target, the last node that is certainly before it, or none if the target is before
    /// all nodes.
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
        // A binary search without branches: the range halves for every key at once.
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
            // SAFETY: `base` is below `len`, which is not zero because `build` makes no empty
            // index.
            let (prefix, header) =
                unsafe { (*prefixes.get_unchecked(base[i]), self.headers.add(base[i])) };
            // SAFETY: `build` initialised the header's place with a node of the list, which lives
            // as long as the index.
            (prefix < bounds[i]).then(|| unsafe { Node::from_raw(header.read()) })
        })
    }
}

/// The nodes that reach the index's level, in order.
fn tall_nodes(list: &SkipList) -> impl Iterator<Item = Node<'_>> {
    let level = list.shape().index_level;
    let mut at = list.head();
    let mut ahead = list.index().map_or(&[][..], SkipListIndex::headers);
    std::iter::from_fn(move || {
        // SAFETY: the head has every level, and the others were reached on this one.
        at = unsafe { at.link(level) }.load().next?;
        if let [next, ..] = ahead
            && *next == at.into_raw()
        {
            if let Some(header) = ahead.get(AHEAD) {
                // SAFETY: the index holds nodes of the list.
                unsafe { Node::from_raw(*header) }.prefetch(level);
            }
            ahead = &ahead[1..];
        }
        Some(at)
    })
}

/// The bytes that two keys begin with, and therefore all keys between them. Only the default order
/// is known to keep such keys together.
fn shared_bytes<'k>(order: &KeyOrder, first: &'k [u8], last: &[u8]) -> &'k [u8] {
    let KeyOrder::Bytewise = order else {
        return &[];
    };
    let len = first.iter().zip(last).take_while(|(a, b)| a == b).count();
    &first[..len]
}
