//! Epoch-based reclamation, with one collector per process.
//!
//! ```text
//!   thread ──> its participant ──> collector of this process ──> deferred work
//!                     │
//!                     └ inherited from the parent process: abandoned and replaced
//! ```
//!
//! A child process inherits the default collector of `crossbeam_epoch` together with the pins of
//! the parent's other threads. Those threads do not exist in the child, so their pins are never
//! dropped, and the child could free nothing. The collector also holds the parent's deferred work,
//! which would run on the parent's tables. A child therefore starts with a new collector and leaves
//! the inherited one alone.

use std::cell::Cell;
use std::ptr;

use crossbeam_epoch::{Collector, Guard, LocalHandle};

use crate::{Owner, PerProcess};

/// A thread's registration with the collector.
struct Participant {
    owner: Owner,
    handle: LocalHandle,
}

/// Owns this thread's participant and frees it when the thread ends.
struct ParticipantOwner(Cell<*const Participant>);

thread_local! {
    /// The pointer that the owner holds. It is kept separately because a thread local without a
    /// destructor is read without checking whether it still exists.
    static MINE: Cell<*const Participant> = const { Cell::new(ptr::null()) };
    static OWNER: ParticipantOwner = const { ParticipantOwner(Cell::new(ptr::null())) };
}

impl Drop for ParticipantOwner {
    fn drop(&mut self) {
        MINE.set(ptr::null());
        // SAFETY: the pointer came from `Box::into_raw`, and only this thread, which is ending,
        // uses it.
        let mine = unsafe { self.0.get().as_ref() };
        // A participant of the parent process is left alone.
        if mine.is_some_and(|mine| mine.owner.is_this_process()) {
            // SAFETY: as above; nothing points to it any more.
            drop(unsafe { Box::from_raw(self.0.get().cast_mut()) });
        }
    }
}

/// Pins the current thread: work that other threads defer from now on does not run before the
/// returned guard is dropped. Pins nest.
#[inline]
pub fn pin() -> Guard {
    // SAFETY: the owner frees the participant when the thread ends, and sets this pointer to null
    // first.
    match unsafe { MINE.get().as_ref() } {
        Some(mine) if mine.owner.is_this_process() => mine.handle.pin(),
        _ => pin_first(),
    }
}

/// [`pin`] for a thread that is not registered yet, or was registered in a parent process.
#[cold]
fn pin_first() -> Guard {
    let owner = Owner::this_process();
    let handle = register();
    let guard = handle.pin();
    // A thread that is ending no longer has an owner; it is registered for this pin only.
    let _ = OWNER.try_with(|owner_of_mine| {
        let mine = Box::into_raw(Box::new(Participant { owner, handle }));
        // A previous participant belongs to the parent process and is left alone.
        owner_of_mine.0.set(mine);
        MINE.set(mine);
    });
    guard
}

/// Registers this thread with the collector of this process, or of the simulation that the thread
/// belongs to. A simulation has its own, because the time at which deferred work runs must not
/// depend on earlier simulations.
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
    fn deferred_work_may_pin() {
        let (done, wait) = crate::sync::mpsc::channel();
        pin().defer(move || {
            drop(pin());
            done.send(()).unwrap();
        });
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while wait.try_recv().is_err() {
            assert!(
                std::time::Instant::now() < deadline,
                "the deferred work never runs"
            );
            pin().flush();
        }
    }

    #[test]
    fn deferred_work_runs_once_no_thread_is_pinned() {
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
        assert_eq!(Arc::strong_count(&counted), 2, "a pin delays it");
        drop(held);
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while Arc::strong_count(&counted) > 1 {
            assert!(
                std::time::Instant::now() < deadline,
                "the deferred work never runs"
            );
            pin().flush();
            std::thread::yield_now();
        }
    }
}
