//! A small number for each thread, by which threads are spread over what they would else share.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// This thread's number. Threads that are born one after the other have numbers that follow each other.
#[inline]
pub(super) fn number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static MINE: Cell<usize> = const { Cell::new(usize::MAX) });
    let mut mine = MINE.get();
    if mine == usize::MAX {
        // Relaxed: that numbers differ is enough.
        mine = NEXT.fetch_add(1, Ordering::Relaxed);
        MINE.set(mine);
    }
    mine
}
