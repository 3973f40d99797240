//! Blocks: the memory of small items. A block holds items that expire at about the same time.
//!
//! ```text
//!   mapping     │ block 0 │ block 1 │ block 2 │ …              as large as the memory limit; untouched pages cost nothing
//!   block       │ item │ item │ item │ … tail     free │       filled from the front, never changed, emptied as a whole
//!
//!   open        [small | main] x [TTL class]  ─▶ the block that takes such items now
//!   queues      small ▶ 7 ▶ 3 ▶ 9      main ▶ 1 ▶ 4 ▶ …        in the order in which blocks were opened
//!   free        empty blocks, of which a few are kept for the evictor; blocks returned to the system; blocks never used
//! ```
//!
//! Overwriting and deleting leave dead bytes behind. A writer that needs memory empties a block
//! ([`crate::evict`]): live items that are worth keeping move to another block, and the emptied
//! block is free after a grace period.

#![allow(
    unsafe_code,
    reason = "the mapping's bytes are read and written as items"
)]

mod block_queue;
mod block_state;
pub(crate) mod item_layout;
pub(crate) mod item_word;
mod metas;
mod pool;
mod ttl_class;
pub(crate) mod victim;

use crate::budget::Budget;
use crate::epoch::Pinned;
use crate::eviction::Queue;
use crate::expiry::Deadline;
use crate::index::item_bucket::ItemRef;
use crate::sync::unpoisoned;
use crate::value::LargeValue;
use block_state::Meta;
use forerun_core::arch::{CACHE_LINE_BYTES, prefetch_read};
use forerun_core::sync::{Mutex, MutexGuard};
use forerun_core::{Pages, Region, RegionError};
use item_layout::{NewRecord, Record};
use metas::Metas;
use pool::Pool;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use ttl_class::{TTL_CLASSES_MAX, TtlClasses};

/// The longest block.
const BLOCK_BYTES_MAX: usize = 1 << 20;

/// The largest item takes one byte in this many of a block.
const ITEM_SHARE: usize = 8;

/// The entry of `open` when no block is open.
const NONE: u32 = u32::MAX;

/// The smallest reserve: one block for replacements, and one to compact others into.
const RESERVE_MIN: usize = 2;

/// The blocks of a cache.
#[derive(Debug)]
pub(crate) struct Blocks {
    region: Region,
    block_bytes: usize,
    /// The longest key of an item.
    key_bytes_max: usize,
    metas: Metas,
    ttl_classes: TtlClasses,
    open: [Box<[AtomicU32]>; 2],
    /// The open block for items of all kinds that only the evictor and replacements fill.
    reserve_open: AtomicU32,
    pool: Mutex<Pool>,
    /// Bytes of the large values that live items of each queue point to.
    large_bytes: [AtomicUsize; 2],
    /// Free blocks that are kept for the evictor and for replacements.
    reserve: usize,
    /// A sealed block that wastes more bytes is worth compacting.
    waste_max_bytes: usize,
    /// Whether a sealed block may waste more than that.
    has_sparse: AtomicBool,
    /// How many free blocks writers can take, readable without the lock.
    available: AtomicUsize,
    /// Whether the system refused to take back the last block that it was offered.
    is_release_refused: AtomicBool,
    budget: Arc<Budget>,
}

/// The requester of memory in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Requester {
    Writer,
    /// A writer whose item takes the place of one that is no shorter. It holds the lock of the
    /// evacuation, and no block is being emptied.
    Replacement,
    Evictor,
}

/// Memory for an item, allocated in a block: the item is published there or abandoned.
#[derive(Debug)]
#[must_use = "a block waits until its writes are finished"]
pub(crate) struct Allocation {
    pub(crate) item: ItemRef,
    block: u32,
}

impl Blocks {
    /// The block length of a cache: the memory holds from a few hundred to a few thousand blocks.
    pub(crate) fn block_bytes(limit_bytes: usize) -> usize {
        let share_bytes = (limit_bytes / 128).clamp(32 << 10, BLOCK_BYTES_MAX);
        1 << share_bytes.ilog2()
    }

    /// Creates the structure with a reserve of one block in `reserve_share`. A block that wastes a
    /// larger share of its bytes than `waste_share` is worth compacting. The budget's limit may
    /// later be raised to `max_bytes`.
    pub(crate) fn new(
        pages: Pages,
        budget: &Arc<Budget>,
        max_bytes: usize,
        reserve_share: usize,
        waste_share: f64,
    ) -> Result<Blocks, RegionError> {
        let block_bytes = Blocks::block_bytes(budget.limit_bytes());
        let reach = ItemRef::ADDRESSABLE_BYTES / block_bytes - 1;
        let len = (max_bytes / block_bytes).min(reach);
        let blocks = Blocks {
            region: Region::new(len * block_bytes, pages)?,
            block_bytes,
            key_bytes_max: item_layout::key_bytes_max(block_bytes / ITEM_SHARE),
            metas: Metas::new(len)?,
            ttl_classes: TtlClasses::for_blocks((budget.limit_bytes() / block_bytes).min(reach)),
            open: Queue::ALL.map(|_| (0..TTL_CLASSES_MAX).map(|_| AtomicU32::new(NONE)).collect()),
            reserve_open: AtomicU32::new(NONE),
            pool: Mutex::default(),
            large_bytes: Default::default(),
            reserve: (budget.limit_bytes() / block_bytes / reserve_share).max(RESERVE_MIN),
            waste_max_bytes: (waste_share * block_bytes as f64) as usize,
            has_sparse: AtomicBool::new(false),
            available: AtomicUsize::new(0),
            is_release_refused: AtomicBool::new(false),
            budget: Arc::clone(budget),
        };
        {
            let mut pool = blocks.pool();
            for _ in 0..blocks.reserve {
                if let Some(block) = blocks.charge_one(&mut pool) {
                    pool.free.push(block);
                }
            }
        }
        Ok(blocks)
    }

    /// Bytes of the bookkeeping, which does not depend on how many blocks are in use.
    pub(crate) fn fixed_bytes(&self) -> usize {
        let open = self
            .open
            .iter()
            .map(|open| size_of_val(&**open))
            .sum::<usize>();
        size_of_val(&*self.metas) + open + self.metas.len() * 2 * size_of::<u32>()
    }

    /// The largest item that a block takes. Larger values are stored in page runs.
    pub(crate) fn item_bytes_max(&self) -> usize {
        self.block_bytes / ITEM_SHARE
    }

    /// The longest key of an item.
    pub(crate) fn key_bytes_max(&self) -> usize {
        self.key_bytes_max
    }

    pub(crate) fn len_bytes(&self) -> usize {
        self.block_bytes
    }

    /// The TTL class of an item with this deadline.
    pub(crate) fn ttl_class(&self, deadline: Deadline, now: u32) -> usize {
        self.ttl_classes.of(deadline.second, now)
    }

    /// The TTL class and the queue of a stored item's block.
    pub(crate) fn class_and_queue(&self, item: ItemRef) -> (usize, Queue) {
        let meta = self.meta_of(item);
        (meta.ttl_class(), meta.queue())
    }

    /// Reads an item that was found in the index under this pin, that the pin's holder has just
    /// written, or that lies in a victim of the holder. The whole crate promises this: all
    /// references to items come from here, and none outlives its pin.
    #[inline(always)]
    pub(crate) fn record<'p>(&self, _: &'p Pinned<'_>, item: ItemRef) -> Record<'p> {
        // SAFETY: an item in the index was written there before, within the region. Its block is
        // reused only after every pin that could have found it is dropped. What the holder has
        // written is pending in its block. A victim is reused only after its holder has retired it.
        unsafe { Record::new(self.at(item.offset_bytes())) }
    }

    /// The item's own share of its large value, if it has one. The caller has removed the item from
    /// the index, calls this once, and drops the share after a grace period.
    pub(crate) fn take_large(&self, record: Record<'_>) -> Option<Arc<LargeValue>> {
        // SAFETY: only `Cache::retire_item` calls this, for an item that its caller has removed or
        // replaced under the segment's lock, and therefore once. The share goes to limbo.
        unsafe { record.take_large() }
    }

    #[inline(always)]
    fn at(&self, offset_bytes: usize) -> NonNull<u8> {
        debug_assert!(offset_bytes < self.region.len());
        // SAFETY: references are made from offsets within the region, whose base is not null.
        unsafe { NonNull::new_unchecked(self.region.as_ptr().add(offset_bytes)) }
    }

    /// Prefetches the first two lines of an item: usually its header, its key and the start of its
    /// value.
    #[inline(always)]
    pub(crate) fn prefetch(&self, item: ItemRef) {
        let start = self.region.as_ptr().wrapping_add(item.offset_bytes());
        prefetch_read(start);
        prefetch_read(start.wrapping_add(CACHE_LINE_BYTES));
    }

    /// Allocates memory for an item and writes the item there. `None`: no block is available.
    ///
    /// The caller is pinned and stays pinned until it finishes the write.
    #[inline(always)]
    pub(crate) fn write(
        &self,
        queue: Queue,
        ttl_class: usize,
        record: &NewRecord<'_>,
        requester: Requester,
    ) -> Option<Allocation> {
        let allocation = self.allocate(queue, ttl_class, record.size_bytes(), requester)?;
        // SAFETY: `allocate` gave this many bytes to this caller alone.
        unsafe { record.write(self.at(allocation.item.offset_bytes())) };
        Some(allocation)
    }

    /// Copies an item of a victim to another block. The caller has locked the item's segment.
    pub(crate) fn copy(
        &self,
        queue: Queue,
        ttl_class: usize,
        record: Record<'_>,
        frequency: u8,
    ) -> Option<Allocation> {
        let bytes = record.size_bytes();
        let allocation = self.allocate(queue, ttl_class, bytes, Requester::Evictor)?;
        // SAFETY: as in `write`; this function's contract says that the segment is locked.
        unsafe { item_layout::copy(record, self.at(allocation.item.offset_bytes()), frequency) };
        Some(allocation)
    }

    fn allocate(
        &self,
        queue: Queue,
        ttl_class: usize,
        bytes: usize,
        requester: Requester,
    ) -> Option<Allocation> {
        let allocate = |open, free_min| self.allocate_in(open, (queue, ttl_class), bytes, free_min);
        let own = &self.open[queue as usize][ttl_class];
        let (own_free_min, reserve_free_min) = match requester {
            Requester::Writer => return allocate(own, self.reserve),
            // A block is left for the evictor.
            Requester::Replacement => (self.reserve, 1),
            // With one block, it can compact any other.
            Requester::Evictor => (1, 0),
        };
        allocate(own, own_free_min)
            .or_else(|| allocate(&self.reserve_open, reserve_free_min))
            .or_else(|| self.allocate_anywhere(bytes))
    }

    /// Allocates memory in any open block. An item among others that expire at another time is
    /// better than none.
    fn allocate_anywhere(&self, bytes: usize) -> Option<Allocation> {
        self.open.iter().flatten().find_map(|open| {
            // Acquire: the block was reset before it was opened.
            self.try_allocate_in(open.load(Ordering::Acquire), bytes)
        })
    }

    fn try_allocate_in(&self, block: u32, bytes: usize) -> Option<Allocation> {
        let meta = self.metas.get(block as usize)?;
        let offset = meta.try_allocate(bytes, self.block_bytes)?;
        let item = ItemRef::from_offset(block as usize * self.block_bytes + offset);
        Some(Allocation { item, block })
    }

    /// Allocates memory in an open block, or in another block that is opened in its place, if at
    /// least `free_min` stay free.
    fn allocate_in(
        &self,
        open: &AtomicU32,
        queue_and_class: (Queue, usize),
        bytes: usize,
        free_min: usize,
    ) -> Option<Allocation> {
        loop {
            // Acquire: the block was reset before it was opened.
            let block = open.load(Ordering::Acquire);
            let allocation = self.try_allocate_in(block, bytes);
            if allocation.is_some() {
                return allocation;
            }
            self.open_another(open, queue_and_class, block, free_min)?;
        }
    }

    /// Opens a block in place of `full`, unless another thread already has.
    fn open_another(
        &self,
        open: &AtomicU32,
        (queue, ttl_class): (Queue, usize),
        full: u32,
        free_min: usize,
    ) -> Option<()> {
        let mut pool = self.pool();
        // Relaxed: it only changes under the pool's lock.
        if open.load(Ordering::Relaxed) != full {
            return Some(());
        }
        let block = self.allocate_block(&mut pool, free_min)?;
        self.metas[block as usize].reset(queue, ttl_class);
        if let Some(full) = self.metas.get(full as usize) {
            full.seal();
            if self.is_sparse(full) {
                self.note_sparse();
            }
        }
        pool.queues[queue as usize].push_back(block);
        // Release: a thread that finds the block open finds it reset.
        open.store(block, Ordering::Release);
        Some(())
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        unpoisoned(self.pool.lock())
    }

    /// Counts the bytes of an item that is about to enter the index as live.
    pub(crate) fn mark_live(&self, item: ItemRef, record: Record<'_>, flushes: u64) {
        let (meta, large_bytes) = (self.meta_of(item), record.large_len());
        let last_second = record.deadline().last_second();
        meta.add_live(record.size_bytes(), last_second, flushes);
        if large_bytes > 0 {
            // Relaxed: a count.
            self.large_bytes[meta.queue() as usize].fetch_add(large_bytes, Ordering::Relaxed);
        }
    }

    /// Counts the bytes of an item that has left the index as dead. The item still has its share of
    /// a large value.
    pub(crate) fn mark_dead(&self, item: ItemRef, record: Record<'_>) {
        let (meta, large_bytes) = (self.meta_of(item), record.large_len());
        meta.remove_live(record.size_bytes());
        if meta.is_sealed() && self.is_sparse(meta) {
            self.note_sparse();
        }
        if large_bytes > 0 {
            // Relaxed: a count.
            self.large_bytes[meta.queue() as usize].fetch_sub(large_bytes, Ordering::Relaxed);
        }
    }

    /// Whether a sealed block is worth compacting.
    fn is_sparse(&self, meta: &Meta) -> bool {
        meta.wasted_bytes(self.block_bytes, self.item_bytes_max()) > self.waste_max_bytes
    }

    /// Notes that a sealed block is worth compacting.
    fn note_sparse(&self) {
        // Relaxed: a hint. It is read first, because writers share it.
        if !self.has_sparse.load(Ordering::Relaxed) {
            self.has_sparse.store(true, Ordering::Relaxed);
        }
    }

    /// Bytes of a queue's blocks and of the large values that their items point to.
    fn queue_bytes(&self, pool: &Pool, queue: Queue) -> usize {
        pool.queues[queue as usize].len() * self.block_bytes
            + self.large_bytes[queue as usize].load(Ordering::Relaxed)
    }

    /// Records that one of the block's items now has this deadline.
    pub(crate) fn extend(&self, item: ItemRef, deadline: Deadline) {
        self.meta_of(item).extend(deadline.last_second());
    }

    /// Ends a write: the item is in the index, or abandoned.
    pub(crate) fn finish_write(&self, allocation: Allocation) {
        self.metas[allocation.block as usize].finish_write();
    }

    fn meta_of(&self, item: ItemRef) -> &Meta {
        &self.metas[item.offset_bytes() / self.block_bytes]
    }
}
