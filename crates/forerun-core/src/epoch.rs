//! Epoch-based reclamation, with one collector per process, and others for structures whose work
//! must not wait for everyone's pins.
//!
//! ```text
//!   thread ──> its participant ──> collector of this process ──> deferred work
//!                     │
//!                     └ inherited from the parent process: abandoned and replaced
//!
//!   thread ──> its participants ──> Collector ──> deferred work of one structure
//!                     │
//!                     └ of a collector that is gone: freed when the thread joins another one
//! ```
//!
//! A pin holds up all work that is deferred to its collector, whoever deferred it. Whoever pins
//! the process's collector may wait for a disk meanwhile, or be a user's code. So a structure that
//! cannot go on without its deferred work has a [`Collector`] of its own.
//!
//! A child process inherits the default collector of `crossbeam_epoch` together with the pins of
//! the parent's other threads. Those threads do not exist in the child, so their pins are never
//! dropped, and the child could free nothing. The collector also holds the parent's deferred work,
//! which would run on the parent's tables. A child therefore starts with a new collector and leaves
//! the inherited one alone.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::ptr;
use std::sync::{Arc, Weak};

use crossbeam_epoch::{Collector as Epochs, Guard, LocalHandle};

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
    static COLLECTOR: PerProcess<Epochs> = PerProcess::new();
    COLLECTOR.get_or_init(Epochs::new).register()
}

/// A collector of its own, for one structure or a few: its deferred work waits only for those who
/// pin this collector. Clones are the same collector.
///
/// It belongs to the process that made it: a child process that inherits it can pin it but cannot
/// count on its deferred work.
#[derive(Clone)]
pub struct Collector {
    epochs: Epochs,
    /// Shows the threads' participants whether the collector still exists.
    alive: Arc<()>,
}

/// A thread's registration with a [`Collector`].
struct Member {
    participant: Participant,
    collector: Weak<()>,
}

/// A thread's registrations with collectors.
#[expect(clippy::vec_box, reason = "`LAST` points to one of them")]
struct Members(RefCell<Vec<Box<Member>>>);

thread_local! {
    /// The collector that this thread pinned last.
    static LAST: Cell<*const Participant> = const { Cell::new(ptr::null()) };
    static MEMBERS: Members = const { Members(RefCell::new(Vec::new())) };
}

impl Collector {
    /// A collector without participants.
    pub fn new() -> Collector {
        Collector {
            epochs: Epochs::new(),
            alive: Arc::new(()),
        }
    }

    /// [`pin`](fn@pin) for this collector.
    #[inline]
    pub fn pin(&self) -> Guard {
        // SAFETY: `MEMBERS` owns the participant. Before it frees one, it sets this pointer to null
        // or to another.
        match unsafe { LAST.get().as_ref() } {
            Some(last) if self.has(last) => last.handle.pin(),
            _ => self.pin_other(),
        }
    }

    #[inline]
    fn has(&self, participant: &Participant) -> bool {
        *participant.handle.collector() == self.epochs && participant.owner.is_this_process()
    }

    /// [`Collector::pin`] for a thread that pinned another collector last.
    #[cold]
    fn pin_other(&self) -> Guard {
        let pinned = MEMBERS.try_with(|members| members.pin(self));
        // A thread that is ending is registered for this pin only.
        pinned.unwrap_or_else(|_| self.epochs.register().pin())
    }
}

impl Default for Collector {
    fn default() -> Collector {
        Collector::new()
    }
}

impl fmt::Debug for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collector").finish_non_exhaustive()
    }
}

impl Members {
    fn pin(&self, collector: &Collector) -> Guard {
        let (participant, gone) = self.join(collector);
        LAST.set(participant);
        // Pinning may run deferred work, and what is freed next runs the last work of collectors.
        // That work may pin.
        // SAFETY: `self` owns the participant until its collector is gone or the thread ends. The
        // caller has the collector.
        let guard = unsafe { &*participant }.handle.pin();
        gone.into_iter().for_each(Member::free);
        guard
    }

    /// The thread's participant of a collector, and those of collectors that are gone.
    #[expect(clippy::vec_box, reason = "they are moved out as they are")]
    fn join(&self, collector: &Collector) -> (*const Participant, Vec<Box<Member>>) {
        let mut members = self.0.borrow_mut();
        let known = members
            .iter()
            .find(|member| collector.has(&member.participant));
        if let Some(member) = known {
            return (&raw const member.participant, Vec::new());
        }
        let is_gone = |member: &mut Box<Member>| member.collector.strong_count() == 0;
        let gone = members.extract_if(.., is_gone).collect();
        let member = Box::new(Member {
            participant: Participant {
                owner: Owner::this_process(),
                handle: collector.epochs.register(),
            },
            collector: Arc::downgrade(&collector.alive),
        });
        let participant = &raw const member.participant;
        members.push(member);
        (participant, gone)
    }
}

impl Member {
    fn free(self: Box<Member>) {
        // A participant of the parent process is left alone.
        if self.participant.owner.is_this_process() {
            drop(self);
        } else {
            std::mem::forget(self);
        }
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        LAST.set(ptr::null());
        let members = std::mem::take(self.0.get_mut());
        members.into_iter().for_each(Member::free);
    }
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
    fn a_pin_holds_up_only_the_work_of_its_own_collector() {
        let (one, other) = (Collector::new(), Collector::new());
        let counted = Arc::new(());
        let also = counted.clone();
        let of_process = pin();
        let of_other = other.pin();
        let of_one = one.clone().pin();
        one.pin().defer(move || drop(also));
        let flush = || {
            for _ in 0..100 {
                one.pin().flush();
                std::thread::scope(|scope| {
                    scope.spawn(|| one.pin().flush());
                });
            }
        };
        flush();
        assert_eq!(
            Arc::strong_count(&counted),
            2,
            "a clone is the same collector"
        );
        drop(of_one);
        flush();
        assert_eq!(Arc::strong_count(&counted), 1);
        drop((of_process, of_other));
    }

    #[test]
    fn a_thread_forgets_collectors_that_are_gone() {
        let members = || MEMBERS.with(|members| members.0.borrow().len());
        let before = members();
        let kept = Collector::new();
        for _ in 0..100 {
            let collector = Collector::new();
            let (held, again) = (collector.pin(), collector.clone());
            drop(kept.pin());
            // Deferred work that joins a collector while others are left.
            collector.pin().defer(|| drop(Collector::new().pin()));
            drop((collector, again));
            drop(held);
        }
        drop(Collector::new().pin());
        assert!(members() <= before + 3, "{} participants", members());
    }

    #[test]
    fn work_that_runs_while_a_thread_joins_a_collector_may_join_another() {
        let (one, other) = (Collector::new(), Collector::new());
        let counted = Arc::new(());
        let also = (counted.clone(), other.clone());
        let in_a_thread = |work: &(dyn Fn() + Sync)| {
            std::thread::scope(|scope| scope.spawn(work).join()).unwrap();
        };
        one.pin().defer(move || drop((also.1.pin(), also.0)));
        one.pin().flush();
        // A thread's first pin runs the work of others.
        (0..8).for_each(|_| in_a_thread(&|| drop(one.pin())));
        assert_eq!(Arc::strong_count(&counted), 1);
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
