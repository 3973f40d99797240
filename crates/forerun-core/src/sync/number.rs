//! A small number for each thread.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The calling thread's number, by which threads are spread over what they would else share.
/// Threads that are born one after the other have numbers that follow each other; a simulation
/// counts its own from 0.
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
        // Relaxed: that numbers differ is enough.
        mine = NEXT.fetch_add(1, Ordering::Relaxed);
        MINE.set(mine);
    }
    mine
}
