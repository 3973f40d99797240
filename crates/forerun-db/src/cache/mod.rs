//! Caches the pages of runs in memory, within one budget of bytes.
//!
//! ```text
//!   run ── PageSlots ── one word per page ──> frame ──> bytes        slots.rs, page_words.rs, frames.rs
//!                                             ^
//!   miss: read, verify ── publish ────────────┘                      driver.rs, read_buffer.rs
//!                            └ no free frame: evict, wait            s3_fifo.rs
//!   what the system has in memory                                     cached_reads.rs
//!   pages for one batch only                                          heap_page.rs, scratch.rs
//!   which pages need not be verified again                            verified_pages.rs
//!   how many bytes that may take, where no option says it             automatic.rs
//! ```
//!
//! A reader finds a page by its number in its run, with one load and no lock, and may use it while
//! it is pinned (`crossbeam_epoch`). An evicted page loses its word at once, and its frame once
//! every reader pinned at that time has gone. Some frames are therefore always waiting, so the
//! cache evicts a reserve ahead of need. A reader that still finds no frame gets its page on the
//! heap, where it is freed with the reader's pin; such a reader should finish soon ([`driver`]).
//!
//! A full cache takes a page that the system has in memory only when it is wanted again soon; until
//! then, reading it does not acquire the cache's lock. Adding a page acquires it a few times.
//! `holders.rs` lets cursors keep single pages between calls, and `counters.rs` counts.

mod automatic;
pub(crate) mod cached_reads;
mod counters;
pub(crate) mod driver;
mod frames;
mod heap_page;
mod holders;
#[cfg(all(test, loom))]
mod loom_tests;
mod page_words;
mod pinned_cell;
mod read_buffer;
mod s3_fifo;
mod scratch;
mod slots;
#[cfg(all(test, not(loom)))]
mod tests;
mod verified_pages;

use forerun_core::size::counted;
use forerun_core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::fmt;
use std::sync::Arc;

use forerun_core::sync::{Mutex, MutexGuard, PoisonError};
use forerun_core::{CACHE_LINE_BYTES, Pages, metrics};

pub(crate) use frames::{Pin, pin, reclaim};
pub(crate) use pinned_cell::PinnedCell;
pub(crate) use scratch::ScratchPage;
pub(crate) use slots::{HeldPage, HoldPermit, PageSlots};
pub(crate) use verified_pages::VerifiedPages;
pub use verified_pages::VerifyChecksums;

use crate::{Error, Result};
use automatic::CapacitySource;
use counters::Counters;
use frames::{Frames, FreeFrame, ReleasedFrames, UnusedFrames};
use heap_page::HeapPage;
use read_buffer::{OwnedFrame, ReadBuffer};
use s3_fifo::{Ghosts, S3Fifo};

/// Pages get at least a quarter of the budget, however much memory other things take.
const PAGES_SHARE_MIN: usize = 4;

/// Indexes take at most this share of the budget, and only while pages keep theirs. Where memory is
/// that scarce, it is worth more as pages; filters take a sixth of it.
const INDEXES_SHARE: usize = 4;

/// The share of the frames that is evicted ahead of need. It has a minimum, but not more than a
/// quarter of all frames, and a maximum: one chunk of a batch may read that many pages while its
/// own pin prevents more frames from becoming free.
const RESERVE_SHARE: usize = 16;
const RESERVE_FRAMES_MIN: usize = 64;
const RESERVE_FRAMES_MAX: usize = 256;

/// The share of the pages' budget that a single large page may take, and that is reserved for the
/// next large pages; and how many of them.
const LARGE_SHARE: usize = 4;
const RESERVED_PAGES: usize = 8;

/// Cursors hold at most this share of the frames, which cannot be used again meanwhile. Pages that
/// they may not hold, they copy.
const HELD_SHARE: usize = 16;

/// Pages evicted per lock acquisition.
const EVICTION_BATCH: usize = 32;

/// The cache's limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheOptions {
    /// Memory for pages, and for everything charged to the cache.
    pub(crate) capacity_bytes: usize,
    /// The largest page that fits into a frame.
    pub(crate) page_bytes: usize,
    /// The kind of memory pages for the frames.
    pub(crate) pages: Pages,
}

metrics! {
    /// Counters and sizes of the page cache.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize))]
    #[non_exhaustive]
    pub struct PageCacheStats {
        /// Page reads answered from memory.
        counter hits: u64,
        /// Page reads that went to a file.
        counter misses: u64,
        /// Pages evicted.
        counter evictions: u64,
        /// Memory for pages, for free frames, and for everything charged to the cache, in bytes.
        gauge used_bytes: usize,
        /// The budget in bytes. It changes if the cache sizes itself.
        gauge capacity_bytes: usize,
    }
}

impl fmt::Display for PageCacheStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PageCacheStats {
            hits,
            misses,
            evictions,
            used_bytes,
            capacity_bytes,
        } = self;
        write!(
            f,
            "{used_bytes} of {capacity_bytes} bytes; pages: {}, {}, {}",
            counted(hits, "hit"),
            counted(misses, "miss"),
            counted(evictions, "eviction")
        )
    }
}

/// The page cache of one store, or of several.
pub(crate) struct PageCache {
    frames: Frames,
    state: Mutex<CacheState>,
    ghosts: Arc<Ghosts>,
    /// Whether a page can be added without an eviction. Relaxed throughout: a hint.
    has_space: AtomicBool,
    /// Bytes of heap pages that are lent and not freed yet.
    heap_page_bytes: Arc<AtomicUsize>,
    counters: Counters,
    /// Permits to hold a page that are in use, and how many there are.
    hold_permits: AtomicUsize,
    hold_permits_max: AtomicUsize,
    /// The budget: all that there are frames for, or less.
    capacity_bytes: AtomicUsize,
    capacity_bytes_max: usize,
    capacity_source: CapacitySource,
    /// For deferred work. It does not keep the cache alive.
    this: std::sync::Weak<PageCache>,
}

/// The data that the lock guards.
struct CacheState {
    policy: S3Fifo,
    free: Vec<FreeFrame>,
    fresh: UnusedFrames,
    /// Frames whose memory has been released.
    released: ReleasedFrames,
    free_large: Vec<FreeFrame>,
    fresh_large: UnusedFrames,
    /// Memory of all frames, in any state, that has not been released.
    frame_bytes: usize,
    large_bytes: usize,
    /// The part of both that waits for readers.
    waiting_bytes: usize,
    charged_bytes: usize,
    /// The part of it for indexes.
    index_bytes: usize,
    /// Reservation for large pages.
    reserved_bytes: usize,
}

impl PageCache {
    /// An empty cache.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if there is not enough address space for the budget.
    pub(crate) fn new(options: CacheOptions) -> Result<Arc<PageCache>> {
        PageCache::with_source(options, CapacitySource::Option)
    }

    /// An empty cache that sizes itself, for a store whose memtables take at most
    /// `memtables_bytes`.
    ///
    /// # Errors
    /// The same as for [`new`](Self::new).
    pub(crate) fn automatic(
        page_bytes: usize,
        pages: Pages,
        memtables_bytes: usize,
    ) -> Result<Arc<PageCache>> {
        let with_capacity = |capacity_bytes| CacheOptions {
            capacity_bytes,
            page_bytes,
            pages,
        };
        automatic::open(memtables_bytes, with_capacity)
    }

    fn with_source(
        options: CacheOptions,
        capacity_source: CapacitySource,
    ) -> Result<Arc<PageCache>> {
        let page_bytes = options.page_bytes.max(CACHE_LINE_BYTES);
        let count = (options.capacity_bytes / (page_bytes + CACHE_LINE_BYTES)).max(1);
        let large = (count / 4).clamp(16, 1 << 20);
        let (frames, fresh, fresh_large) = Frames::new(count, page_bytes, large, options.pages)
            .map_err(|error| Error::OutOfMemory {
                needed_bytes: options.capacity_bytes,
                reason: error.to_string(),
            })?;
        let policy = S3Fifo::new();
        Ok(Arc::new_cyclic(|this| PageCache {
            frames,
            ghosts: Arc::clone(policy.ghosts()),
            has_space: AtomicBool::new(true),
            state: Mutex::new(CacheState {
                policy,
                free: Vec::new(),
                fresh,
                released: ReleasedFrames::default(),
                free_large: Vec::new(),
                fresh_large,
                frame_bytes: 0,
                large_bytes: 0,
                waiting_bytes: 0,
                charged_bytes: 0,
                index_bytes: 0,
                reserved_bytes: 0,
            }),
            heap_page_bytes: Arc::default(),
            counters: Counters::default(),
            hold_permits: AtomicUsize::new(0),
            hold_permits_max: AtomicUsize::new(count / HELD_SHARE),
            capacity_bytes: AtomicUsize::new(options.capacity_bytes),
            capacity_bytes_max: options.capacity_bytes,
            capacity_source,
            this: this.clone(),
        }))
    }

    /// Counters and sizes.
    pub(crate) fn stats(&self) -> PageCacheStats {
        let (hits, misses) = self.counters.sums();
        let state = self.lock();
        PageCacheStats {
            hits,
            misses,
            evictions: state.policy.evictions(),
            used_bytes: state.frame_bytes
                + state.large_bytes
                + state.charged_bytes
                // Relaxed: a counter orders nothing.
                + self.heap_page_bytes.load(Ordering::Relaxed),
            capacity_bytes: self.capacity_bytes(),
        }
    }

    /// What sets the budget.
    pub(crate) fn capacity_source(&self) -> &CapacitySource {
        &self.capacity_source
    }

    fn capacity_bytes(&self) -> usize {
        // Relaxed: a limit orders nothing, and a thread that reads the one before evicts a little
        // later or earlier.
        self.capacity_bytes.load(Ordering::Relaxed)
    }

    /// Changes the budget, up to the capacity that the cache was made with. Returns whether pages
    /// take more than that; [`free_excess`](Self::free_excess) frees them.
    fn set_limit(&self, bytes: usize) -> bool {
        let bytes = bytes.min(self.capacity_bytes_max);
        // Relaxed, both: as in `capacity_bytes`.
        self.capacity_bytes.store(bytes, Ordering::Relaxed);
        let frames = bytes / self.frames.stride_bytes();
        self.hold_permits_max
            .store(frames / HELD_SHARE, Ordering::Relaxed);
        self.note_space(&self.lock());
        !self.is_within_budget()
    }

    /// Frees pages beyond a smaller budget. Do not call this while pinned.
    fn free_excess(&self) {
        self.shrink(&mut self.lock());
        self.evict_to_budget();
    }

    /// Charges required memory outside the cache, such as a root page's, to the budget until the
    /// returned [`Charge`] is dropped. Pages get the rest, and at least a quarter of the budget.
    pub(crate) fn charge(self: &Arc<Self>, bytes: usize) -> Charge {
        let charge = self.charge_pinned(self.lock(), bytes, 0);
        self.evict_to_budget();
        charge
    }

    /// Charges optional memory, such as a filter's, if that leaves pages their quarter.
    pub(crate) fn try_charge(self: &Arc<Self>, bytes: usize) -> Option<Charge> {
        let charge = self.try_charge_pinned(bytes)?;
        self.evict_to_budget();
        Some(charge)
    }

    /// [`try_charge`](Self::try_charge) that can be called while pinned: what it evicts becomes
    /// free once the pin has been dropped.
    pub(crate) fn try_charge_pinned(self: &Arc<Self>, bytes: usize) -> Option<Charge> {
        self.try_charge_with(bytes, 0)
    }

    /// Charges an index's memory, if that leaves pages their quarter and all indexes then stay
    /// within their share.
    pub(crate) fn try_charge_index(self: &Arc<Self>, bytes: usize) -> Option<Charge> {
        let charge = self.try_charge_with(bytes, bytes)?;
        self.evict_to_budget();
        Some(charge)
    }

    /// Charges optional memory, `index_bytes` of it for indexes. Can be called while pinned.
    fn try_charge_with(self: &Arc<Self>, bytes: usize, index_bytes: usize) -> Option<Charge> {
        let capacity_bytes = self.capacity_bytes();
        let all_max = capacity_bytes - capacity_bytes / PAGES_SHARE_MIN;
        let indexes_max = capacity_bytes / INDEXES_SHARE;
        let state = self.lock();
        let fits = |used: usize, more: usize, max| more == 0 || used.saturating_add(more) <= max;
        let fits = fits(state.charged_bytes, bytes, all_max)
            && fits(state.index_bytes, index_bytes, indexes_max);
        fits.then(|| self.charge_pinned(state, bytes, index_bytes))
    }

    fn charge_pinned(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, CacheState>,
        bytes: usize,
        index_bytes: usize,
    ) -> Charge {
        state.charged_bytes += bytes;
        state.index_bytes += index_bytes;
        self.shrink(&mut state);
        drop(state);
        self.evict_ahead(&pin());
        Charge {
            cache: Arc::downgrade(self),
            bytes,
            index_bytes,
        }
    }

    /// Evicts and frees pages beyond their budget, which shrinks when memory is charged. Returns
    /// `false` if readers still hold some of them. Do not call this while pinned.
    pub(crate) fn evict_to_budget(&self) -> bool {
        if self.is_within_budget() {
            return true;
        }
        self.evict_ahead(&pin());
        reclaim();
        self.is_within_budget()
    }

    fn is_within_budget(&self) -> bool {
        let state = self.lock();
        Self::held_bytes(&state) <= self.budget_bytes(&state)
    }

    /// Counts hits and misses.
    pub(crate) fn count(&self, hits: u64, misses: u64) {
        self.counters.count(hits, misses);
    }

    /// Counts memory that a batch's pages take outside the cache.
    fn count_heap_bytes(&self, bytes: usize) {
        // Relaxed, here and below: a counter orders nothing.
        self.heap_page_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn uncount_heap_bytes(&self, bytes: usize) {
        if bytes > 0 {
            self.heap_page_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    fn lock(&self) -> MutexGuard<'_, CacheState> {
        // A panic leaves no change half-done: everything fallible runs before the first change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The maximum bytes of pages.
    fn budget_bytes(&self, state: &CacheState) -> usize {
        let capacity_bytes = self.capacity_bytes();
        capacity_bytes
            .saturating_sub(state.charged_bytes)
            .max(capacity_bytes / PAGES_SHARE_MIN)
            .max(self.frames.stride_bytes())
    }

    /// The bytes that pages take in total.
    fn held_bytes(state: &CacheState) -> usize {
        state.frame_bytes + state.large_bytes
    }

    /// Memory to read a page of `len` bytes into; `None` if there is none.
    fn allocate(&self, len: usize, pin: &Pin) -> Option<ReadBuffer<'_>> {
        if len > self.frames.page_bytes() {
            return HeapPage::new(len).map(ReadBuffer::Heap);
        }
        let take = || self.take_frame(&mut self.lock());
        let mut taken = take();
        self.evict_ahead(pin);
        if taken.is_none() {
            // The readers that frames wait for may have gone.
            pin.flush();
            taken = take();
        }
        match taken {
            Some(free_frame) => Some(ReadBuffer::Frame(OwnedFrame::new(self, free_frame))),
            None => HeapPage::new(len).map(ReadBuffer::Heap),
        }
    }

    /// A frame to write, if one is free or the budget allows one more. Without a free one, gives up
    /// what is reserved for large pages.
    fn take_frame(&self, state: &mut CacheState) -> Option<FreeFrame> {
        if let Some(free_frame) = state.free.pop() {
            return Some(free_frame);
        }
        let stride_bytes = self.frames.stride_bytes();
        // A reservation for large pages must not displace the others.
        state.reserved_bytes = 0;
        if Self::held_bytes(state) + stride_bytes > self.budget_bytes(state) {
            return None;
        }
        let free_frame = state.released.pop().or_else(|| state.fresh.next())?;
        state.frame_bytes += stride_bytes;
        Some(free_frame)
    }

    /// An entry for a large page, if the budget allows its bytes.
    fn admit(&self, state: &mut CacheState, page: &HeapPage) -> Option<FreeFrame> {
        if page.len() <= self.frames.page_bytes() {
            // Every frame is taken. Caching this page on the heap would displace pages in frames.
            return None;
        }
        let wanted = page.len();
        let budget = self.budget_bytes(state);
        if wanted > budget / LARGE_SHARE {
            return None;
        }
        // Reserves memory for the next large pages too.
        let several = (RESERVED_PAGES * wanted).min(budget / LARGE_SHARE);
        state.reserved_bytes = state.reserved_bytes.max(several);
        self.shrink(state);
        if Self::held_bytes(state) + wanted > budget {
            return None;
        }
        let free_frame = state
            .free_large
            .pop()
            .or_else(|| state.fresh_large.next())?;
        state.large_bytes += wanted;
        Some(free_frame)
    }

    /// How many frames are kept available ahead of need.
    fn reserve_frames(&self, state: &CacheState) -> usize {
        let frames = self.budget_bytes(state) / self.frames.stride_bytes();
        let least = RESERVE_FRAMES_MIN.min(frames / 4).max(1);
        (frames / RESERVE_SHARE).clamp(least, RESERVE_FRAMES_MAX)
    }

    /// Whether a page can be added without an eviction.
    fn has_space(&self) -> bool {
        self.has_space.load(Ordering::Relaxed)
    }

    /// Notes whether more is available than the reserve.
    fn note_space(&self, state: &CacheState) {
        let reserve = self.reserve_frames(state) * self.frames.stride_bytes();
        let has_space = self.available_bytes(state) > reserve + state.reserved_bytes;
        self.has_space.store(has_space, Ordering::Relaxed);
    }

    /// Evicts until the reserve is full. The pages become free once their readers have gone.
    fn evict_ahead(&self, pin: &Pin) {
        loop {
            let mut evicted = Vec::new();
            let mut state = self.lock();
            let stride_bytes = self.frames.stride_bytes();
            let reserve = self.reserve_frames(&state);
            // Waits until there is enough to do, then evicts several pages at once.
            let slack = (reserve / 2).min(EVICTION_BATCH / 2) * stride_bytes;
            let reserve = reserve * stride_bytes + state.reserved_bytes;
            self.note_space(&state);
            if self.available_bytes(&state) + slack >= reserve && state.reserved_bytes == 0 {
                return;
            }
            while evicted.len() < EVICTION_BATCH && self.available_bytes(&state) < reserve {
                let Some(victim) = state.policy.evict() else {
                    break;
                };
                state.waiting_bytes += victim.bytes;
                evicted.push(victim);
            }
            drop(state);
            let is_reserve_full = evicted.len() < EVICTION_BATCH;
            if !evicted.is_empty() {
                self.free_later(evicted, pin);
            }
            if is_reserve_full {
                return;
            }
        }
    }

    /// Bytes that frames may take before another eviction, now or once readers have gone.
    fn available_bytes(&self, state: &CacheState) -> usize {
        let stride_bytes = self.frames.stride_bytes();
        let held = Self::held_bytes(state) - state.waiting_bytes;
        let unused_bytes = self.budget_bytes(state).saturating_sub(held);
        state.free.len() * stride_bytes + unused_bytes / stride_bytes * stride_bytes
    }

    /// Takes back a free frame with `bytes` of memory.
    fn put_back(&self, state: &mut CacheState, free_frame: FreeFrame, bytes: usize) {
        if free_frame.is_large() {
            state.large_bytes -= bytes;
            state.free_large.push(free_frame);
        } else {
            state.free.push(free_frame);
            self.shrink(state);
        }
    }

    /// Releases free frames' memory while pages hold more than their budget.
    fn shrink(&self, state: &mut CacheState) {
        while Self::held_bytes(state) + state.reserved_bytes > self.budget_bytes(state)
            && let Some(free_frame) = state.free.pop()
        {
            self.frames
                .release(free_frame, &mut state.released, &state.fresh);
            state.frame_bytes -= self.frames.stride_bytes();
        }
    }
}

/// A part of the budget taken by something other than pages.
#[derive(Debug)]
pub(crate) struct Charge {
    /// What is charged may outlive the store: a reader's pin delays the drop of a filter.
    cache: std::sync::Weak<PageCache>,
    bytes: usize,
    /// The part of it for an index.
    index_bytes: usize,
}

impl Drop for Charge {
    fn drop(&mut self) {
        let Some(cache) = self.cache.upgrade() else {
            return;
        };
        let mut state = cache.lock();
        state.charged_bytes -= self.bytes;
        state.index_bytes -= self.index_bytes;
        cache.note_space(&state);
    }
}

impl fmt::Debug for PageCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageCache")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
