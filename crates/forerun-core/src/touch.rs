//! The one await that a lookup needs: prefetch a cache line, let other lookups run, continue.
//!
//! ```text
//!   lookup A   touch(a) ─┐            ┌─ a is here: compare, touch(a') ─┐
//!   lookup B             └ touch(b) ─┐│                                 └ …
//!   lookup C                         └┴ touch(c) ─ …
//! ```
//!
//! [`touch`] issues the prefetch when it is called and suspends its lookup once. After it is
//! resumed, the lookup reads the line as usual. Whether the line has arrived affects only how long
//! that read takes.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::arch::prefetch_read;

/// Prefetches the cache line that holds `ptr` and returns a future that is pending exactly once.
///
/// The prefetch starts immediately, not at the first poll, so the future is a single flag and a
/// suspended lookup stays small. `ptr` is never dereferenced: any address is allowed, and an
/// invalid one only wastes a prefetch. To fetch a second line, call [`prefetch_read`] on it before
/// awaiting the first.
///
/// ```
/// use forerun_core::{block_on, touch};
///
/// let table = [10_u64, 20, 30];
/// let lookup = async |i: usize| {
///     touch(&table[i]).await;
///     table[i]
/// };
/// assert_eq!(block_on(lookup(1)), 20);
/// ```
#[inline(always)]
pub fn touch<T>(ptr: *const T) -> Touch {
    prefetch_read(ptr);
    suspend()
}

/// A future that is pending exactly once, for a lookup that has already prefetched what it needs.
#[inline(always)]
pub fn suspend() -> Touch {
    Touch { yielded: false }
}

/// The future of [`touch`] and of [`suspend`].
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct Touch {
    yielded: bool,
}

impl Future for Touch {
    type Output = ();

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if self.yielded {
            Poll::Ready(())
        } else {
            self.yielded = true;
            Poll::Pending
        }
    }
}
