//! Work on many things, done by several threads.
//!
//! ```text
//!   threads   each takes the next number; once one has failed, none after it
//!   result    all, in the order of the numbers; or the error of the first that has failed, or of
//!             another one that has panicked
//! ```

use std::iter;
use std::ops::Range;
use std::panic::resume_unwind;

use forerun_core::sync::atomic::{AtomicUsize, Ordering};
use forerun_core::sync::thread;

use crate::{Error, Result, panics};

/// Who does the work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Threads {
    /// How many there are at most, the caller's included.
    pub(crate) count: usize,
    /// The name of the others.
    pub(crate) name: &'static str,
    /// Completes "a panic while …".
    pub(crate) doing: &'static str,
}

/// Calls `make` for each number, in this thread and others, and adds the results to `into` in
/// order. On an error, adds those before the lowest number that has one; it may not call `make` for
/// higher ones.
///
/// # Errors
/// Those of `make`; [`Error::Panicked`] if it panicked. Of several, a panic, after which nothing is
/// known, then [`Error::Closed`], then that of the lowest number.
pub(crate) fn in_order<T: Send>(
    numbers: Range<usize>,
    threads: Threads,
    make: impl Fn(usize) -> Result<T> + Sync,
    into: &mut Vec<T>,
) -> Result<()> {
    let Threads { count, name, doing } = threads;
    let next = AtomicUsize::new(numbers.start);
    // No number from here on is needed any more.
    let end = AtomicUsize::new(numbers.end);
    let work = || {
        let mut made = Vec::new();
        loop {
            // Relaxed, all: the threads share only numbers. Joining them orders the rest. Numbers
            // are taken in ascending order, so all below one that has failed have been taken.
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= end.load(Ordering::Relaxed) {
                return made;
            }
            let result = panics::catch(doing, || make(at));
            if result.is_err() {
                end.fetch_min(at, Ordering::Relaxed);
            }
            made.push((at, result));
        }
    };
    let mut made = thread::scope(|scope| {
        let start = || {
            let builder = thread::Builder::new().name(name.into());
            builder.spawn_scoped(scope, work)
        };
        // If the system has no more threads, fewer do the work.
        let others: Vec<_> = (1..count).map_while(|_| start().ok()).collect();
        let mut made = work();
        for other in others {
            // `work` catches panics of `make`. If there are others, nothing is known.
            made.extend(other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        made
    });
    made.sort_unstable_by_key(|(at, _)| *at);
    let mut made = made.into_iter();
    for number in numbers {
        match made.next() {
            Some((at, Ok(result))) if at == number => into.push(result),
            Some((at, Err(error))) if at == number => {
                let others = made.filter_map(|(_, result)| result.err());
                // Of equals, the first.
                let worst = iter::once(error).chain(others).min_by_key(rank);
                return worst.map_or(Ok(()), Err);
            }
            _ => {
                return Err(Error::Panicked {
                    doing,
                    message: format!("number {number} has no result"),
                });
            }
        }
    }
    Ok(())
}

/// Of several errors, the lowest is returned.
fn rank(error: &Error) -> u8 {
    match error {
        Error::Panicked { .. } => 0,
        Error::Closed => 1,
        _ => 2,
    }
}

#[cfg(test)]
#[path = "parallel_tests.rs"]
mod tests;
