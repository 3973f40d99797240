//! Blocks: where items lie, one behind the other, with those that expire at about the same time.
//!
//! ```text
//!   mapping     │ block 0 │ block 1 │ block 2 │ …              as much as the memory limit; costs nothing until it is touched
//!   block       │ item │ item │ item │ … tail     free │       filled from the front, never changed, emptied as a whole
//!
//!   open        [new | kept] x [class]  ─▶ the block that takes such items now
//!   queues      new  ▶ 7 ▶ 3 ▶ 9        kept ▶ 1 ▶ 4 ▶ …       by the order in which they were opened
//!   free        blocks that are empty; ones that the system has back; ones that were never used
//! ```
//!
//! Overwriting and deleting leave dead bytes behind. A block is emptied by whoever makes room ([`crate::evict`]): what is alive and worth
//! keeping is copied to another block, and after a grace period this one is free.

#![allow(
    unsafe_code,
    reason = "the mapping's bytes are read and written as items"
)]

mod class;
mod meta;
pub(crate) mod record;

use crate::budget::{Budget, Purpose};
use crate::epoch::Pinned;
use crate::flush::Moment;
use crate::index::bucket::ItemRef;
use crate::sync::unpoisoned;
use crate::value::LargeValue;
use class::{CLASSES_MAX, Classes};
use forerun_core::arch::{CACHE_LINE_BYTES, prefetch_read};
use forerun_core::sync::{Mutex, MutexGuard};
use forerun_core::{Pages, Region, RegionError};
use meta::Meta;
pub(crate) use meta::Queue;
use record::{NewRecord, Record};
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// No block is open.
const NONE: u32 = u32::MAX;

/// Blocks that only the evictor may take: what it keeps has to go somewhere.
const EVICTOR_RESERVE: usize = 2;

/// The blocks of a cache.
#[derive(Debug)]
pub(crate) struct Blocks {
    region: Region,
    block_bytes: usize,
    metas: Box<[Meta]>,
    classes: Classes,
    open: [Box<[AtomicU32]>; 2],
    pool: Mutex<Pool>,
    /// How many blocks a writer could take at once, so that one can ask without the lock.
    available: AtomicUsize,
    /// The system did not take the last block back that it was given.
    is_release_refused: AtomicBool,
    budget: Arc<Budget>,
}

/// Which blocks are where.
#[derive(Debug, Default)]
struct Pool {
    /// Empty, and charged.
    free: Vec<u32>,
    /// Empty, and given back to the system.
    released: Vec<u32>,
    /// Blocks from this one on were never used.
    unused: u32,
    /// In use.
    queues: [VecDeque<u32>; 2],
}

/// Who takes a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Requester {
    Writer,
    Evictor,
}

/// Why a block is emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// All its items have expired or were flushed.
    Expired,
    /// Much of it is dead.
    Sparse,
    /// It is its turn.
    Oldest,
}

/// A block to be emptied, that no writer is in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Victim {
    pub(crate) block: u32,
    pub(crate) queue: Queue,
    pub(crate) reason: Reason,
    /// Where the items end.
    pub(crate) tail: usize,
}

/// Room for an item that is taken: to be published or given up.
#[derive(Debug)]
#[must_use = "a block waits for its items"]
pub(crate) struct Allocation {
    pub(crate) item: ItemRef,
    block: u32,
}

impl Blocks {
    /// The length of the blocks of a cache: the memory is some hundred of them, or thousands.
    pub(crate) fn block_bytes(limit_bytes: usize) -> usize {
        let share_bytes = (limit_bytes / 128).clamp(32 << 10, 1 << 20);
        1 << share_bytes.ilog2()
    }

    /// No blocks yet, within a budget whose limit may be raised to `max_bytes`.
    pub(crate) fn new(
        pages: Pages,
        budget: &Arc<Budget>,
        max_bytes: usize,
    ) -> Result<Blocks, RegionError> {
        let block_bytes = Blocks::block_bytes(budget.limit_bytes());
        let reach = ItemRef::REACH_BYTES / block_bytes - 1;
        let len = (max_bytes / block_bytes).min(reach);
        let blocks = Blocks {
            region: Region::new(len * block_bytes, pages)?,
            block_bytes,
            metas: (0..len).map(|_| Meta::default()).collect(),
            classes: Classes::for_blocks((budget.limit_bytes() / block_bytes).min(reach)),
            open: Queue::ALL.map(|_| (0..CLASSES_MAX).map(|_| AtomicU32::new(NONE)).collect()),
            pool: Mutex::default(),
            available: AtomicUsize::new(0),
            is_release_refused: AtomicBool::new(false),
            budget: Arc::clone(budget),
        };
        {
            let mut pool = blocks.pool();
            for _ in 0..EVICTOR_RESERVE {
                if let Some(block) = blocks.charge_one(&mut pool) {
                    pool.free.push(block);
                }
            }
        }
        Ok(blocks)
    }

    /// Bytes of what is held however many blocks there are.
    pub(crate) fn fixed_bytes(&self) -> usize {
        let open = self
            .open
            .iter()
            .map(|open| size_of_val(&**open))
            .sum::<usize>();
        size_of_val(&*self.metas) + open + self.metas.len() * 2 * size_of::<u32>()
    }

    /// The largest item that goes into a block; others have mappings of their own.
    pub(crate) fn item_bytes_max(&self) -> usize {
        self.block_bytes / 8
    }

    pub(crate) fn len_bytes(&self) -> usize {
        self.block_bytes
    }

    /// The class of an item.
    pub(crate) fn class(&self, expiry: u32, now: u32) -> usize {
        self.classes.of(expiry, now)
    }

    /// The class and the queue of an item that is there.
    pub(crate) fn class_and_queue(&self, item: ItemRef) -> (usize, Queue) {
        let meta = self.meta_of(item);
        (meta.class(), meta.queue())
    }

    /// Reads an item that was found in the index under this pin, was written by the pin's holder just now, or lies in a victim of his. That is a
    /// promise of the whole crate: it is where all its references come from, none is kept beyond its pin.
    #[inline(always)]
    pub(crate) fn record<'p>(&self, _: &'p Pinned<'_>, item: ItemRef) -> Record<'p> {
        // SAFETY: an item that is in the index was written there before, within the region, and its block is used again only
        // after all pins of those who could have found it; what the holder has written is pending in its block; a victim is used
        // again after its holder has retired it.
        unsafe { Record::new(self.place(item.offset_bytes())) }
    }

    /// The share of its large value that an item owns, if it has one. For who took the item out of the index, once, to be dropped
    /// after a grace period.
    pub(crate) fn take_large(&self, record: Record<'_>) -> Option<Arc<LargeValue>> {
        // SAFETY: `Cache::retire_item` alone calls this, for an item that its caller has removed or replaced under the segment's lock, and so
        // once; the share goes to limbo.
        unsafe { record.take_large() }
    }

    #[inline(always)]
    fn place(&self, offset_bytes: usize) -> NonNull<u8> {
        debug_assert!(offset_bytes < self.region.len());
        // SAFETY: references are made from offsets within the region, whose base is not null.
        unsafe { NonNull::new_unchecked(self.region.as_ptr().add(offset_bytes)) }
    }

    /// Asks for the first two lines of an item: header and key mostly, and the beginning of the value.
    #[inline(always)]
    pub(crate) fn prefetch(&self, item: ItemRef) {
        let place = self.region.as_ptr().wrapping_add(item.offset_bytes());
        prefetch_read(place);
        prefetch_read(place.wrapping_add(CACHE_LINE_BYTES));
    }

    /// Takes room for an item and writes it there. `None`: there is no block to be had.
    ///
    /// The caller is pinned, and stays so until the item is settled.
    pub(crate) fn write(
        &self,
        queue: Queue,
        class: usize,
        record: &NewRecord<'_>,
        requester: Requester,
    ) -> Option<Allocation> {
        let allocation = self.allocate(queue, class, record.size_bytes(), requester)?;
        // SAFETY: `allocate` gave as many bytes, to this caller only.
        unsafe { record.write(self.place(allocation.item.offset_bytes())) };
        Some(allocation)
    }

    /// Copies an item of a victim to another block. The item's segment is locked.
    pub(crate) fn copy(
        &self,
        queue: Queue,
        class: usize,
        record: Record<'_>,
        frequency: u8,
    ) -> Option<Allocation> {
        let allocation = self.allocate(queue, class, record.size_bytes(), Requester::Evictor)?;
        // SAFETY: as in `write`; the segment is locked, by this function's contract.
        unsafe {
            record::copy(
                record,
                self.place(allocation.item.offset_bytes()),
                frequency,
            )
        };
        Some(allocation)
    }

    fn allocate(
        &self,
        queue: Queue,
        class: usize,
        bytes: usize,
        requester: Requester,
    ) -> Option<Allocation> {
        let open = &self.open[queue as usize][class];
        loop {
            // Acquire: the block was reset before it was opened.
            let block = open.load(Ordering::Acquire);
            if let Some(meta) = self.metas.get(block as usize)
                && let Some(offset) = meta.try_take(bytes, self.block_bytes)
            {
                let item = ItemRef::from_offset(block as usize * self.block_bytes + offset);
                return Some(Allocation { item, block });
            }
            self.open_another(queue, class, block, requester)?;
        }
    }

    /// Opens a block in the place of `full`, unless somebody did.
    fn open_another(
        &self,
        queue: Queue,
        class: usize,
        full: u32,
        requester: Requester,
    ) -> Option<()> {
        let open = &self.open[queue as usize][class];
        let mut pool = self.pool();
        // Relaxed: it changes under the pool's lock only.
        if open.load(Ordering::Relaxed) != full {
            return Some(());
        }
        let block = self.allocate_block(&mut pool, requester)?;
        self.metas[block as usize].reset(queue, class);
        if let Some(full) = self.metas.get(full as usize) {
            full.seal();
        }
        pool.queues[queue as usize].push_back(block);
        // Release: who finds it open finds it reset.
        open.store(block, Ordering::Release);
        Some(())
    }

    fn allocate_block(&self, pool: &mut Pool, requester: Requester) -> Option<u32> {
        let kept = match requester {
            Requester::Writer => EVICTOR_RESERVE,
            Requester::Evictor => 0,
        };
        let block = if pool.free.len() > kept {
            pool.free.pop()
        } else {
            self.charge_one(pool)
        };
        self.update_available(pool);
        block
    }

    /// An empty block that is not charged yet, if it is within the limit.
    fn charge_one(&self, pool: &mut Pool) -> Option<u32> {
        let is_left = !pool.released.is_empty() || (pool.unused as usize) < self.metas.len();
        if !is_left || !self.budget.try_charge(Purpose::Blocks, self.block_bytes) {
            return None;
        }
        pool.released.pop().or_else(|| {
            pool.unused += 1;
            Some(pool.unused - 1)
        })
    }

    /// Charges a block that the system has not given yet, and has it given, so that the writer who comes to take it need not
    /// wait: a page of 2 MiB costs as much as thousands of stores. `false`: there are `ahead` at hand, none is left that was
    /// never used, or nothing was ever stored.
    pub(crate) fn touch_one_ahead(&self, ahead: usize) -> bool {
        let block = {
            let mut pool = self.pool();
            let is_in_use = pool.queues.iter().any(|queue| !queue.is_empty());
            // What was given back was wanted for something else, and would be again.
            let is_fresh = pool.released.is_empty();
            if !is_in_use || !is_fresh || pool.free.len() >= EVICTOR_RESERVE + ahead {
                return false;
            }
            match self.charge_one(&mut pool) {
                Some(block) => block,
                None => return false,
            }
        };
        self.region
            .populate(block as usize * self.block_bytes, self.block_bytes);
        self.free(block);
        true
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        unpoisoned(self.pool.lock())
    }

    fn update_available(&self, pool: &Pool) {
        // Relaxed: an advice.
        let available = pool.free.len().saturating_sub(EVICTOR_RESERVE);
        self.available.store(available, Ordering::Relaxed);
    }

    /// Free blocks that a writer could take, beside those that the budget has room for.
    pub(crate) fn available(&self) -> usize {
        self.available.load(Ordering::Relaxed)
    }

    /// The item goes into the index now: its bytes live.
    pub(crate) fn mark_live(&self, item: ItemRef, record: Record<'_>, flushes: u64) {
        self.meta_of(item)
            .add_live(record.size_bytes(), record.expiry(), flushes);
    }

    /// The item is out of the index: its bytes are dead.
    pub(crate) fn mark_dead(&self, item: ItemRef, bytes: usize) {
        self.meta_of(item).remove_live(bytes);
    }

    /// An item's expiry was put off, in place.
    pub(crate) fn extend(&self, item: ItemRef, expiry: u32) {
        self.meta_of(item).extend(expiry);
    }

    /// The item is in the index, or given up.
    pub(crate) fn finish_write(&self, allocation: Allocation) {
        self.metas[allocation.block as usize].finish_write();
    }

    fn meta_of(&self, item: ItemRef) -> &Meta {
        &self.metas[item.offset_bytes() / self.block_bytes]
    }

    /// A block is empty, and nobody reads in it.
    pub(crate) fn free(&self, block: u32) {
        let mut pool = self.pool();
        pool.free.push(block);
        self.update_available(&pool);
    }

    /// Gives a free block's memory back to the system, for something else to be charged. `false`: there is none, or the system
    /// does not take it and it stays charged.
    pub(crate) fn release_one(&self) -> bool {
        let mut pool = self.pool();
        if pool.free.len() <= EVICTOR_RESERVE {
            return false;
        }
        let Some(block) = pool.free.pop() else {
            return false;
        };
        let offset = block as usize * self.block_bytes;
        // SAFETY: the block is within the region, and free: nobody refers to its bytes.
        let is_released = unsafe { self.region.release(offset, self.block_bytes) };
        if is_released {
            pool.released.push(block);
            self.budget.uncharge(Purpose::Blocks, self.block_bytes);
        } else {
            pool.free.push(block);
        }
        self.update_available(&pool);
        // Relaxed: an advice.
        self.is_release_refused
            .store(!is_released, Ordering::Relaxed);
        is_released
    }

    /// Whether there are free blocks that the system does not take back.
    pub(crate) fn has_unreleasable(&self) -> bool {
        self.is_release_refused.load(Ordering::Relaxed) && self.available() > 0
    }

    /// Whether the system would have to give another block, and may.
    pub(crate) fn can_charge_one(&self) -> bool {
        let pool = self.pool();
        let is_left = !pool.released.is_empty() || (pool.unused as usize) < self.metas.len();
        is_left && self.budget.left_bytes() >= self.block_bytes
    }

    /// Chooses a block to be emptied and takes it out of its queue. `sparse_below`: of the blocks with less alive than this share,
    /// the one with the least comes before the one whose turn it is; `may_evict`: whether there is one whose turn it is.
    pub(crate) fn choose_victim(
        &self,
        moment: Moment,
        sparse_below: f64,
        may_evict: bool,
    ) -> Option<Victim> {
        let mut pool = self.pool();
        let (at, reason) = self
            .gone(&pool, moment)
            .map(|at| (at, Reason::Expired))
            .or_else(|| Some((self.sparsest(&pool, sparse_below)?, Reason::Sparse)))
            .or_else(|| Some((self.next_in_turn(&pool, may_evict)?, Reason::Oldest)))?;
        let (queue, nth) = at;
        let block = pool.queues[queue as usize].remove(nth)?;
        Some(Victim {
            block,
            queue,
            reason,
            tail: self.metas[block as usize].tail(),
        })
    }

    /// Blocks in use, with where they stand.
    fn in_use<'p>(&'p self, pool: &'p Pool) -> impl Iterator<Item = (&'p Meta, (Queue, usize))> {
        Queue::ALL.into_iter().flat_map(move |queue| {
            let blocks = pool.queues[queue as usize].iter().enumerate();
            blocks.map(move |(nth, &block)| (&self.metas[block as usize], (queue, nth)))
        })
    }

    fn gone(&self, pool: &Pool, moment: Moment) -> Option<(Queue, usize)> {
        let gone = self.in_use(pool).filter(|(meta, _)| meta.is_gone(moment));
        let closed = gone.filter(|(meta, at)| self.close(pool, meta, *at));
        // Each gives a whole block, and this one for the least work.
        closed.min_by_key(|(meta, _)| meta.tail()).map(|(_, at)| at)
    }

    fn sparsest(&self, pool: &Pool, below: f64) -> Option<(Queue, usize)> {
        let settled = self.in_use(pool).filter(|(meta, _)| meta.is_complete());
        let (meta, at) = settled.min_by_key(|(meta, _)| meta.live_bytes())?;
        let is_sparse = (meta.live_bytes() as f64) < below * self.block_bytes as f64;
        is_sparse.then_some(at)
    }

    /// The oldest of the new ones if they are more than a tenth of all, else the oldest of those that were kept (S3-FIFO,
    /// Yang et al., SOSP 2023, with blocks for items).
    fn next_in_turn(&self, pool: &Pool, may_evict: bool) -> Option<(Queue, usize)> {
        if !may_evict {
            return None;
        }
        let [new, kept] = Queue::ALL.map(|queue| pool.queues[queue as usize].len());
        let order = if new * 10 > new + kept || kept < 2 {
            [Queue::Small, Queue::Main]
        } else {
            [Queue::Main, Queue::Small]
        };
        order.into_iter().find_map(|queue| {
            let blocks = pool.queues[queue as usize].iter().enumerate();
            let mut at = blocks.map(|(nth, &block)| (&self.metas[block as usize], (queue, nth)));
            at.find_map(|(meta, at)| self.close(pool, meta, at).then_some(at))
        })
    }

    /// Sees to it that a block takes no more items. `false`: somebody is writing one.
    fn close(&self, _: &Pool, meta: &Meta, (queue, _): (Queue, usize)) -> bool {
        if !meta.is_sealed() {
            meta.seal();
            let block = (std::ptr::from_ref(meta) as usize - self.metas.as_ptr() as usize)
                / size_of::<Meta>();
            let open = &self.open[queue as usize][meta.class()];
            // Relaxed: it changes under the pool's lock, which is held; and nothing is told but that there is none.
            if open.load(Ordering::Relaxed) == block as u32 {
                open.store(NONE, Ordering::Relaxed);
            }
        }
        meta.is_complete()
    }

    /// The open blocks take no more items: others are opened for those that come.
    pub(crate) fn close_open(&self) {
        let _pool = self.pool();
        for open in self.open.iter().flatten() {
            // Relaxed: it changes under the pool's lock, which is held; and nothing is told but that there is none.
            let block = open.load(Ordering::Relaxed);
            if let Some(meta) = self.metas.get(block as usize) {
                meta.seal();
                open.store(NONE, Ordering::Relaxed);
            }
        }
    }

    /// The items of a victim from an offset on, those that are dead included.
    pub(crate) fn items(
        &self,
        victim: Victim,
        from: usize,
    ) -> impl Iterator<Item = (usize, ItemRef)> {
        let base = victim.block as usize * self.block_bytes;
        let mut offset = from;
        std::iter::from_fn(move || {
            (offset < victim.tail).then(|| {
                let item = ItemRef::from_offset(base + offset);
                // SAFETY: the block is settled: up to its tail there is one item behind the other, and the caller has it.
                offset += unsafe { Record::new(self.place(item.offset_bytes())) }.size_bytes();
                (offset, item)
            })
        })
    }

    /// Blocks in use and their bytes, by queue.
    pub(crate) fn in_use_len(&self) -> usize {
        self.pool().queues.iter().map(VecDeque::len).sum()
    }
}
