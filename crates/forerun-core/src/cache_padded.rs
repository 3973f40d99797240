//! Values that share their cache line with nothing.

use std::ops::Deref;

/// A value that occupies cache lines of its own, so that writing it does not take the data beside
/// it out of other cores' caches.
///
/// It is aligned to two lines, as crossbeam's type of this name is: Intel's CPUs prefetch
/// lines in pairs, so the neighbour of a line that others write is taken away as well.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use forerun_core::CachePadded;
///
/// struct Counters {
///     reads: CachePadded<AtomicU64>,
///     writes: CachePadded<AtomicU64>,
/// }
///
/// let counters = Counters {
///     reads: CachePadded::new(AtomicU64::new(0)),
///     writes: CachePadded::new(AtomicU64::new(0)),
/// };
/// counters.reads.fetch_add(1, Ordering::Relaxed);
/// assert_eq!(size_of_val(&counters), 256);
/// ```
#[repr(align(128))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CachePadded<T>(T);

impl<T> CachePadded<T> {
    /// A value in cache lines of its own.
    pub const fn new(value: T) -> CachePadded<T> {
        CachePadded(value)
    }
}

impl<T> Deref for CachePadded<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}
