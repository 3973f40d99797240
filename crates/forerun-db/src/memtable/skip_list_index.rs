//! The index: a sorted array of the tall nodes, through which a search enters the list half-way
//! down.
//!
//! ```text
//!   samples  │ p0 │ p8 │ p16 │ …   the first prefix of each cache line of the next row
//!   prefixes │ p0 │ p1 │ p2 │ …    sorted; searched without touching a node
//!   nodes    │ n0 │ n1 │ n2 │ …    every node that reached the index's level when it was built
//!                    │
//!   level 4  head ──►n0 ─────►n1 ──────►n2 ─►     the search continues from here
//! ```
//!
//! A search bisects the samples and then one line of prefixes. The prefixes of a large table do not
//! stay in the CPU's cache, and a bisection of all of them would read several lines; the samples
//! are an eighth of them.
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

use forerun_core::arch::prefetch_read;
use forerun_core::{CACHE_LINE_BYTES, interleave, suspend};

use super::node::{ALIGN_BYTES, HEIGHT_MAX, Header, Node, Target};
use super::skip_list::SkipList;
use crate::comparator::KeyOrder;

/// An index pays from this many entries on.
pub(super) const INDEXED_ENTRIES_MIN: usize = if cfg!(loom) { 2 } else { 2048 };

/// Keys that go through the index in lock-step.
pub(super) const GROUP: usize = 8;

/// The parts of the list that are walked along together when an index is built.
const PARTS: usize = 16;

/// The prefixes in a cache line.
const LINE: usize = CACHE_LINE_BYTES / size_of::<u64>();

/// An index, in the arena at the start of a cache line.
#[repr(C, align(64))]
pub(super) struct SkipListIndex {
    len: usize,
    /// They fill cache lines: the largest number stands behind the last one.
    prefixes: NonNull<u64>,
    /// In cache lines as the prefixes are.
    headers: NonNull<NonNull<Header>>,
    samples: NonNull<u64>,
    shared: NonNull<[u8]>,
}

impl SkipListIndex {
    /// Builds an index of the nodes on its level, if there are any, the arena has space, and
    /// `may_take`, which counts the memory if it agrees, does.
    pub(super) fn build<'a>(
        list: &'a SkipList,
        may_take: &dyn Fn(usize) -> bool,
    ) -> Option<&'a SkipListIndex> {
        // The last index is read before the ends of the list. Another thread may build the next
        // one meanwhile, and that one may have nodes beyond these ends.
        let known = list.index().map_or(&[][..], SkipListIndex::headers);
        let (first, last) = ends(list)?;
        let shared = shared_bytes(list.order(), first.key(), last.key());
        let parts = tall_nodes(list, known, (first, last), shared.len());
        let nodes = parts.iter().flatten();
        let len: usize = parts.iter().map(Vec::len).sum();
        let lines = len.div_ceil(LINE);
        let len_bytes = size_of::<SkipListIndex>()
            + lines * LINE * (size_of::<u64>() + size_of::<NonNull<Header>>())
            + lines * size_of::<u64>()
            + shared.len().next_multiple_of(ALIGN_BYTES);
        let end_of = |start: usize| {
            let start = start.next_multiple_of(align_of::<SkipListIndex>());
            start.saturating_add(len_bytes)
        };
        // What is counted includes the padding in front.
        if !may_take(len_bytes + align_of::<SkipListIndex>() - ALIGN_BYTES) {
            return None;
        }
        let (place, taken_bytes) = list.arena().allocate_with(end_of).ok()?;
        // SAFETY: the parts follow each other in the bytes just allocated for this call alone,
        // after the padding before them. Each is aligned, because the first starts a cache line and
        // all but the last are multiples of 8, and is written before it is read.
        unsafe {
            let index = place.add(taken_bytes - len_bytes).cast::<SkipListIndex>();
            let prefixes = index.add(1).cast::<u64>();
            let headers = prefixes.add(lines * LINE).cast::<NonNull<Header>>();
            let samples = headers.add(lines * LINE).cast::<u64>();
            let shared_start = samples.add(lines).cast::<u8>();
            shared_start.copy_from_nonoverlapping(NonNull::from(shared).cast(), shared.len());
            for (i, &(prefix, node)) in nodes.enumerate() {
                prefixes.add(i).write(prefix);
                if i % LINE == 0 {
                    samples.add(i / LINE).write(prefix);
                }
                headers.add(i).write(node.into_raw());
            }
            for i in len..lines * LINE {
                prefixes.add(i).write(u64::MAX);
            }
            let shared = NonNull::slice_from_raw_parts(shared_start, shared.len());
            index.write(SkipListIndex {
                len,
                prefixes,
                headers,
                samples,
                shared,
            });
            Some(index.as_ref())
        }
    }

    fn prefixes(&self) -> &[u64] {
        let len = self.len.next_multiple_of(LINE);
        // SAFETY: `build` initialised so many prefixes there, and they do not change.
        unsafe { NonNull::slice_from_raw_parts(self.prefixes, len).as_ref() }
    }

    fn samples(&self) -> &[u64] {
        let len = self.len.div_ceil(LINE);
        // SAFETY: `build` initialised so many samples there, and they do not change.
        unsafe { NonNull::slice_from_raw_parts(self.samples, len).as_ref() }
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
        let bounds: [u64; N] = std::array::from_fn(|i| self.bound(order, &targets[i]));
        let (prefixes, samples) = (self.prefixes(), self.samples());
        let mut at = [0; N];
        // SAFETY: the ranges are all of the samples, of which there is one or more.
        unsafe { last_below(samples, samples.len(), &bounds, &mut at) };
        for at in &mut at {
            *at *= LINE;
            // The lines of all ranges are fetched together, and so are those of the nodes' places.
            prefetch_read(self.prefixes.as_ptr().wrapping_add(*at));
            prefetch_read(self.headers.as_ptr().wrapping_add(*at));
        }
        // SAFETY: each range is the line of a sample, and all lines are full.
        unsafe { last_below(prefixes, LINE, &bounds, &mut at) };
        std::array::from_fn(|i| {
            // SAFETY: `last_below` left it within the line.
            let prefix = unsafe { *prefixes.get_unchecked(at[i]) };
            // SAFETY: a prefix below a number is not one that fills a line up, so `build`
            // initialised the header's place with a node of the list, which lives as long as the
            // index.
            (prefix < bounds[i]).then(|| unsafe { Node::from_raw(self.headers.add(at[i]).read()) })
        })
    }
}

/// For each bound, moves `at` from the start of a sorted range to the range's last value below the
/// bound; it stays if there is none. A bisection without branches: the ranges halve for all bounds
/// at once.
///
/// # Safety
/// All ranges must have `size` values, at least one, and lie within `values`.
#[inline(always)]
unsafe fn last_below<const N: usize>(
    values: &[u64],
    mut size: usize,
    bounds: &[u64; N],
    at: &mut [usize; N],
) {
    while size > 1 {
        let half = size / 2;
        for (at, bound) in at.iter_mut().zip(bounds) {
            // SAFETY: what is left of the range has `size` values from `at` on, and `half` is less.
            let middle = unsafe { *values.get_unchecked(*at + half) };
            *at = std::hint::select_unpredictable(middle < *bound, *at + half, *at);
        }
        size -= half;
    }
}

/// The first and the last node that reach the index's level, if there are any.
fn ends(list: &SkipList) -> Option<(Node<'_>, Node<'_>)> {
    let index_level = list.shape().index_level;
    // SAFETY: the head has every level.
    let first = unsafe { list.head().link(index_level) }.load().next?;
    let mut last = list.head();
    for level in (index_level..HEIGHT_MAX).rev() {
        // SAFETY: the head has every level, and the others were reached on this one or above.
        while let Some(next) = unsafe { last.link(level) }.load().next {
            last = next;
        }
    }
    Some((first, last))
}

/// The nodes from `first` to `last` that reach the index's level, in order and in parts, each with
/// the prefix of its key after the bytes that all these keys share.
///
/// A walk along a list waits for each node. But some nodes between the two that are known, those of
/// the last index, divide the list into parts, and the walks along several parts wait together.
fn tall_nodes<'a>(
    list: &'a SkipList,
    known: &[NonNull<Header>],
    (first, last): (Node<'a>, Node<'a>),
    shared_bytes: usize,
) -> [Vec<(u64, Node<'a>)>; PARTS] {
    let parts = known.len().clamp(1, PARTS);
    let start = |part| match part {
        0 => first,
        part if part == parts => last,
        // SAFETY: an index holds nodes of the list.
        part => unsafe { Node::from_raw(known[part * known.len() / parts]) },
    };
    let with_prefix = |node: Node<'a>| (list.order().prefix(&node.key()[shared_bytes..]), node);
    let walk = |mut at: Node<'a>, end: Node<'a>| async move {
        let mut nodes = Vec::new();
        while at != end {
            nodes.push(with_prefix(at));
            // SAFETY: every node of the walk was reached on this level.
            let next = unsafe { at.link(list.shape().index_level) }.load().next;
            let Some(next) = next else { break };
            next.prefetch(list.shape().index_level);
            suspend().await;
            at = next;
        }
        nodes
    };
    let mut found = [const { Vec::new() }; PARTS];
    let walks = (0..parts).map(|part| walk(start(part), start(part + 1)));
    interleave::<PARTS, _>(walks, |part, nodes| found[part] = nodes);
    found[parts - 1].push(with_prefix(last));
    found
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

#[cfg(all(test, not(loom)))]
mod tests {
    use forerun_core::Pages;

    use super::*;
    use crate::Op;
    use crate::memtable::node::Stands;
    use crate::memtable::{MemTable, MemTableConfig};
    use crate::testing::random::Random;
    use crate::versions::ReadPoint;

    /// Keys of which many share their first eight bytes, and perhaps more bytes before those.
    fn key(random: &mut Random, front: &[u8]) -> Vec<u8> {
        let first = [0, u64::MAX, random.below(40) << 40, random.below(1 << 60)];
        let first = first[random.index(4)].to_be_bytes();
        [front, &first, &random.below(9).to_be_bytes()].concat()
    }

    #[test]
    fn an_index_is_not_built_before_the_entries_that_make_it_due_are_published() {
        let config = MemTableConfig::default()
            .limit_bytes(4 << 20)
            .pages(Pages::Small);
        let table = MemTable::new(config).unwrap();
        let keys: Vec<_> = (0..INDEXED_ENTRIES_MIN).map(usize::to_be_bytes).collect();
        let ops = keys.iter().map(|key| Op::Put { key, value: b"" });
        table.prepare(ops).unwrap().publish_as(1..);
        assert!(table.list.index().is_none());
        table.build_index_if_due(&|_| true);
        assert!(table.list.index().is_some());
    }

    #[test]
    fn an_index_has_all_nodes_of_its_level_and_a_group_enters_at_the_last_before_each_target() {
        for (seed, front) in [&b""[..], b"user:"]
            .into_iter()
            .cycle()
            .take(60)
            .enumerate()
        {
            let random = &mut Random(seed as u64);
            let config = MemTableConfig::default()
                .limit_bytes(4 << 20)
                .hash_index(seed % 3 == 0)
                .pages(Pages::Small);
            let table = MemTable::new(config).unwrap();
            let len = 20 << (seed % 10);
            for (first_sequence, len) in [(1, len), (1 + len, len / 10)] {
                let keys: Vec<_> = (0..len).map(|_| key(random, front)).collect();
                let ops = keys.iter().map(|key| Op::Put { key, value: b"" });
                table.prepare(ops).unwrap().publish(first_sequence);
            }
            let list = &table.list;
            // A large table has an index, which does not know the second batch.
            assert_eq!(list.index().is_some(), len as usize >= INDEXED_ENTRIES_MIN);
            let (mut nodes, mut at) = (Vec::new(), list.head());
            // SAFETY: the head has every level, and the others were reached on this one.
            while let Some(next) = unsafe { at.link(list.shape().index_level) }.load().next {
                nodes.push(next);
                at = next;
            }
            let Some(index) = SkipListIndex::build(list, &|_| true) else {
                assert!(nodes.is_empty());
                continue;
            };
            let headers = nodes.iter().map(|node| node.into_raw());
            assert!(headers.eq(index.headers().iter().copied()));
            // SAFETY: `build` initialised these bytes.
            let shared = unsafe { index.shared.as_ref() }.len();
            for _ in 0..50 {
                let sought: [_; GROUP] = std::array::from_fn(|_| key(random, front));
                let targets = std::array::from_fn(|i| {
                    Target::new(list.order(), &sought[i], ReadPoint::at(1))
                });
                let entered: [_; GROUP] = index.enter(list.order(), &targets);
                for (target, entered) in targets.iter().zip(entered) {
                    let bound = index.bound(list.order(), target);
                    let is_below =
                        |node: &&Node<'_>| list.order().prefix(&node.key()[shared..]) < bound;
                    assert!(entered == nodes.iter().rev().find(is_below).copied());
                    let is_before =
                        |node: Node<'_>| node.stands(list.order(), target) == Stands::Before;
                    assert!(entered.is_none_or(is_before));
                    assert!([entered] == index.enter(list.order(), &[*target]));
                }
            }
        }
    }
}
