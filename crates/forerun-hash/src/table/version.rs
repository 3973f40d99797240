//! Versions: they let a reader detect that entries moved while it read.
//!
//! ```text
//!   writer   v = 6 -> 7      clear slots, move entries     7 -> 8
//!   reader           read v                                        read v again: unchanged and even? otherwise retry
//! ```
//!
//! Each segment has a version counter: a sequence lock of 64 bits, which does not wrap. A writer
//! increments it before and after it frees a slot or moves an entry. Adding an entry without a move
//! and changing a value do not increment it, so readers then never retry.
//!
//! A frozen table has no writer, so its readers skip all that ([`Access`]).

use forerun_core::sync::modelled::atomic::{AtomicU64, Ordering};

/// A sequence counter, odd while entries are being moved.
#[derive(Debug, Default)]
pub(super) struct Version(AtomicU64);

/// A counter value that a reader has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp(u64);

impl Stamp {
    /// A value that no counter ever has.
    pub(super) const NEVER: Stamp = Stamp(u64::MAX);
}

impl Version {
    /// Call it before reading a bucket. A stamp taken during a move never validates.
    #[inline(always)]
    pub(super) fn begin_read(&self) -> Stamp {
        // Acquire: the buckets are read after it. An odd number is rounded down to one that never
        // returns.
        Stamp(self.0.load(Ordering::Acquire) & !1)
    }

    /// Call it after reading: whether nothing was freed or moved in between.
    #[inline(always)]
    pub(super) fn validate(&self, seen: Stamp) -> bool {
        // Relaxed: every read of a bucket before it is an acquire, which keeps this load after it.
        // If such a read saw a store of the writer, which is a release, this load sees the
        // incremented counter.
        self.0.load(Ordering::Relaxed) == seen.0
    }

    /// Runs a change that frees slots or moves entries. The caller holds the segment's lock.
    pub(super) fn write(&self, change: impl FnOnce()) {
        let now = self.0.load(Ordering::Relaxed);
        debug_assert!(now & 1 == 0, "nested writes");
        // Relaxed: the stores that follow are releases, which keep this one before them.
        self.0.store(now + 1, Ordering::Relaxed);
        change();
        // Release: a reader that sees the even number also sees all moves made under the odd one.
        self.0.store(now + 2, Ordering::Release);
    }
}

/// How a lookup reads a segment, and whether it must check that no entry moved meanwhile.
pub(super) trait Access: Copy + 'static {
    /// What tells of moves.
    type Version<'a>: Copy;
    /// A moment before a read.
    type Moment: Copy;
    /// A moment after which no read is valid.
    const NEVER: Self::Moment;
    /// Whether slots may be written while they are read.
    const IS_SHARED: bool;

    fn version(version: &Version) -> Self::Version<'_>;

    /// See [`Version::begin_read`].
    fn begin_read(version: Self::Version<'_>) -> Self::Moment;

    /// See [`Version::validate`].
    fn validate(version: Self::Version<'_>, seen: Self::Moment) -> bool;
}

/// Access beside writers.
#[derive(Clone, Copy)]
pub(super) struct Shared;

impl Access for Shared {
    type Version<'a> = &'a Version;
    type Moment = Stamp;
    const NEVER: Stamp = Stamp::NEVER;
    const IS_SHARED: bool = true;

    #[inline(always)]
    fn version(version: &Version) -> &Version {
        version
    }

    #[inline(always)]
    fn begin_read(version: &Version) -> Stamp {
        version.begin_read()
    }

    #[inline(always)]
    fn validate(version: &Version, seen: Stamp) -> bool {
        version.validate(seen)
    }
}

/// Access to a table that no one can write: there is nothing to check.
#[derive(Clone, Copy)]
pub(super) struct Frozen;

impl Access for Frozen {
    type Version<'a> = ();
    type Moment = ();
    const NEVER: () = ();
    const IS_SHARED: bool = false;

    #[inline(always)]
    fn version(_: &Version) {}

    #[inline(always)]
    fn begin_read((): ()) {}

    #[inline(always)]
    fn validate((): (), (): ()) -> bool {
        true
    }
}
