//! The pages of one run in the cache, by page number.

#![allow(
    unsafe_code,
    reason = "reads what a word names: each place says why it is valid"
)]

use std::sync::Arc;

use forerun_core::sync::atomic::Ordering;

use super::frames::{FrameNo, Frames, Pin, pin};
use super::page_words::{WordState, Words};
use super::read_buffer::ReadBuffer;
use super::s3_fifo::Victim;
use super::{CacheState, Charge, PageCache, VerifiedPages};

/// One word for each page of a run, so finding a child page takes no search.
#[derive(Debug)]
pub(crate) struct PageSlots {
    words: Arc<Words>,
    verified: VerifiedPages,
    cache: Arc<PageCache>,
    /// Charges the memory of the words and of what is noted of the pages.
    _charge: Charge,
}

impl PageSlots {
    /// Slots for `count` pages, none of them resident.
    pub(crate) fn new(cache: &Arc<PageCache>, count: usize) -> Self {
        PageSlots {
            words: Arc::new(Words::new(count)),
            verified: VerifiedPages::new(count),
            cache: Arc::clone(cache),
            _charge: cache.charge(Words::memory_bytes(count) + VerifiedPages::memory_bytes(count)),
        }
    }

    /// The number of pages.
    pub(crate) fn len(&self) -> usize {
        self.words.len()
    }

    pub(crate) fn cache(&self) -> &Arc<PageCache> {
        &self.cache
    }

    /// Which pages have been verified since the file was opened.
    pub(crate) fn verified(&self) -> &VerifiedPages {
        &self.verified
    }

    /// Whether a page that the system has in memory should enter the cache: there is space without
    /// an eviction, or it was here or [wanted](Self::note_wanted) not long ago, but before the
    /// ghost entry after `last`.
    pub(super) fn is_worth_caching(&self, page_no: u32, last: u64) -> bool {
        let ghosts = &self.cache.ghosts;
        let is_wanted_again = |ghost| ghost <= last && ghosts.is_recent(ghost);
        // Without a word for a ghost entry, another thread was faster and the page is here already.
        self.cache.has_space() || self.words.ghost(page_no).is_none_or(is_wanted_again)
    }

    /// Notes that a page was wanted and did not enter the cache, unless its ghost entry is later
    /// than the one numbered `last`.
    pub(super) fn note_wanted(&self, page_no: u32, last: u64) {
        if let Some(ghost) = self.words.ghost(page_no)
            && ghost <= last
        {
            let next = self.cache.ghosts.next();
            self.words.set_ghost(page_no, ghost, next);
        }
    }

    /// Prefetches the line of a page's slot. Any number is allowed.
    #[inline(always)]
    pub(crate) fn prefetch(&self, page_no: u32) {
        self.words.prefetch(page_no);
    }

    /// A page of `len` bytes, if it is in the cache.
    ///
    /// It stays there, for this reader, until the pin is dropped. The borrow keeps the slots, and
    /// with them the run, alive.
    #[inline(always)]
    pub(crate) fn get<'g>(&'g self, page_no: u32, len: usize, pin: &'g Pin) -> Option<&'g [u8]> {
        let frame = self.words.find(page_no)?;
        // SAFETY: the frame was loaded with Acquire just now, while `pin` was held. Only frames of
        // `cache` are ever published in these words.
        Some(unsafe { self.cache.frames.bytes(frame, len, pin) })
    }

    /// A page with the rest of its frame, and its head, if it is in the cache. Stays there as with
    /// [`get`](Self::get).
    #[inline(always)]
    pub(crate) fn get_with_head<'g>(
        &'g self,
        page_no: u32,
        pin: &'g Pin,
    ) -> Option<(&'g [u8], u64)> {
        let (frame, head) = self.words.find_with_head(page_no)?;
        // SAFETY: as in `get`.
        Some((
            unsafe { self.cache.frames.bytes(frame, usize::MAX, pin) },
            head,
        ))
    }

    /// A page of `len` bytes that stays in place without a pin, if it is in a frame of the cache.
    #[inline]
    pub(crate) fn hold<'r>(
        &'r self,
        page_no: u32,
        len: usize,
        _permit: &HoldPermit<'r>,
    ) -> Option<HeldPage<'r>> {
        let pin = pin();
        let frame = self.words.find(page_no)?;
        // SAFETY: as in `get`.
        let is_held = unsafe { self.cache.frames.hold(frame, &pin) };
        // Not `then_some`: dropping a page that is not held would release it.
        is_held.then(|| HeldPage {
            cache: &self.cache,
            frame,
            len,
        })
    }

    /// Prefetches the first lines of a page, if it is in the cache. Any number is allowed.
    #[inline(always)]
    pub(crate) fn prefetch_page(&self, page_no: u32, lines: usize) {
        if let Some(frame) = self.words.peek(page_no) {
            self.cache.frames.prefetch(frame, lines);
        }
    }

    /// Puts a page with this head into the cache, or drops it if another thread was faster, and
    /// returns the cached page.
    ///
    /// A page without a frame, or without space in the budget, is lent to this reader only.
    pub(super) fn publish<'g>(
        &'g self,
        page_no: u32,
        len: usize,
        page: ReadBuffer<'_>,
        head: u64,
        pin: &'g Pin,
    ) -> Published<'g> {
        let cache = &*self.cache;
        let mut state = cache.lock();
        if let Some(bytes) = self.get(page_no, len, pin) {
            // The page cannot be evicted while the lock is held, and this pin protects it
            // afterwards.
            drop(state);
            return Published::Cached(bytes);
        }
        let (frame, bytes) = match page {
            ReadBuffer::Frame(frame) => {
                let frame = Frames::publish(frame.into_free_frame());
                (frame, cache.frames.stride_bytes())
            }
            ReadBuffer::Heap(mut page) => match cache.admit(&mut state, &page) {
                Some(free_frame) => {
                    let bytes = page.len();
                    (cache.frames.publish_large(free_frame, page), bytes)
                }
                None => {
                    drop(state);
                    cache.evict_ahead(pin);
                    page.count(&cache.heap_page_bytes);
                    return Published::Lent(pin.lend(page));
                }
            },
        };
        state.policy.insert(frame, &self.words, page_no, bytes);
        self.words.publish(page_no, frame, head);
        drop(state);
        // SAFETY: this thread stored the word while `pin` was held, which is as good as having
        // loaded it.
        Published::Cached(unsafe { cache.frames.bytes(frame, len, pin) })
    }
}

/// The right to hold one page at a time. The number of permits is limited, so that enough frames
/// can be reused.
pub(crate) struct HoldPermit<'r> {
    cache: &'r PageCache,
}

impl PageCache {
    /// A permit, if there is one left.
    pub(crate) fn hold_permit(&self) -> Option<HoldPermit<'_>> {
        // Relaxed, here and below: a counter orders nothing.
        let max = self.hold_permits_max.load(Ordering::Relaxed);
        if self.hold_permits.load(Ordering::Relaxed) >= max {
            return None;
        }
        let permit = HoldPermit { cache: self };
        let before = self.hold_permits.fetch_add(1, Ordering::Relaxed);
        // Several threads may have tried to take the last one.
        (before < max).then_some(permit)
    }
}

impl HoldPermit<'_> {
    /// Whether more than half of the permits are in use, so that none should be kept for later.
    pub(crate) fn is_scarce(&self) -> bool {
        let max = self.cache.hold_permits_max.load(Ordering::Relaxed);
        self.cache.hold_permits.load(Ordering::Relaxed) > max / 2
    }
}

impl Drop for HoldPermit<'_> {
    fn drop(&mut self) {
        self.cache.hold_permits.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A page that stays in place until this is dropped. Until then its frame counts towards the
/// cache's budget, even if the page is evicted.
pub(crate) struct HeldPage<'r> {
    cache: &'r PageCache,
    /// Of `cache`; held by this.
    frame: FrameNo,
    len: usize,
}

impl HeldPage<'_> {
    #[inline(always)]
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: this holds the frame until it is dropped, and the slice borrows it.
        unsafe { self.cache.frames.held_bytes(self.frame, self.len) }
    }
}

impl Drop for HeldPage<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.cache.frames.end_hold(self.frame) {
            self.cache.free_retired(self.frame);
        }
    }
}

/// The result of publishing a page that was read.
pub(super) enum Published<'g> {
    /// It is in the cache; this reader or another one put it there.
    Cached(&'g [u8]),
    /// It belongs to this reader until the pin is dropped: there was no space for it.
    Lent(&'g [u8]),
    /// The same, but it was not to be cached.
    Uncached {
        bytes: &'g [u8],
        /// It was verified before, not now.
        is_trusted: bool,
    },
}

impl PageCache {
    /// Frees evicted frames once every reader that may have seen them has gone.
    pub(super) fn free_later(&self, evicted: Vec<Victim>, pin: &Pin) {
        let cache = self.this.clone();
        pin.defer(move || {
            // Without the cache there is nothing to free.
            if let Some(cache) = cache.upgrade() {
                let mut state = cache.lock();
                for victim in evicted {
                    state.waiting_bytes -= victim.bytes;
                    if !cache.frames.retire(victim.frame) {
                        continue;
                    }
                    // SAFETY: the policy removed the frame's name from its word before this was
                    // deferred, every pin that was held then has been dropped, and no cursor holds
                    // it. A victim is reclaimed here or by its last holder, once.
                    let free_frame = unsafe { cache.frames.reclaim(victim.frame) };
                    cache.put_back(&mut state, free_frame, victim.bytes);
                }
            }
        });
        // Otherwise it would stay in this thread's bag until several dozen more have arrived.
        pin.flush();
    }

    /// Frees a retired frame after its last hold has ended.
    #[cold]
    fn free_retired(&self, frame: FrameNo) {
        let mut state = self.lock();
        // SAFETY: the end of the last hold has left this to the caller.
        let free_frame = unsafe { self.frames.reclaim(frame) };
        self.put_back(&mut state, free_frame, self.frames.stride_bytes());
    }
}

impl Drop for PageSlots {
    fn drop(&mut self) {
        /// Pages whose words are examined per lock acquisition.
        const PAGES_PER_LOCK: usize = 1024;
        let pages = 0..self.words.len() as u32;
        let mut from = pages.start;
        while from < pages.end {
            let to = pages.end.min(from + PAGES_PER_LOCK as u32);
            let mut state = self.cache.lock();
            for page_no in from..to {
                // SAFETY: readers' references into these pages borrow the slots, which are borrowed
                // mutably here, so there are none.
                unsafe { free_page(&self.cache, &self.words, &mut state, page_no) };
            }
            from = to;
        }
        self.cache.note_space(&self.cache.lock());
    }
}

/// Removes a page from the cache and frees its frame at once.
///
/// # Safety
/// No reader may have a reference to the page's bytes.
unsafe fn free_page(cache: &PageCache, words: &Words, state: &mut CacheState, page_no: u32) {
    while let WordState::Resident { frame, uses } = words.state(page_no) {
        if !words.unlink(page_no, frame, uses, 0) {
            continue;
        }
        if let Some(victim) = state.policy.remove(frame) {
            // SAFETY: the word named the frame and no longer does; the caller guarantees that no
            // reader has its bytes, and a hold borrows the slots as a reader does. It was published
            // once and is reclaimed once: an eviction, under the same lock, would have removed it
            // from the policy.
            let free_frame = unsafe { cache.frames.reclaim(frame) };
            cache.put_back(state, free_frame, victim.bytes);
        }
    }
}
