//! The use of a parent's handles in a child process.

#[path = "testing/fork.rs"]
mod fork;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forerun_core::{Forked, Owner, ProcessBound, epoch};
use fork::Ending::{AtOnce, Exit};

#[test]
fn parent_child_and_grandchild_are_different_processes() {
    let parent = Owner::this_process();
    fork::in_child(AtOnce, || {
        let opened_by = parent.process();
        assert_eq!(parent.check(), Err(Forked { opened_by }));
        let child = Owner::this_process();
        assert!(child.is_this_process() && !parent.is_this_process());
        fork::in_child(AtOnce, || {
            assert!(!child.is_this_process() && !parent.is_this_process());
            assert!(Owner::this_process().is_this_process());
        });
        assert!(child.is_this_process());
    });
    assert!(parent.is_this_process());
}

#[test]
#[cfg(target_os = "linux")]
fn a_bare_clone_counts_as_another_process() {
    let parent = Owner::this_process();
    // SAFETY: like fork, but without the C library's handlers. The child makes at most two system
    // calls and exits.
    let process = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
    assert!(process >= 0);
    if process == 0 {
        let code = i32::from(parent.is_this_process());
        // SAFETY: the child ends here.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: `status` has space for what the call writes.
    let waited = unsafe { libc::waitpid(process as i32, &raw mut status, 0) };
    assert_eq!(i64::from(waited), process);
    assert_eq!(status, 0, "the child mistook itself for its parent");
}

#[test]
fn a_child_leaks_what_belongs_to_its_parent() {
    struct Dropped;
    impl Drop for Dropped {
        fn drop(&mut self) {
            panic!("dropped in a child");
        }
    }
    let bound = ProcessBound::new(Dropped);
    fork::in_child(AtOnce, || {
        // SAFETY: in the child this is the only use of the copy; the parent forgets its own below.
        drop(unsafe { std::ptr::read(&raw const bound) });
        let own = ProcessBound::new(Arc::new(()));
        let counted = Arc::clone(own.get().unwrap());
        drop(own);
        assert_eq!(
            Arc::strong_count(&counted),
            1,
            "what a child makes is its own"
        );
    });
    std::mem::forget(bound);
}

#[test]
fn a_child_reclaims_memory_although_a_parent_thread_was_pinned() {
    static IS_PINNED: AtomicBool = AtomicBool::new(false);
    static LET_GO: AtomicBool = AtomicBool::new(false);
    drop(epoch::pin());
    let pinned = std::thread::spawn(|| {
        let _guard = epoch::pin();
        IS_PINNED.store(true, Ordering::Relaxed);
        while !LET_GO.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
    });
    while !IS_PINNED.load(Ordering::Relaxed) {
        std::thread::yield_now();
    }
    let of_parent = Arc::new(());
    let also = Arc::clone(&of_parent);
    epoch::pin().defer(move || drop(also));
    fork::in_child(Exit, || {
        let counted = Arc::new(());
        let also = Arc::clone(&counted);
        epoch::pin().defer(move || drop(also));
        // If this never ends, an alarm kills the child.
        while Arc::strong_count(&counted) > 1 {
            epoch::pin().flush();
        }
        assert_eq!(
            Arc::strong_count(&of_parent),
            2,
            "what the parent deferred is the parent's"
        );
    });
    LET_GO.store(true, Ordering::Relaxed);
    pinned.join().unwrap();
}
