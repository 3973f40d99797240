//! One word a page: where it is in memory, or when it was there last.
//!
//! ```text
//!   resident   │ 1 │ 0 … │ frame, 32 bits │ 0 … │ uses, 0 to 3 │
//!   absent     │ 0 │ number of the eviction that took it, 0: none      │
//! ```
//!
//! Words become resident and absent under the cache's lock only. Without it readers load them and count a use, up to
//! three: pages that are used all the time are not written to.

use forerun_core::sync::modelled::atomic::{AtomicU64, Ordering};

use super::frames::FrameNo;

const RESIDENT: u64 = 1 << 63;
const FRAME_SHIFT: u32 = 8;
const USES: u64 = 3;

/// What a word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WordState {
    Resident {
        frame: FrameNo,
        uses: u64,
    },
    /// Number of the eviction, if it was resident.
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

/// The words of a run.
#[derive(Debug)]
pub(super) struct Words(Box<[AtomicU64]>);

impl Words {
    pub(super) fn new(count: usize) -> Self {
        Words((0..count).map(|_| AtomicU64::new(0)).collect())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Where a page's word lies, to be prefetched.
    #[inline(always)]
    pub(super) fn address(&self, page_no: u32) -> *const AtomicU64 {
        self.0.as_ptr().wrapping_add(page_no as usize)
    }

    /// The frame of a page, if it is resident, and a use counted.
    #[inline(always)]
    pub(super) fn find(&self, page_no: u32) -> Option<FrameNo> {
        let word = self.0.get(page_no as usize)?;
        // Acquire: pairs with the Release of `publish`, so that the frame's bytes are seen. A count in between is a
        // read-modify-write, which leaves the pair as it is.
        let seen = word.load(Ordering::Acquire);
        if seen & RESIDENT == 0 {
            return None;
        }
        if seen & USES < USES {
            // Relaxed: a count orders nothing. It fails if the word has changed: then the use is not counted, and if the
            // page was evicted, the word that says so stays.
            let _ = word.compare_exchange(seen, seen + 1, Ordering::Relaxed, Ordering::Relaxed);
        }
        Some(FrameNo::from_bits((seen >> FRAME_SHIFT) as u32))
    }

    /// How a page stands. For the holder of the cache's lock, for whom only the uses may change.
    pub(super) fn state(&self, page_no: u32) -> WordState {
        // Relaxed: what changes besides the uses is ordered by the lock.
        read(self.0[page_no as usize].load(Ordering::Relaxed))
    }

    /// Makes an absent page resident. Under the lock.
    pub(super) fn publish(&self, page_no: u32, frame: FrameNo) {
        let word = &self.0[page_no as usize];
        debug_assert!(word.load(Ordering::Relaxed) & RESIDENT == 0);
        // Release: the frame's bytes, written before, are seen by whoever finds it here. A plain store: nobody else
        // changes the word of an absent page while the lock is held.
        word.store(resident(frame, 0), Ordering::Release);
    }

    /// Makes a resident page absent if it was used no more than `uses` times. Under the lock.
    pub(super) fn unlink(&self, page_no: u32, frame: FrameNo, uses: u64, eviction: u64) -> bool {
        // Relaxed: no bytes are told of. That no reader finds the frame after the grace period is the epoch's doing:
        // whoever is pinned after it sees what was stored before it.
        self.0[page_no as usize]
            .compare_exchange(
                resident(frame, uses),
                eviction & !RESIDENT,
                Ordering::Relaxed,
                Ordering::Relaxed,
            )
            .is_ok()
    }

    /// Takes one use off, or all. Under the lock.
    pub(super) fn forget_uses(&self, page_no: u32, frame: FrameNo, seen: u64, left: u64) {
        // Relaxed, and it may fail: it is a count.
        let _ = self.0[page_no as usize].compare_exchange(
            resident(frame, seen),
            resident(frame, left),
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
    }
}
