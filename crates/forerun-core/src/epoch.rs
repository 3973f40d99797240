//! Epoch-based reclamation, with one collector for each process.
//!
//! ```text
//!   thread ──> its participant ──> collector of this process ──> what waits to be freed
//!                     │
//!                     └ of a collector of the parent process: forgotten, and another one made
//! ```
//!
//! `crossbeam_epoch` has a collector of its own, which a child process inherits together with the pins of the parent's
//! other threads. Those threads do not exist in the child, their pins are never given up, and nothing would be freed
//! there any more. What the parent had deferred waits in it, too, and would be run on the parent's tables. So a child
//! begins with a new collector and leaves the inherited one alone.

use std::cell::Cell;
use std::ptr;

use crossbeam_epoch::{Collector, Guard, LocalHandle};

use crate::{Owner, PerProcess};

/// A thread's part in the collector.
struct Participant {
    owner: Owner,
    handle: LocalHandle,
}

/// This thread's participant, and who frees it when the thread ends.
struct Keeper(Cell<*const Participant>);

thread_local! {
    /// What the keeper has. Apart from it, because a local without a destructor is read without asking whether it is
    /// still there.
    static MINE: Cell<*const Participant> = const { Cell::new(ptr::null()) };
    static KEEPER: Keeper = const { Keeper(Cell::new(ptr::null())) };
}

impl Drop for Keeper {
    fn drop(&mut self) {
        MINE.set(ptr::null());
        // SAFETY: what the keeper has came from `Box::into_raw`, and only this thread, which is ending, uses it.
        let mine = unsafe { self.0.get().as_ref() };
        // A participant of the parent process is left alone.
        if mine.is_some_and(|mine| mine.owner.is_this_process()) {
            // SAFETY: as above; nothing points to it any more.
            drop(unsafe { Box::from_raw(self.0.get().cast_mut()) });
        }
    }
}

/// Pins the current thread: what other threads defer from now on is not run before the guard is dropped. Pins nest.
#[inline]
pub fn pin() -> Guard {
    // SAFETY: the keeper frees what this points to, and sets it to null before, when the thread ends.
    match unsafe { MINE.get().as_ref() } {
        Some(mine) if mine.owner.is_this_process() => mine.handle.pin(),
        _ => pin_first(),
    }
}

/// [`pin`] for a thread that takes no part yet, or took part in a parent process.
#[cold]
fn pin_first() -> Guard {
    let owner = Owner::this_process();
    let handle = register();
    let guard = handle.pin();
    // A thread that is ending has no keeper any more, and takes part for this once.
    let _ = KEEPER.try_with(|keeper| {
        let mine = Box::into_raw(Box::new(Participant { owner, handle }));
        // The one before, if any, was the parent's, and is left as it is.
        keeper.0.set(mine);
        MINE.set(mine);
    });
    guard
}

/// This thread's part in the collector of this process, or of the simulation that the thread belongs to: when what was
/// deferred runs must not depend on earlier simulations.
fn register() -> LocalHandle {
    #[cfg(feature = "sim")]
    if let Some(handle) = crate::sync::sim::register_in_epochs() {
        return handle;
    }
    static COLLECTOR: PerProcess<Collector> = PerProcess::new();
    COLLECTOR.get_or_init(Collector::new).register()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn what_is_deferred_may_pin() {
        let (done, wait) = crate::sync::mpsc::channel();
        pin().defer(move || {
            drop(pin());
            done.send(()).unwrap();
        });
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while wait.try_recv().is_err() {
            assert!(std::time::Instant::now() < deadline, "it is never run");
            pin().flush();
        }
    }

    #[test]
    fn what_is_deferred_runs_once_no_thread_is_pinned() {
        let counted = Arc::new(());
        let held = pin();
        let also = counted.clone();
        std::thread::spawn(move || {
            let guard = pin();
            guard.defer(move || drop(also));
            guard.flush();
        })
        .join()
        .unwrap();
        for _ in 0..100 {
            std::thread::spawn(|| pin().flush()).join().unwrap();
        }
        assert_eq!(Arc::strong_count(&counted), 2, "a pin holds it");
        drop(held);
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while Arc::strong_count(&counted) > 1 {
            assert!(std::time::Instant::now() < deadline, "it is never run");
            pin().flush();
            std::thread::yield_now();
        }
    }
}
