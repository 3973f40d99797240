//! The skip list: one sorted chain of all nodes, and sparser chains above it for the descent.
//!
//! ```text
//!   level 2  head ────────────────────────────► c ───────────────► end
//!   level 1  head ──────────► b ──────────────► c ───────► e ────► end
//!   level 0  head ───► a ───► b ───► b' ──────► c ──► d ─► e ────► end
//!                             newer  older      user key ascending, sequence number descending
//! ```
//!
//! Nodes are only ever added, one compare-and-swap a level, and are freed with the whole list. A
//! reader therefore needs no lock, no retry and no reclamation, and a node once reached stays where
//! it is. The list is Pugh's ("Skip Lists: A Probabilistic Alternative to Balanced Trees", 1990),
//! with the concurrent insertion of RocksDB's `InlineSkipList`; `node.rs` describes the prefixes
//! beside its pointers.

use std::ptr::NonNull;

use forerun_core::CachePadded;
use forerun_core::sync::modelled::atomic::{AtomicPtr, AtomicUsize, Ordering};

use super::arena::{Arena, Full};
use super::list_shape::ListShape;
use super::node::{Draft, HEIGHT_MAX, Header, Node, Seal, Seen, Stands, Target};
use super::skip_list_index::{INDEXED_ENTRIES_MIN, SkipListIndex};
use crate::comparator::KeyOrder;
use crate::versions::{Kind, ReadPoint, SEQUENCE_MAX};

pub(super) struct SkipList {
    arena: Arena,
    order: KeyOrder,
    seal: Seal,
    shape: ListShape,
    /// The head's header: a node of full height before all others. It is in the arena, so it is
    /// valid as long as `self`.
    head: NonNull<Header>,
    /// The height of the tallest tower that is, or is about to be, in the list.
    height: AtomicUsize,
    /// The latest index; null until there is one.
    index: AtomicPtr<SkipListIndex>,
    /// The number of entries at which the next index is built.
    index_due: AtomicUsize,
    /// A statistic, which decides when to build an index. Every write changes it, and every search
    /// reads the fields above.
    entries: CachePadded<AtomicUsize>,
}

// SAFETY: `head` points into the arena, which the list owns; nodes are shared as `Node` is.
unsafe impl Send for SkipList {}
// SAFETY: as above; everything that changes is atomic.
unsafe impl Sync for SkipList {}

impl SkipList {
    /// An empty list in an empty arena.
    pub(super) fn new(
        arena: Arena,
        order: KeyOrder,
        seal: Seal,
        shape: ListShape,
    ) -> Result<Self, Full> {
        let draft = Draft {
            key: &[],
            value: &[],
            kind: Kind::Deletion,
            height: HEIGHT_MAX,
            seal,
        };
        let place = arena.allocate(draft.size_bytes())?;
        // SAFETY: `place` is the start of `size_bytes` bytes that the arena has just given to us
        // alone.
        let head = unsafe { draft.write(&arena, place) }.into_raw();
        Ok(SkipList {
            arena,
            order,
            seal,
            shape,
            head,
            height: AtomicUsize::new(1),
            index: AtomicPtr::new(std::ptr::null_mut()),
            index_due: AtomicUsize::new(INDEXED_ENTRIES_MIN),
            entries: CachePadded::new(AtomicUsize::new(0)),
        })
    }

    pub(super) fn arena(&self) -> &Arena {
        &self.arena
    }

    #[inline(always)]
    pub(super) fn order(&self) -> &KeyOrder {
        &self.order
    }

    pub(super) fn seal(&self) -> Seal {
        self.seal
    }

    #[inline(always)]
    pub(super) fn shape(&self) -> &ListShape {
        &self.shape
    }

    #[inline(always)]
    pub(super) fn head(&self) -> Node<'_> {
        // SAFETY: `new` wrote the head into the arena that `self` owns.
        unsafe { Node::from_raw(self.head) }
    }

    /// The level at which a search starts.
    #[inline(always)]
    pub(super) fn top_level(&self) -> usize {
        // Relaxed: any height of at least 1 gives a correct search; a stale one gives a longer
        // walk. Levels above it are reached through the head's links, which have their own
        // ordering.
        self.height.load(Ordering::Relaxed) - 1
    }

    /// See [`MemTable::synchronize`](super::MemTable::synchronize).
    pub(super) fn synchronize(&self) {
        // Acquire and Release: the changes of the number have one order. A batch that was counted
        // before is linked, and whoever counts one afterwards sees what the caller did.
        self.entries.fetch_add(0, Ordering::AcqRel);
    }

    pub(super) fn entries(&self) -> usize {
        // Relaxed: a statistic.
        self.entries.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(super) fn index(&self) -> Option<&SkipListIndex> {
        // Acquire: pairs with the release in `build_index_if_due`, so that the whole index is
        // visible.
        let index = self.index.load(Ordering::Acquire);
        // SAFETY: it is null or points to an index in the arena, which does not change any more.
        unsafe { index.as_ref() }
    }

    /// Counts inserted entries.
    pub(super) fn count(&self, inserted: usize) {
        // Acquire and Release: see `synchronize`.
        self.entries.fetch_add(inserted, Ordering::AcqRel);
    }

    /// Builds a new index if the last one is out of date. It asks `may_take` before it takes memory
    /// for one. Without the memory, searches are slower.
    pub(super) fn build_index_if_due(&self, may_take: &dyn Fn(usize) -> bool) {
        let entries = self.entries();
        let due = self.index_due.load(Ordering::Relaxed);
        // Relaxed: if several threads find the index due, the exchange lets one of them build it.
        let claim = || {
            let next = self.shape.index_due(entries);
            self.index_due
                .compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed)
        };
        if entries >= due
            && claim().is_ok()
            && let Some(index) = SkipListIndex::build(self, may_take)
        {
            // Release: publishes the index. If a slower thread replaces it with an older one, that
            // one is correct too.
            self.index
                .store(std::ptr::from_ref(index).cast_mut(), Ordering::Release);
        }
    }

    /// Numbers a node that is about to be inserted. Returns its place in the list.
    ///
    /// # Safety
    /// The node must have been drafted in this list's arena, be in no list, and be held by no other
    /// thread.
    #[inline(always)]
    pub(super) unsafe fn number<'a>(&self, node: Node<'a>, sequence: u64) -> Target<'a> {
        debug_assert!((1..=SEQUENCE_MAX).contains(&sequence));
        // SAFETY: no other thread holds the node.
        unsafe { node.number(sequence, self.seal) };
        let height = node.height();
        // Relaxed: see `top_level`. The height is read first, because an exchange would take its
        // line away from all other threads.
        if height > self.height.load(Ordering::Relaxed) {
            self.height.fetch_max(height, Ordering::Relaxed);
        }
        Target::new(&self.order, node.key(), ReadPoint::at(sequence))
    }

    /// The last node before `target` on a level, from one before it on, and the link there.
    ///
    /// # Safety
    /// `before` must reach up to `level` and be before `target`.
    #[inline]
    pub(super) unsafe fn advance<'a>(
        &'a self,
        mut before: Node<'a>,
        level: usize,
        target: &Target<'_>,
    ) -> (Node<'a>, Seen<'a>) {
        loop {
            // SAFETY: it reaches up to `level`, as every node reached along it does.
            let seen = unsafe { before.link(level) }.load();
            match seen.next {
                Some(next)
                    if seen.prefix <= target.prefix
                        && next.stands(&self.order, target) == Stands::Before =>
                {
                    before = next;
                }
                _ => return (before, seen),
            }
        }
    }

    /// Links a node in at one level, behind `before` or behind what other writers have put there
    /// meanwhile.
    ///
    /// # Safety
    /// `node` and `before` must reach up to `level`, and `before` be before `target`, which is the
    /// node's place.
    pub(super) unsafe fn link<'a>(
        &'a self,
        node: Node<'a>,
        target: &Target<'_>,
        level: usize,
        mut before: Node<'a>,
        mut seen: Seen<'a>,
    ) {
        loop {
            // SAFETY: both reach up to `level`, and so does every node reached along it.
            let (own, link) = unsafe { (node.link(level), before.link(level)) };
            own.aim(seen);
            if link.swing(seen.next, node, target.prefix) {
                return;
            }
            // Another writer was here first: continue from the same node, along this level only.
            // SAFETY: as above.
            (before, seen) = unsafe { self.advance(before, level, target) };
        }
    }
}
