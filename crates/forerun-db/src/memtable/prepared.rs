//! Writes on their way into the list: first copied into the arena, later numbered and linked.
//!
//! A store must know that a batch fits before it logs the batch, and learns its sequence numbers
//! only afterwards. So a batch is drafted as nodes in one block of the arena, chained in order
//! through their lowest links, which are not yet in use:
//!
//! ```text
//!   block   | node 0 | node 1 | node 2 |
//!               └──link 0─► └──link 0─► └─► end
//! ```
//!
//! The batch is an iterator that is consumed twice: once to size the block and once to fill it.
//! Nothing forces both passes to yield the same operations, so each node is checked against the
//! rest of the block before it is written.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use forerun_core::sync::random_seed;
use forerun_core::{CACHE_LINE_BYTES, split_mix64};

use super::arena::Full;
use super::ascending_run::{RUN_FROM, insert_run};
use super::hash_index::HashIndex;
use super::insertion::{insert, insert_all};
use super::list_shape::{ListShape, Placement};
use super::node::{ALIGN_BYTES, Draft, HEIGHT_MAX, Node, Seen};
use super::skip_list::SkipList;
use crate::versions::Kind;
use crate::{KEY_BYTES_MAX, Op, VALUE_BYTES_MAX};

/// The insertions of a batch of at least this many entries are interleaved.
const INTERLEAVE_FROM: usize = 4;

/// Why a batch was rejected.
#[derive(Debug)]
pub(super) enum Refused {
    Full(Full),
    /// The second pass over the iterator yielded different operations from the first.
    Changed,
}

/// A batch of writes that has its place in memory but is not yet visible.
///
/// Dropped without being published, it leaves no trace except, at times, the memory it took.
#[must_use = "nothing is visible before it is published"]
pub struct Prepared<'a> {
    list: &'a SkipList,
    hash_index: Option<&'a HashIndex>,
    first: Option<Node<'a>>,
    /// The last node, if each key is after the one before it and there are enough for a run.
    ascends_to: Option<Node<'a>>,
    entries: usize,
    block: NonNull<u8>,
    block_bytes: usize,
}

// SAFETY: the nodes of the block belong to this value alone until they are published.
unsafe impl Send for Prepared<'_> {}

impl<'a> Prepared<'a> {
    pub(super) fn new<'op>(
        list: &'a SkipList,
        hash_index: Option<&'a HashIndex>,
        ops: impl Iterator<Item = Op<'op>> + Clone,
    ) -> Result<Self, Refused> {
        // The heights are drawn twice from one seed: once to compute the size, once to write.
        let seed = Heights::draw(list.shape());
        let placement = list.shape().placement;
        let size_from = |start| {
            let mut drafts = drafts(list, ops.clone(), seed);
            let end = drafts.try_fold(start, |at, draft| {
                let end = draft.start(at, placement).checked_add(draft.size_bytes())?;
                // Far beyond any arena, and far enough from the last address to keep the next node
                // from overflowing.
                (end <= isize::MAX as usize / 2).then_some(end)
            });
            end.unwrap_or(isize::MAX as usize / 2) - start
        };
        // The size depends on where in a cache line the block starts, and is computed once for each
        // such place. If it were computed whenever another thread has taken memory meanwhile,
        // writers of small batches could keep a large one from ever getting its own.
        let sizes = [const { Cell::new(0) }; CACHE_LINE_BYTES / ALIGN_BYTES];
        let end_of = |start: usize| {
            let in_line = match placement {
                Placement::Aligned => start % CACHE_LINE_BYTES,
                Placement::Packed => 0,
            };
            let size = &sizes[in_line / ALIGN_BYTES];
            if size.get() == 0 {
                size.set(size_from(in_line));
            }
            start.saturating_add(size.get())
        };
        let allocated = list.arena().allocate_with(end_of);
        let (block, block_bytes) = allocated.map_err(Refused::Full)?;
        let mut prepared = Prepared {
            list,
            hash_index,
            first: None,
            ascends_to: None,
            entries: 0,
            block,
            block_bytes,
        };
        let block_start = list.arena().offset(block);
        let block_end = block_start + block_bytes;
        let mut at = block_start;
        let mut last: Option<Node<'a>> = None;
        // Code of the user, which may panic, is not called here.
        let mut ascends = !list.order().may_panic();
        for draft in drafts(list, ops, seed) {
            let start = draft.start(at, placement);
            // The lengths are checked again too, since a node keeps each in 32 bits.
            let is_long = draft.key.len() > KEY_BYTES_MAX || draft.value.len() > VALUE_BYTES_MAX;
            let free_bytes = block_end.saturating_sub(start);
            if is_long || draft.size_bytes() > free_bytes {
                return Err(Refused::Changed);
            }
            // SAFETY: the node ends within the block, as was just checked, and nobody else uses the
            // block; it is aligned because every start and size is a multiple of the alignment; its
            // lengths fit.
            let node = unsafe { draft.write(list.arena(), block.add(start - block_start)) };
            at = start + draft.size_bytes();
            match last.replace(node) {
                None => prepared.first = Some(node),
                Some(last) => {
                    ascends = ascends && list.order().compare(last.key(), node.key()).is_lt();
                    // SAFETY: every node has level 0.
                    unsafe { last.link(0) }.aim(Seen {
                        next: Some(node),
                        prefix: 0,
                    });
                }
            }
            prepared.entries += 1;
        }
        prepared.ascends_to = last.filter(|_| ascends && prepared.entries >= RUN_FROM);
        if at == block_end {
            Ok(prepared)
        } else {
            Err(Refused::Changed)
        }
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.entries
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Bytes of the table's memory that the entries take.
    pub(crate) fn bytes(&self) -> usize {
        self.block_bytes
    }

    /// Gives the memory of the entries back, which are not published. Returns how much of it stays
    /// in use, because other entries have followed.
    pub(crate) fn give_back(self) -> usize {
        let prepared = ManuallyDrop::new(self);
        let (block, block_bytes) = (prepared.block, prepared.block_bytes);
        if prepared.list.arena().give_back(block, block_bytes) {
            0
        } else {
            block_bytes
        }
    }

    /// Lets the hash index grow for the entries. It calls `may_take` before it takes memory, and
    /// keeps the memory whether the entries are published or not. Without the memory, lookups are
    /// slower.
    pub(crate) fn grow_index(&self, may_take: &dyn Fn(usize) -> bool) {
        if let Some(index) = self.hash_index {
            let entries = self.list.entries() + self.entries;
            index.make_space(self.list.arena(), entries, self.entries, may_take);
        }
    }

    /// Makes the entries visible to readers at `first_sequence` and above. The `i`th entry gets the
    /// sequence number `first_sequence + i`. Sequence numbers start at 1 and are below 2⁵⁶, and no
    /// two entries of a memtable share one.
    ///
    /// Several threads may publish at once. When this returns, every search that starts later finds
    /// the entries.
    ///
    /// ```
    /// use forerun_db::Op;
    /// use forerun_db::memtable::{MemTable, MemTableConfig};
    ///
    /// let table = MemTable::new(MemTableConfig::default())?;
    /// let prepared = table.prepare([Op::Put { key: b"a", value: b"1" }].into_iter())?;
    /// assert_eq!(table.stats().entries, 0); // not yet visible
    /// prepared.publish(1);
    /// assert_eq!(table.stats().entries, 1);
    /// # Ok::<(), forerun_db::Error>(())
    /// ```
    ///
    /// # Panics
    /// If the table's comparator panics. Some of the entries may be visible then, and the others
    /// never will be.
    pub fn publish(self, first_sequence: u64) {
        let list = self.list;
        self.publish_as(first_sequence..);
        list.build_index_if_due(&|_| true);
    }

    /// [`publish`](Self::publish) for entries that are only some of a batch: each gets a number of
    /// its own, ascending. There must be at least as many numbers as entries. The skip-list index
    /// may then be out of date, until
    /// [`build_index_if_due`](super::MemTable::build_index_if_due): that takes long, and writers of
    /// later numbers wait until these entries are visible.
    pub(crate) fn publish_as(self, sequences: impl Iterator<Item = u64>) {
        let prepared = ManuallyDrop::new(self);
        let (list, hash_index) = (prepared.list, prepared.hash_index);
        let mut next = prepared.first;
        let nodes = std::iter::from_fn(move || {
            let node = next?;
            // SAFETY: every node has level 0. The link still chains the block; insertion sets it
            // again later.
            next = unsafe { node.link(0) }.load().next;
            Some(node)
        });
        let mut numbered = nodes.zip(sequences);
        let mut with_other_version = 0;
        if prepared.entries < INTERLEAVE_FROM {
            for (node, sequence) in numbered {
                // SAFETY: `new` drafted the node in this list's arena, the chain yields it once,
                // and `self` is consumed.
                let has_other = unsafe { insert(list, hash_index, node, sequence) };
                with_other_version += usize::from(has_other);
            }
        } else {
            if let Some(ends) = prepared.first.zip(prepared.ascends_to) {
                // SAFETY: as above, for each node.
                with_other_version = unsafe { insert_run(list, hash_index, ends, &mut numbered) };
            }
            // SAFETY: as above.
            with_other_version += unsafe { insert_all(list, hash_index, numbered) };
        }
        if let Some(index) = hash_index {
            index.count_versions(with_other_version);
        }
        list.count(prepared.entries);
    }
}

impl Drop for Prepared<'_> {
    fn drop(&mut self) {
        self.list.arena().give_back(self.block, self.block_bytes);
    }
}

fn drafts<'op>(
    list: &SkipList,
    ops: impl Iterator<Item = Op<'op>>,
    mut heights: Heights,
) -> impl Iterator<Item = Draft<'op>> {
    let seal = list.seal();
    ops.map(move |op| {
        let (key, value, kind) = match op {
            Op::Put { key, value } => (key, value, Kind::Value),
            Op::Delete { key } => (key, &[][..], Kind::Deletion),
            // A memtable alone has nowhere to keep the rest of the range. The store keeps ranges
            // beside the table and prepares only the other operations of the batch.
            Op::DeleteRange { start, .. } => (start, &[][..], Kind::Deletion),
        };
        Draft {
            key,
            value,
            kind,
            height: heights.next(),
            seal,
        }
    })
}

/// Tower heights: level 1 holds one in `1 << low_fan_out_bits` of the nodes, and each level above
/// half of those of the level below. Measured in docs/internals/performance.md.
#[derive(Clone, Copy)]
struct Heights {
    state: u64,
    low_fan_out_bits: u32,
}

impl Heights {
    fn draw(shape: &ListShape) -> Self {
        thread_local! {
            static STATE: Cell<u64> = Cell::new(random_seed());
        }
        // The seed is mixed, not merely incremented: a batch steps on from its seed, and seeds one
        // step apart would give batch after batch the same heights, shifted by one.
        Heights {
            state: STATE.with(|shared| {
                let mut state = shared.get();
                let seed = split_mix64(&mut state);
                shared.set(state);
                seed
            }),
            low_fan_out_bits: shape.low_fan_out_bits,
        }
    }

    /// A random number, read as coin tosses.
    fn next(&mut self) -> usize {
        let tosses = split_mix64(&mut self.state).trailing_zeros();
        let height = 1 + (tosses + 1).saturating_sub(self.low_fan_out_bits);
        height.min(HEIGHT_MAX as u32) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPES: [ListShape; 2] = [ListShape::SEARCHED, ListShape::BESIDE_A_HASH_INDEX];

    #[test]
    fn batches_one_after_the_other_draw_heights_of_their_own() {
        // 200 batches of 1024: if each were the one before shifted by one, the test would see only
        // the tallest of 1223 heights.
        for shape in SHAPES {
            let batch = || {
                let mut heights = Heights::draw(&shape);
                std::array::from_fn::<usize, 1024, _>(|_| heights.next())
            };
            let batches: Vec<_> = (0..200).map(|_| batch()).collect();
            for two in batches.windows(2) {
                assert_ne!(two[0][1..], two[1][..1023]);
            }
            let tall = batches
                .as_flattened()
                .iter()
                .filter(|&&height| height > 11 - shape.low_fan_out_bits as usize);
            let expected = 200 * 1024 / (1 << 10);
            assert!((expected / 2..expected * 2).contains(&tall.count()));
        }
    }

    #[test]
    fn each_level_holds_its_share_of_the_nodes_below() {
        for shape in SHAPES {
            let mut heights = Heights::draw(&shape);
            let mut at_least = [0_u32; HEIGHT_MAX + 1];
            let n = 200_000;
            for _ in 0..n {
                let height = heights.next();
                assert!((1..=HEIGHT_MAX).contains(&height));
                at_least[height] += 1;
            }
            for height in (1..HEIGHT_MAX).rev() {
                at_least[height] += at_least[height + 1];
            }
            assert_eq!(at_least[1], n);
            for height in 1..4 {
                let fan_out_bits = if height == 1 {
                    shape.low_fan_out_bits
                } else {
                    1
                };
                let fan_out = f64::from(1_u32 << fan_out_bits);
                let share = f64::from(at_least[height + 1]) / f64::from(at_least[height]);
                assert!(
                    (share * fan_out - 1.0).abs() < 0.05,
                    "level {height}: {share}"
                );
            }
        }
    }
}
