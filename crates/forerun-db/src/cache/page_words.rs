//! One word per page: where it is in memory, or when it was last evicted or left out. Beside it,
//! the page's head.
//!
//! ```text
//!   resident   │ 1 │ 0 … │ frame, 32 bits │ 0 … │ uses, 0 to 3 │ head, 64 bits │
//!   absent     │ 0 │ number of its ghost entry, 0: none           │ …             │
//! ```
//!
//! A head is what the owner of the pages wants to know of a page before reading it. The first line
//! of each page would be a cache line and an address translation of its own, while those of many
//! heads are the word's, which is read anyway.
//!
//! Only the holder of the cache's lock makes words resident or absent. Readers load words without
//! the lock and count uses, up to three, so they do not write to pages that are in constant use.
//! They also number the ghost entries of absent pages.

use forerun_core::arch::prefetch_read;
use forerun_core::sync::modelled::atomic::{AtomicU64, Ordering};

use super::frames::FrameNo;

const RESIDENT: u64 = 1 << 63;
const FRAME_SHIFT: u32 = 8;
const USES: u64 = 3;

/// The decoded state of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WordState {
    Resident {
        frame: FrameNo,
        uses: u64,
    },
    /// The number of its ghost entry, or 0 if it has none.
    Absent(u64),
}

fn read(word: u64) -> WordState {
    if word & RESIDENT == 0 {
        WordState::Absent(word)
    } else {
        WordState::Resident {
            frame: FrameNo::from_bits((word >> FRAME_SHIFT) as u32),
            uses: word & USES,
        }
    }
}

fn resident(frame: FrameNo, uses: u64) -> u64 {
    RESIDENT | u64::from(frame.to_bits()) << FRAME_SHIFT | uses
}

/// A page's word and head, in one cache line.
#[derive(Debug)]
#[repr(align(16))]
struct Slot {
    word: AtomicU64,
    head: AtomicU64,
}

impl Slot {
    /// The frame of the page, if it is resident. Counts a use.
    #[inline(always)]
    fn find(&self) -> Option<FrameNo> {
        let word = &self.word;
        // Acquire: pairs with the Release in `publish`, so that the frame's bytes are visible. A
        // use counted in between is a read-modify-write and keeps the release sequence intact.
        let seen = word.load(Ordering::Acquire);
        if seen & RESIDENT == 0 {
            return None;
        }
        if seen & USES < USES {
            // Relaxed: a counter orders nothing. If the word has changed, this fails and the use is
            // not counted. In particular, it never overwrites the word of an evicted page.
            let _ = word.compare_exchange(seen, seen + 1, Ordering::Relaxed, Ordering::Relaxed);
        }
        Some(FrameNo::from_bits((seen >> FRAME_SHIFT) as u32))
    }
}

/// The words and heads of a run.
#[derive(Debug)]
pub(super) struct Words(Box<[Slot]>);

impl Words {
    pub(super) fn new(count: usize) -> Self {
        let slot = |_| Slot {
            word: AtomicU64::new(0),
            head: AtomicU64::new(0),
        };
        Words((0..count).map(slot).collect())
    }

    /// The memory for the words and heads of `count` pages.
    pub(super) fn memory_bytes(count: usize) -> usize {
        count * size_of::<Slot>()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Prefetches a page's word and head.
    #[inline(always)]
    pub(super) fn prefetch(&self, page_no: u32) {
        prefetch_read(self.0.as_ptr().wrapping_add(page_no as usize));
    }

    /// The frame of a page, if it is resident. Counts a use.
    #[inline(always)]
    pub(super) fn find(&self, page_no: u32) -> Option<FrameNo> {
        self.0.get(page_no as usize)?.find()
    }

    /// The frame and the head of a page, if it is resident. Counts a use.
    #[inline(always)]
    pub(super) fn find_with_head(&self, page_no: u32) -> Option<(FrameNo, u64)> {
        let slot = self.0.get(page_no as usize)?;
        let frame = slot.find()?;
        // Relaxed: stored before the word was published, which `find` has loaded with Acquire. A
        // page does not change, so its head is the same whenever it is published.
        Some((frame, slot.head.load(Ordering::Relaxed)))
    }

    /// The frame of a page, if it is resident, only to prefetch it. Counts no use.
    #[inline(always)]
    pub(super) fn peek(&self, page_no: u32) -> Option<FrameNo> {
        // Relaxed: nothing in the frame is read.
        let slot = self.0.get(page_no as usize)?;
        let seen = slot.word.load(Ordering::Relaxed);
        (seen & RESIDENT != 0).then_some(FrameNo::from_bits((seen >> FRAME_SHIFT) as u32))
    }

    /// A page's state. For the holder of the cache's lock: only the uses may change while it is
    /// held.
    pub(super) fn state(&self, page_no: u32) -> WordState {
        // Relaxed: the lock orders everything but the uses.
        read(self.0[page_no as usize].word.load(Ordering::Relaxed))
    }

    /// The number of an absent page's ghost entry, or 0. Needs no lock.
    pub(super) fn ghost(&self, page_no: u32) -> Option<u64> {
        // Relaxed: the number orders nothing.
        match read(self.0.get(page_no as usize)?.word.load(Ordering::Relaxed)) {
            WordState::Absent(ghost) => Some(ghost),
            WordState::Resident { .. } => None,
        }
    }

    /// Gives a page another ghost entry if it is still absent with the entry `seen`. Needs no lock.
    pub(super) fn set_ghost(&self, page_no: u32, seen: u64, ghost: u64) {
        // Relaxed, and it may fail: the number orders nothing, and another reader's will do. It
        // never overwrites a resident page's word.
        let _ = self.0[page_no as usize].word.compare_exchange(
            seen,
            ghost & !RESIDENT,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
    }

    /// Makes an absent page with this head resident. Requires the lock.
    pub(super) fn publish(&self, page_no: u32, frame: FrameNo, page_head: u64) {
        let Slot { word, head } = &self.0[page_no as usize];
        debug_assert!(word.load(Ordering::Relaxed) & RESIDENT == 0);
        // Relaxed: published by the store below.
        head.store(page_head, Ordering::Relaxed);
        // Release: a thread that finds the frame here sees the bytes written before. A plain store
        // suffices: while the lock is held, other threads only change an absent page's ghost entry,
        // which ends here.
        word.store(resident(frame, 0), Ordering::Release);
    }

    /// Makes a resident page absent if it was used at most `uses` times. Requires the lock.
    pub(super) fn unlink(&self, page_no: u32, frame: FrameNo, uses: u64, ghost: u64) -> bool {
        // Relaxed: this publishes no bytes. The epoch ensures that no reader finds the frame after
        // the grace period: a thread pinned later sees what was stored before.
        self.0[page_no as usize]
            .word
            .compare_exchange(
                resident(frame, uses),
                ghost & !RESIDENT,
                Ordering::Relaxed,
                Ordering::Relaxed,
            )
            .is_ok()
    }

    /// Subtracts one use, or all. Requires the lock.
    pub(super) fn subtract_uses(&self, page_no: u32, frame: FrameNo, seen: u64, left: u64) {
        // Relaxed, and it may fail: this is only a count.
        let _ = self.0[page_no as usize].word.compare_exchange(
            resident(frame, seen),
            resident(frame, left),
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
    }
}
