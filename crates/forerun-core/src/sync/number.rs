//! A small number per thread.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The calling thread's number. It distributes threads over structures that they would otherwise
/// share. Threads that start one after another have consecutive numbers. A simulation numbers its
/// own threads from 0.
#[inline]
pub fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static MINE: Cell<usize> = const { Cell::new(usize::MAX) });
    #[cfg(feature = "sim")]
    if let Some(number) = super::sim::thread_index() {
        return number;
    }
    let mut mine = MINE.get();
    if mine == usize::MAX {
        // Relaxed: the numbers only need to differ.
        mine = NEXT.fetch_add(1, Ordering::Relaxed);
        MINE.set(mine);
    }
    mine
}
