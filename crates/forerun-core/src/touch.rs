//! The one await a lookup needs: ask for a cache line, let the other lookups run, go on.
//!
//! ```text
//!   lookup A   touch(a) ─┐            ┌─ a is here: compare, touch(a') ─┐
//!   lookup B             └ touch(b) ─┐│                                 └ …
//!   lookup C                         └┴ touch(c) ─ …
//! ```
//!
//! [`touch`] issues the prefetch when it is called and suspends its lookup once. Resumed, the lookup reads the
//! line as if nothing had happened: whether the line has arrived changes only the time the read takes.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::arch::prefetch_read;

/// Prefetches the cache line that holds `ptr` and returns a future that is pending exactly once.
///
/// The prefetch starts now, not at the first poll, so that the future is a single flag and a suspended lookup
/// stays small. `ptr` is never read through: any address is allowed, a wild one costs a wasted prefetch.
/// For a second line, call [`prefetch_read`] on it before awaiting the first.
///
/// ```
/// use forerun_core::{alone, touch};
///
/// let table = [10_u64, 20, 30];
/// let lookup = async |i: usize| {
///     touch(&table[i]).await;
///     table[i]
/// };
/// assert_eq!(alone(lookup(1)), 20);
/// ```
#[inline(always)]
pub fn touch<T>(ptr: *const T) -> Touch {
    prefetch_read(ptr);
    suspend()
}

/// A future that is pending exactly once: for a lookup that has prefetched what it needs by itself.
#[inline(always)]
pub fn suspend() -> Touch {
    Touch { yielded: false }
}

/// The future of [`touch`] and of [`suspend`].
#[derive(Debug)]
#[must_use = "the line is worth waiting for: await the touch"]
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
