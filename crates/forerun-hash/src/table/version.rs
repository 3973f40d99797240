//! Versions: how a reader learns that what it read was moved meanwhile.
//!
//! ```text
//!   writer   v = 6 -> 7      clear slots, move entries     7 -> 8
//!   reader           read v                                        read v again: the same and even? else anew
//! ```
//!
//! Each segment has a version counter (a sequence lock of 64 bits, which does not wrap). The writer raises it before and after it frees a slot or moves an entry; adding an
//! entry and changing a value need no notice, so a table that is only added to and updated never makes
//! a reader look twice.

use forerun_core::sync::modelled::atomic::{AtomicU64, Ordering};

/// A counter: odd while something is being moved.
#[derive(Debug, Default)]
pub(super) struct Version(AtomicU64);

/// What a reader saw of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen(u64);

impl Seen {
    /// What no counter is ever seen at.
    pub(super) const NEVER: Seen = Seen(u64::MAX);
}

impl Version {
    /// Before reading a bucket. What was seen of a move under way is never valid later.
    #[inline(always)]
    pub(super) fn see(&self) -> Seen {
        // Acquire: the buckets are read after it. An odd number is made one that never comes again.
        Seen(self.0.load(Ordering::Acquire) & !1)
    }

    /// After reading: whether nothing was freed or moved in the meantime.
    #[inline(always)]
    pub(super) fn is_still(&self, seen: Seen) -> bool {
        // Relaxed: every read of a bucket before it is an acquire, which keeps this one behind it;
        // and if such a read saw a store of the writer, a release, this one sees the raised counter.
        self.0.load(Ordering::Relaxed) == seen.0
    }

    /// Runs a change of the writer, who holds the segment's lock, that frees slots or moves entries.
    pub(super) fn changing(&self, change: impl FnOnce()) {
        let now = self.0.load(Ordering::Relaxed);
        debug_assert!(now & 1 == 0, "a change within a change");
        // Relaxed: the stores that follow are releases, which keep this one before them.
        self.0.store(now + 1, Ordering::Relaxed);
        change();
        // Release: who sees the even number sees all that was moved under the odd one.
        self.0.store(now + 2, Ordering::Release);
    }
}
