//! The memory of cached pages.
//!
//! ```text
//!   region    │ frame 0    │·│ frame 1    │·│ frame 2    │·│ …      a page and a line each
//!   large     │ ─> heap │ null │ ─> heap │ …                        pages that fill no frame
//! ```
//!
//! Frames lie in one region of huge pages. Each is one cache line longer than a page. Every search
//! reads the beginning of a page; at a distance of 16 KiB, those lines would share eight sets of
//! the second-level cache.
//!
//! A page larger than a frame is on the heap, and has an entry in a table instead.
//!
//! # Soundness
//!
//! A frame is in one of three states. Each state is represented by a type or by a place:
//!
//! - *free*: a [`FreeFrame`] exists for it. Only its owner may write the frame. It is not `Clone`.
//! - *published*: the [`FreeFrame`] was exchanged for a [`FrameNo`], which a slot names. No thread
//!   writes the frame. Readers read it while they are pinned.
//! - *waiting*: no slot names it any more. Once every reader pinned at that time has gone, and
//!   every cursor that [holds](Frames::hold) it, [`Frames::reclaim`] makes its [`FreeFrame`] again.

#![allow(
    unsafe_code,
    reason = "a frame has one writer, then many readers, as the module's documentation says"
)]

use forerun_core::sync::OnceLock;
use forerun_core::sync::atomic::Ordering;
use std::cell::RefCell;
use std::fmt;
use std::ops::Range;

use crossbeam_epoch::{Atomic, Guard, Owned, Shared, unprotected};
use forerun_core::arch::prefetch_read;
use forerun_core::{CACHE_LINE_BYTES, Pages, Region, RegionError, region};

use super::heap_page::HeapPage;
use super::holders::{HolderWords, Holders, holder_words};
use super::scratch;

/// Keeps a reader's pages in place: no page that the reader may have seen is overwritten before the
/// pin is dropped.
///
/// A pin always belongs to the process's own epoch; a [`Guard`] need not.
pub(crate) struct Pin {
    guard: Guard,
    /// Pages that are not in the cache and belong to this reader. The pin frees them when it is
    /// dropped. An epoch's bag would hold back up to 64 of them per thread, whatever their size.
    lent: RefCell<Vec<HeapPage>>,
}

/// Pins the current thread. Pins nest. Hold them for a batch, not for long.
#[inline]
pub(crate) fn pin() -> Pin {
    Pin {
        guard: forerun_core::epoch::pin(),
        lent: RefCell::new(Vec::new()),
    }
}

/// Advances the epoch, as far as readers allow, to free what waits for them. Do not call this while
/// pinned.
pub(crate) fn reclaim() {
    // Each round advances one epoch; deferred work runs two epochs later.
    for _ in 0..3 {
        forerun_core::epoch::pin().flush();
    }
}

impl Pin {
    /// The pin as the epoch knows it.
    #[inline(always)]
    pub(super) fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Runs `then` once every thread that is pinned now has been unpinned.
    pub(super) fn defer(&self, then: impl FnOnce() + Send + 'static) {
        self.guard.defer(then);
    }

    /// Keeps an unpublished page until this pin is dropped.
    pub(super) fn lend(&self, page: HeapPage) -> &[u8] {
        let mut lent = self.lent.borrow_mut();
        lent.push(page);
        let bytes: *const [u8] = lent.last().map_or(&[][..], |page| page.bytes());
        // SAFETY: the pointer comes from a slice of a page that the pin owns from now on. Only this
        // function and `drop` access the list, and this one only adds to it: no page in it is
        // changed, moved out or freed before the pin is dropped. The slice borrows the pin, so it
        // ends before that. The bytes are on the heap and stay in place when the list grows, also
        // if adding a page panics.
        unsafe { &*bytes }
    }

    /// Hands deferred work to the epoch's global queue, and runs the work whose grace period is
    /// over. Do not call this under a lock that deferred work acquires.
    pub(super) fn flush(&self) {
        self.guard.flush();
    }
}

impl Drop for Pin {
    #[inline]
    fn drop(&mut self) {
        let lent = self.lent.get_mut();
        if !lent.is_empty() {
            scratch::put_back(lent.drain(..));
        }
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pin")
    }
}

/// The number of a frame, or of an entry in the table of large pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameNo(u32);

impl FrameNo {
    const LARGE: u32 = 1 << 31;

    pub(super) fn is_large(self) -> bool {
        self.0 & Self::LARGE != 0
    }

    /// Its index among frames, or among entries.
    pub(super) fn index(self) -> usize {
        (self.0 & !Self::LARGE) as usize
    }

    /// As stored in a slot.
    #[inline(always)]
    pub(super) fn to_bits(self) -> u32 {
        self.0
    }

    /// From a slot.
    #[inline(always)]
    pub(super) fn from_bits(bits: u32) -> Self {
        FrameNo(bits)
    }
}

/// The exclusive right to write a frame, or to fill an entry of the table.
#[derive(Debug)]
pub(super) struct FreeFrame(FrameNo);

impl FreeFrame {
    pub(super) fn is_large(&self) -> bool {
        self.0.is_large()
    }
}

/// Hands out frames that have never been used.
#[derive(Debug)]
pub(super) struct UnusedFrames {
    next: u32,
    end: u32,
}

/// Free frames without memory.
#[derive(Debug, Default)]
pub(super) struct ReleasedFrames {
    frames: Vec<FreeFrame>,
    /// Whether a frame is one of them.
    is_released: Vec<bool>,
}

impl ReleasedFrames {
    fn push(&mut self, free_frame: FreeFrame) {
        let index = free_frame.0.index();
        if self.is_released.len() <= index {
            self.is_released.resize(index + 1, false);
        }
        self.is_released[index] = true;
        self.frames.push(free_frame);
    }

    pub(super) fn pop(&mut self) -> Option<FreeFrame> {
        let free_frame = self.frames.pop()?;
        self.is_released[free_frame.0.index()] = false;
        Some(free_frame)
    }

    fn contains(&self, frame: usize) -> bool {
        self.is_released.get(frame).copied().unwrap_or(false)
    }
}

impl UnusedFrames {
    /// Whether a frame was never handed out.
    fn contains(&self, frame: usize) -> bool {
        frame >= FrameNo(self.next).index()
    }
}

impl Iterator for UnusedFrames {
    type Item = FreeFrame;

    fn next(&mut self) -> Option<FreeFrame> {
        let no = FrameNo(self.next);
        (self.next < self.end).then(|| {
            self.next += 1;
            FreeFrame(no)
        })
    }
}

/// Entries of the table of large pages that are made at a time.
const LARGE_CHUNK: usize = 1 << 10;

type LargePages = Box<[Atomic<HeapPage>]>;

/// All frames.
pub(super) struct Frames {
    region: Region,
    /// The distance from one frame to the next.
    stride_bytes: usize,
    page_bytes: usize,
    /// Who holds each frame.
    holders: HolderWords,
    /// The table of large pages, in chunks that are made when they are first used.
    large: Box<[OnceLock<LargePages>]>,
}

impl Frames {
    /// Creates `count` frames for pages of up to `page_bytes` and a table for `large` larger pages,
    /// and returns them with the free frames and entries.
    pub(super) fn new(
        count: usize,
        page_bytes: usize,
        large: usize,
        pages: Pages,
    ) -> Result<(Frames, UnusedFrames, UnusedFrames), RegionError> {
        let page_bytes = page_bytes.next_multiple_of(CACHE_LINE_BYTES);
        let stride_bytes = page_bytes + CACHE_LINE_BYTES;
        let max = FrameNo::LARGE - 1;
        let count = count.min(max as usize);
        let large = large.min(max as usize);
        let len_bytes = count
            .checked_mul(stride_bytes)
            .ok_or(RegionError::TooLarge {
                len_bytes: usize::MAX,
            })?;
        let frames = Frames {
            region: Region::new(len_bytes, pages)?,
            stride_bytes,
            page_bytes,
            holders: holder_words(count)?,
            large: (0..large.div_ceil(LARGE_CHUNK))
                .map(|_| OnceLock::new())
                .collect(),
        };
        let fresh = UnusedFrames {
            next: 0,
            end: count as u32,
        };
        let fresh_large = UnusedFrames {
            next: FrameNo::LARGE,
            end: FrameNo::LARGE + large as u32,
        };
        Ok((frames, fresh, fresh_large))
    }

    /// The largest page that fits into a frame.
    pub(super) fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// The memory of one frame.
    pub(super) fn stride_bytes(&self) -> usize {
        self.stride_bytes
    }

    #[inline(always)]
    fn start(&self, no: FrameNo) -> *mut u8 {
        debug_assert!((no.index() + 1) * self.stride_bytes <= self.region.len());
        self.region
            .as_ptr()
            .wrapping_add(no.index() * self.stride_bytes)
    }

    /// The bytes of a free frame, for its owner: room for a page and the line after it, where what
    /// follows a page in its file fits too. `free_frame` must belong to these frames, and must not
    /// be a large page's.
    pub(super) fn free_frame_bytes<'b>(&'b self, free_frame: &'b mut FreeFrame) -> &'b mut [u8] {
        assert!(!free_frame.is_large(), "an entry of the table has no bytes");
        let start = self.start(free_frame.0);
        // SAFETY: the frame lies in the region, which lives as long as `self`. Its `FreeFrame` is
        // borrowed mutably, and there is only one: no other reference into the frame exists, and
        // none can be made while the slice exists. Bytes of a region are never uninitialised.
        unsafe { std::slice::from_raw_parts_mut(start, self.stride_bytes) }
    }

    /// Gives up the right to write a frame. A slot may name it from now on.
    pub(super) fn publish(free_frame: FreeFrame) -> FrameNo {
        free_frame.0
    }

    /// Puts a large page into the table.
    pub(super) fn publish_large(&self, free_frame: FreeFrame, page: HeapPage) -> FrameNo {
        // Release: a thread that finds the page through a slot, which is stored with Release after
        // this, sees all of it. This store alone need not be Release, but it costs nothing.
        self.large_page(free_frame.0)
            .store(Owned::new(page), Ordering::Release);
        free_frame.0
    }

    /// The first `len` bytes of a published page, or fewer if it is shorter.
    ///
    /// # Safety
    /// `no` must have been loaded with Acquire, while `pin` was held, from a slot that names one of
    /// these frames.
    #[inline(always)]
    pub(super) unsafe fn bytes<'g>(&'g self, no: FrameNo, len: usize, pin: &'g Pin) -> &'g [u8] {
        if no.is_large() {
            let page = self.large_page(no).load(Ordering::Acquire, &pin.guard);
            // SAFETY: the entry was set before the slot that named it. A thread that unlinks the
            // slot waits for this pin before the page is freed.
            return match unsafe { page.as_ref() } {
                Some(page) => &page.bytes()[..len.min(page.len())],
                None => &[],
            };
        }
        // SAFETY: the frame lies in the region, which lives for 'g. It was published when the slot
        // was loaded, and is not written again before this pin is dropped, which is not before 'g
        // has ended. The load has made the writer's bytes visible. Bytes of a region are never
        // uninitialised.
        unsafe { std::slice::from_raw_parts(self.start(no), len.min(self.page_bytes)) }
    }

    /// Prefetches the first lines of a frame and what [`hold`](Self::hold) writes. Reads nothing,
    /// so the frame may be in any state.
    #[inline(always)]
    pub(super) fn prefetch(&self, no: FrameNo, lines: usize) {
        if !no.is_large() {
            prefetch_read(self.holders.as_ptr().wrapping_add(no.index()));
            let start = self.start(no);
            for line in 0..lines {
                prefetch_read(start.wrapping_add(line * CACHE_LINE_BYTES));
            }
        }
    }

    /// The entry of a large page.
    fn large_page(&self, no: FrameNo) -> &Atomic<HeapPage> {
        let make = || (0..LARGE_CHUNK).map(|_| Atomic::null()).collect();
        let chunk = self.large[no.index() / LARGE_CHUNK].get_or_init(make);
        &chunk[no.index() % LARGE_CHUNK]
    }

    #[inline(always)]
    fn holders_of(&self, no: FrameNo) -> Holders<'_> {
        Holders(&self.holders[no.index()])
    }

    /// Keeps a published frame in place beyond the pin, until [`end_hold`](Self::end_hold). Returns
    /// `false` for a large page, which cannot be held.
    ///
    /// # Safety
    /// The same as for [`bytes`](Self::bytes).
    #[inline(always)]
    pub(super) unsafe fn hold(&self, no: FrameNo, _pin: &Pin) -> bool {
        if no.is_large() {
            return false;
        }
        self.holders_of(no).hold();
        true
    }

    /// The first `len` bytes of a held frame, or fewer if it is shorter.
    ///
    /// # Safety
    /// The caller must hold the frame for as long as it uses the bytes.
    #[inline(always)]
    pub(super) unsafe fn held_bytes(&self, no: FrameNo, len: usize) -> &[u8] {
        // SAFETY: the frame lies in the region, which lives as long as `self`. It was published
        // when it was found, which made the writer's bytes visible, and is not written again before
        // the caller's hold ends. Bytes of a region are never uninitialised.
        unsafe { std::slice::from_raw_parts(self.start(no), len.min(self.page_bytes)) }
    }

    /// Ends a hold. Returns whether the caller has to [reclaim](Self::reclaim) the frame.
    #[inline(always)]
    pub(super) fn end_hold(&self, no: FrameNo) -> bool {
        self.holders_of(no).release()
    }

    /// Notes that no slot names a frame any more and that every pin that was held when it was
    /// unlinked has been dropped. Returns whether the caller has to [reclaim](Self::reclaim) it; if
    /// not, the last cursor that holds it has to.
    pub(super) fn retire(&self, no: FrameNo) -> bool {
        no.is_large() || self.holders_of(no).retire()
    }

    /// Makes a frame free again. Frees a large page.
    ///
    /// # Safety
    /// `no` must have been published, and no slot may name it any more. Either no reader can have a
    /// reference to its bytes, or [`retire`](Self::retire) or [`end_hold`](Self::end_hold) must
    /// have returned `true`. It is reclaimed once for each time it was published.
    pub(super) unsafe fn reclaim(&self, no: FrameNo) -> FreeFrame {
        if no.is_large() {
            // SAFETY: by the contract, no other thread reads or writes this entry now.
            let page = unsafe {
                self.large_page(no)
                    .swap(Shared::null(), Ordering::AcqRel, unprotected())
            };
            // SAFETY: as above; the page was made by `Owned::new` and is taken out of its only
            // place.
            drop(unsafe { page.try_into_owned() });
        }
        FreeFrame(no)
    }

    /// Returns a free frame's memory to the system. When it is written again, it starts as zeros.
    /// Frames do not begin at the system's pages, so the pages that it shares with neighbors are
    /// returned with the last of them.
    pub(super) fn release(
        &self,
        free_frame: FreeFrame,
        released: &mut ReleasedFrames,
        fresh: &UnusedFrames,
    ) {
        let range = released_bytes(
            free_frame.0.index(),
            self.stride_bytes,
            self.region.len(),
            region::page_bytes(),
            |other| released.contains(other) || fresh.contains(other),
        );
        // SAFETY: the range lies in the region. It consists of bytes of this frame, of frames in
        // `released`, and of frames that were never handed out. The `FreeFrame`s of all of them are
        // here or not made yet, so nothing refers to their bytes.
        unsafe { self.region.release(range.start, range.len()) };
        released.push(free_frame);
    }
}

/// The bytes to return with a frame: its own, and on either side those up to the end of the
/// system's page, if all frames there are released too.
fn released_bytes(
    frame: usize,
    stride_bytes: usize,
    region_bytes: usize,
    page_bytes: usize,
    is_released: impl Fn(usize) -> bool,
) -> Range<usize> {
    let (start, end) = (frame * stride_bytes, (frame + 1) * stride_bytes);
    let page_start = start - start % page_bytes;
    let page_end = end.next_multiple_of(page_bytes).min(region_bytes);
    let before = page_start / stride_bytes..frame;
    let after = frame + 1..page_end.div_ceil(stride_bytes);
    Range {
        start: if before.into_iter().all(&is_released) {
            page_start
        } else {
            start
        },
        end: if after.into_iter().all(&is_released) {
            page_end.max(end)
        } else {
            end
        },
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        let chunks = self.large.iter_mut().filter_map(OnceLock::get_mut);
        for entry in chunks.flatten() {
            // SAFETY: no other thread has the frames any more, so none has their pages either.
            drop(unsafe { std::mem::take(entry).try_into_owned() });
        }
    }
}

impl fmt::Debug for Frames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frames")
            .field("region", &self.region)
            .field("stride_bytes", &self.stride_bytes)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn frames_released_in_any_order_return_every_page_and_no_byte_of_another_frame(
            stride_bytes in 1_usize..5,
            count in 1_usize..40,
            order in prop::collection::vec(any::<u64>(), 40),
        ) {
            const PAGE: usize = 4096;
            let stride_bytes = [64, 576, 4160, 16_448][stride_bytes - 1];
            let region_bytes = count * stride_bytes;
            let mut frames: Vec<usize> = (0..count).collect();
            frames.sort_by_key(|frame| order[*frame]);
            let mut released = vec![false; count];
            let mut pages = vec![false; region_bytes.div_ceil(PAGE)];
            for frame in frames {
                let range = released_bytes(frame, stride_bytes, region_bytes, PAGE, |other| {
                    released[other]
                });
                released[frame] = true;
                for byte in range.clone().step_by(64) {
                    prop_assert!(released[byte / stride_bytes], "a byte of a frame in use");
                }
                // The system returns whole pages only, and rounds the region's end up.
                let end = if range.end == region_bytes { pages.len() } else { range.end / PAGE };
                let first = range.start.div_ceil(PAGE);
                pages[first..end.max(first)].fill(true);
            }
            prop_assert!(pages.iter().all(|is_returned| *is_returned), "{pages:?}");
        }
    }
}
