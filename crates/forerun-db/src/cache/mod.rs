//! The pages of runs in memory, under one budget of bytes.
//!
//! ```text
//!   run ── PageSlots ── a word a page ──> frame ──> bytes        slots.rs, words.rs, frames.rs
//!                                           ^
//!   miss: read, verify ── publish ──────────┘                    driver.rs
//!                            └ room needed: evict, wait          policy.rs
//! ```
//!
//! A reader finds a page by its number in its run, with one load and no lock, and may use it as long as it is pinned
//! (`crossbeam_epoch`). A page that is evicted loses its word at once and its frame when every reader that was pinned
//! then has gone. So some frames are always on their way: a reserve is evicted ahead of need. A reader that finds no
//! frame all the same gets its page on the heap, for the length of its pin, and is told to come to an end soon
//! ([`driver`]).
//!
//! One lock is taken a few times for each page that is read from the file, and never for one that is in memory.

mod counters;
pub(crate) mod driver;
mod frames;
#[cfg(all(test, loom))]
mod loom_tests;
mod s3_fifo;
mod slots;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(all(test, not(loom)))]
mod tests;
mod words;

use forerun_core::sync::atomic::{AtomicUsize, Ordering};
use std::fmt;
use std::sync::Arc;

use forerun_core::sync::{Mutex, MutexGuard, PoisonError};
use forerun_core::{CACHE_LINE_BYTES, Pages};

pub(crate) use frames::{Pin, pin, reclaim};
pub(crate) use slots::PageSlots;

use crate::{Error, Result};
use counters::Counters;
use frames::{Frames, FreeFrame, Fresh, HeapPage};
use s3_fifo::S3Fifo;

/// Of the budget, the part that pages have whatever else is charged to it: a quarter.
const MIN_PAGES_SHARE: usize = 4;

/// Of the frames, the part that is emptied ahead of need, and how many that is at least, if they are not a quarter of
/// all, and at most: a chunk of a batch may read that many pages while its own pin is in the way of emptying more.
const RESERVE_SHARE: usize = 16;
const RESERVE_MIN_FRAMES: usize = 64;
const RESERVE_MAX_FRAMES: usize = 256;

/// Of the pages' bytes, the most that one large page takes, and that is kept free for the next ones; and how many pages
/// that shall be.
const LARGE_SHARE: usize = 4;
const RESERVED_PAGES: usize = 8;

/// Pages that are evicted under one lock.
const EVICT_AT_ONCE: usize = 32;

/// What the cache may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheOptions {
    /// Memory for pages, and for all that is charged.
    pub(crate) capacity_bytes: usize,
    /// The longest page that fills a frame.
    pub(crate) page_bytes: usize,
    /// What the frames lie in.
    pub(crate) pages: Pages,
}

/// What the cache did and holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct CacheStats {
    /// Pages that were wanted and there.
    pub hits: u64,
    /// Pages that were read from files.
    pub misses: u64,
    /// Pages that made room for others.
    pub evictions: u64,
    /// Memory of pages, of frames kept for them, and of all that is charged.
    pub used_bytes: usize,
    /// The budget.
    pub capacity_bytes: usize,
}

impl fmt::Display for CacheStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CacheStats {
            hits,
            misses,
            evictions,
            used_bytes,
            capacity_bytes,
        } = self;
        write!(
            f,
            "{used_bytes} of {capacity_bytes} bytes; pages: {hits} hits, {misses} misses, {evictions} evictions"
        )
    }
}

/// The cache. It is shared by the runs of a store, or of several.
pub(crate) struct PageCache {
    frames: Frames,
    state: Mutex<State>,
    /// Bytes of pages on the heap that are lent and not yet freed.
    heap_page_bytes: Arc<AtomicUsize>,
    counters: Counters,
    capacity_bytes: usize,
    /// For what is deferred: it does not keep the cache alive.
    this: std::sync::Weak<PageCache>,
}

/// What the lock guards.
struct State {
    policy: S3Fifo,
    free: Vec<FreeFrame>,
    fresh: Fresh,
    /// Frames whose memory was given back.
    retired: Vec<FreeFrame>,
    free_large: Vec<FreeFrame>,
    fresh_large: Fresh,
    /// Memory of frames, in whatever state, that has not been given back.
    frame_bytes: usize,
    large_bytes: usize,
    /// Of both, what waits for readers to go.
    waiting_bytes: usize,
    charged_bytes: usize,
    /// Room that is made for large pages.
    reserved_bytes: usize,
}

/// A frame that nobody else knows of. Dropped, it is free again.
struct OwnedFrame<'c> {
    cache: &'c PageCache,
    /// There until it is published.
    free_frame: Option<FreeFrame>,
}

impl OwnedFrame<'_> {
    /// Gives the frame up, to be published.
    fn into_free_frame(mut self) -> FreeFrame {
        self.free_frame
            .take()
            .expect("an owned frame is given up once")
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.free_frame {
            Some(free_frame) => self.cache.frames.free_frame_bytes(free_frame),
            None => &mut [],
        }
    }
}

impl Drop for OwnedFrame<'_> {
    fn drop(&mut self) {
        if let Some(free_frame) = self.free_frame.take() {
            let mut state = self.cache.lock();
            let bytes = self.cache.frames.stride_bytes();
            self.cache.put_back(&mut state, free_frame, bytes);
        }
    }
}

/// A page that was read, where it was read to.
enum Filled<'c> {
    Frame(OwnedFrame<'c>),
    Heap(HeapPage),
}

impl Filled<'_> {
    /// The first `len` bytes: those of the page, which it was made for.
    fn bytes_mut(&mut self, len: usize) -> &mut [u8] {
        match self {
            Filled::Frame(frame) => &mut frame.bytes_mut()[..len],
            Filled::Heap(page) => &mut page.bytes_mut()[..len],
        }
    }
}

impl PageCache {
    /// An empty cache.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if there is no address space for the budget.
    pub(crate) fn new(options: CacheOptions) -> Result<Arc<PageCache>> {
        let page_bytes = options.page_bytes.max(CACHE_LINE_BYTES);
        let count = (options.capacity_bytes / (page_bytes + CACHE_LINE_BYTES)).max(1);
        let large = (count / 4).clamp(16, 1 << 20);
        let (frames, fresh, fresh_large) = Frames::new(count, page_bytes, large, options.pages)
            .map_err(|error| Error::OutOfMemory {
                needed_bytes: options.capacity_bytes,
                reason: error.to_string(),
            })?;
        Ok(Arc::new_cyclic(|this| PageCache {
            frames,
            state: Mutex::new(State {
                policy: S3Fifo::new(),
                free: Vec::new(),
                fresh,
                retired: Vec::new(),
                free_large: Vec::new(),
                fresh_large,
                frame_bytes: 0,
                large_bytes: 0,
                waiting_bytes: 0,
                charged_bytes: 0,
                reserved_bytes: 0,
            }),
            heap_page_bytes: Arc::default(),
            counters: Counters::default(),
            capacity_bytes: options.capacity_bytes,
            this: this.clone(),
        }))
    }

    /// Counters and sizes.
    pub(crate) fn stats(&self) -> CacheStats {
        let (hits, misses) = self.counters.sums();
        let state = self.lock();
        CacheStats {
            hits,
            misses,
            evictions: state.policy.evictions(),
            used_bytes: state.frame_bytes
                + state.large_bytes
                + state.charged_bytes
                // Relaxed: a count orders nothing.
                + self.heap_page_bytes.load(Ordering::Relaxed),
            capacity_bytes: self.capacity_bytes,
        }
    }

    /// Charges memory that lies elsewhere and must be there, such as a root page's, to the budget, until what is returned is
    /// dropped. Pages have the rest, and a quarter of the budget at least.
    pub(crate) fn charge(self: &Arc<Self>, bytes: usize) -> Charge {
        self.charge_state(self.lock(), bytes)
    }

    /// Charges memory that can be done without, such as a filter's, if it leaves pages their quarter.
    pub(crate) fn try_charge(self: &Arc<Self>, bytes: usize) -> Option<Charge> {
        let state = self.lock();
        let max = self.capacity_bytes - self.capacity_bytes / MIN_PAGES_SHARE;
        let has_room = bytes == 0 || state.charged_bytes.saturating_add(bytes) <= max;
        has_room.then(|| self.charge_state(state, bytes))
    }

    fn charge_state(self: &Arc<Self>, mut state: MutexGuard<'_, State>, bytes: usize) -> Charge {
        state.charged_bytes += bytes;
        self.shrink(&mut state);
        drop(state);
        self.evict_ahead(&pin());
        Charge {
            cache: Arc::clone(self),
            bytes,
        }
    }

    /// Counts pages that were wanted and there, and those that were not.
    pub(crate) fn count(&self, hits: u64, misses: u64) {
        self.counters.count(hits, misses);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing under the lock is left half-way by a panic: what may fail there is asked before.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What pages may take.
    fn budget_bytes(&self, state: &State) -> usize {
        self.capacity_bytes
            .saturating_sub(state.charged_bytes)
            .max(self.capacity_bytes / MIN_PAGES_SHARE)
            .max(self.frames.stride_bytes())
    }

    /// What pages take, all told.
    fn held_bytes(state: &State) -> usize {
        state.frame_bytes + state.large_bytes
    }

    /// A place for a page of `len` bytes to be read to. `None`: there is no memory.
    fn allocate(&self, len: usize, pin: &Pin) -> Option<Filled<'_>> {
        if len > self.frames.page_bytes() {
            return HeapPage::new(len).map(Filled::Heap);
        }
        let take = || self.free_frame(&mut self.lock());
        let mut free_frame = take();
        self.evict_ahead(pin);
        if free_frame.is_none() {
            // Readers may have gone that frames wait for.
            pin.flush();
            free_frame = take();
        }
        match free_frame {
            Some(free_frame) => Some(Filled::Frame(OwnedFrame {
                cache: self,
                free_frame: Some(free_frame),
            })),
            None => HeapPage::new(len).map(Filled::Heap),
        }
    }

    /// A frame to write, if one is free or there is room for one more.
    fn free_frame(&self, state: &mut State) -> Option<FreeFrame> {
        if let Some(free_frame) = state.free.pop() {
            return Some(free_frame);
        }
        let stride_bytes = self.frames.stride_bytes();
        // Room for a large page is not kept at the price of the others.
        state.reserved_bytes = 0;
        if Self::held_bytes(state) + stride_bytes > self.budget_bytes(state) {
            return None;
        }
        let free_frame = state.retired.pop().or_else(|| state.fresh.next())?;
        state.frame_bytes += stride_bytes;
        Some(free_frame)
    }

    /// An entry for a large page, if there is room for its bytes.
    fn admit(&self, state: &mut State, page: &HeapPage) -> Option<FreeFrame> {
        if page.len() <= self.frames.page_bytes() {
            // It should have had a frame: it would take room from pages that have.
            return None;
        }
        let wanted = page.len();
        let budget = self.budget_bytes(state);
        if wanted > budget / LARGE_SHARE {
            return None;
        }
        // The next ones shall find room too.
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

    /// Evicts as long as the reserve is not full: pages that will be free when readers have gone.
    fn evict_ahead(&self, pin: &Pin) {
        loop {
            let mut evicted = Vec::new();
            let mut state = self.lock();
            let budget = self.budget_bytes(&state);
            let stride_bytes = self.frames.stride_bytes();
            let frames = budget / stride_bytes;
            let least = RESERVE_MIN_FRAMES.min(frames / 4).max(1);
            let reserve = (frames / RESERVE_SHARE).clamp(least, RESERVE_MAX_FRAMES);
            // Once it is worth it, several at a time.
            let slack = (reserve / 2).min(EVICT_AT_ONCE / 2) * stride_bytes;
            let reserve = reserve * stride_bytes + state.reserved_bytes;
            if self.available_bytes(&state) + slack >= reserve && state.reserved_bytes == 0 {
                return;
            }
            while evicted.len() < EVICT_AT_ONCE && self.available_bytes(&state) < reserve {
                let Some(victim) = state.policy.evict() else {
                    break;
                };
                state.waiting_bytes += victim.bytes;
                evicted.push(victim);
            }
            drop(state);
            let full = evicted.len() < EVICT_AT_ONCE;
            if !evicted.is_empty() {
                self.free_later(evicted, pin);
            }
            if full {
                return;
            }
        }
    }

    /// Bytes that frames may take before anything else must go, now or when readers have gone.
    fn available_bytes(&self, state: &State) -> usize {
        let stride_bytes = self.frames.stride_bytes();
        let held = Self::held_bytes(state) - state.waiting_bytes;
        let room = self.budget_bytes(state).saturating_sub(held);
        state.free.len() * stride_bytes + room / stride_bytes * stride_bytes
    }

    /// Takes a blank back that has `bytes` of memory.
    fn put_back(&self, state: &mut State, free_frame: FreeFrame, bytes: usize) {
        if free_frame.is_large() {
            state.large_bytes -= bytes;
            state.free_large.push(free_frame);
        } else {
            state.free.push(free_frame);
            self.shrink(state);
        }
    }

    /// Gives the memory of free frames back while more is held than pages may have.
    fn shrink(&self, state: &mut State) {
        while Self::held_bytes(state) + state.reserved_bytes > self.budget_bytes(state)
            && let Some(mut free_frame) = state.free.pop()
        {
            self.frames.release(&mut free_frame);
            state.frame_bytes -= self.frames.stride_bytes();
            state.retired.push(free_frame);
        }
    }
}

/// A part of the budget that is taken by something else than pages.
#[derive(Debug)]
pub(crate) struct Charge {
    cache: Arc<PageCache>,
    bytes: usize,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.cache.lock().charged_bytes -= self.bytes;
    }
}

impl fmt::Debug for PageCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageCache")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
