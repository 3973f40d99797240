//! Counts the cursors that hold a frame for longer than an epoch pin.
//!
//! ```text
//!   │ retired, 1 bit │ cursors, 31 bits │
//!
//!   in a slot      hold +1, release -1
//!   evicted        retired once the pins of that time have gone; nobody holds it again
//!   retired and held by no cursor: reclaimed, by the thread that makes it so
//! ```

use forerun_core::RegionError;
use forerun_core::sync::modelled::atomic::{AtomicU32, Ordering};
#[cfg(not(loom))]
use forerun_core::{Atomics, Pages};

/// No slot names the frame any more, and no pin protects it.
const RETIRED: u32 = 1 << 31;

/// The words of all frames. Most frames of a large cache may never be used, so the words take
/// memory only where they are written.
#[cfg(not(loom))]
pub(super) type HolderWords = Atomics<AtomicU32>;
#[cfg(loom)]
pub(super) type HolderWords = Box<[AtomicU32]>;

/// The words of so many frames, which no cursor holds.
#[cfg(not(loom))]
pub(super) fn holder_words(count: usize) -> Result<HolderWords, RegionError> {
    Atomics::new(count, Pages::Small)
}
#[cfg(loom)]
pub(super) fn holder_words(count: usize) -> Result<HolderWords, RegionError> {
    Ok((0..count).map(|_| AtomicU32::new(0)).collect())
}

/// The cursors that hold one frame.
#[derive(Debug)]
pub(super) struct Holders<'w>(pub(super) &'w AtomicU32);

impl Holders<'_> {
    /// Adds a cursor. The caller is pinned and, while it was, has found the frame in a slot.
    #[inline(always)]
    pub(super) fn hold(&self) {
        // Relaxed: whoever retires the frame first waits for this thread's pin, and so sees this.
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes a cursor. Returns whether the caller has to reclaim the frame.
    #[inline(always)]
    pub(super) fn release(&self) -> bool {
        // Release: what this cursor has read, it has read before the frame is written again.
        // Acquire: so have the others, if this one reclaims the frame.
        let is_last = self.0.fetch_sub(1, Ordering::AcqRel) == RETIRED + 1;
        if is_last {
            self.reset();
        }
        is_last
    }

    /// Notes that no slot names the frame and that every pin that may have found it there has gone.
    /// Returns whether the caller has to reclaim the frame; if not, its last holder has to.
    pub(super) fn retire(&self) -> bool {
        // Acquire: as in `release`. Release: the last holder reclaims after this.
        let is_free = self.0.fetch_or(RETIRED, Ordering::AcqRel) == 0;
        if is_free {
            self.reset();
        }
        is_free
    }

    /// Prepares for the frame's next publication.
    fn reset(&self) {
        // Relaxed: no other thread uses the counter until it finds the frame in a slot again, and
        // the slot is stored with Release after this.
        self.0.store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn exactly_one_of_retiring_and_releasing_reclaims() {
        let word = AtomicU32::new(0);
        let holders = Holders(&word);
        assert!(holders.retire(), "nobody holds it");
        for _ in 0..2 {
            holders.hold();
            holders.hold();
            assert!(!holders.release());
            assert!(!holders.retire());
            assert!(holders.release());
        }
        holders.hold();
        assert!(!holders.release(), "it is still in its slot");
        assert!(holders.retire());
    }
}
