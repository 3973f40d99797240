//! Threads: the standard library's, except for scopes. The standard library frees its record of a
//! scope in precompiled code, on the last thread to end, and the sanitizer does not see that the
//! other threads are done with it. A scope of this module joins its threads, which the sanitizer
//! does see.

#![allow(
    unsafe_code,
    reason = "a scoped thread borrows data that outlives the scope"
)]

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use parking_lot::Mutex;

pub use std::thread::{
    AccessError, Builder, JoinHandle, LocalKey, Result, Thread, ThreadId, available_parallelism,
    current, panicking, park, park_timeout, sleep, spawn, yield_now,
};

/// A scope of threads that end before the scope does.
pub struct Scope<'scope, 'env: 'scope> {
    // `scope` empties this by hand: a drop could run when the borrowed references are no longer
    // valid.
    started: ManuallyDrop<Mutex<Vec<Arc<dyn Started + 'scope>>>>,
    // As in `std::thread::Scope`: both lifetimes must be invariant.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// A scoped thread with any result type.
trait Started: Send + Sync {
    /// Waits for its end.
    fn wait(&self);

    /// Drops its result. True if the result is a panic that was not observed.
    fn has_left_a_panic(&self) -> bool;
}

#[derive(Debug)]
struct Task<T> {
    thread: Mutex<Option<JoinHandle<()>>>,
    result: Mutex<Option<Result<T>>>,
}

impl<T: Send> Started for Task<T> {
    fn wait(&self) {
        // Held during the join, so that a second caller waits too.
        let mut thread = self.thread.lock();
        if let Some(thread) = thread.take() {
            thread.join().expect("the body catches panics");
        }
    }

    fn has_left_a_panic(&self) -> bool {
        matches!(self.result.lock().take(), Some(Err(_)))
    }
}

/// Runs `f`, which may start threads that borrow, and waits for these threads.
pub fn scope<'env, F, T>(f: F) -> T
where
    F: for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> T,
{
    let scope = Scope {
        started: ManuallyDrop::new(Mutex::default()),
        scope: PhantomData,
        env: PhantomData,
    };
    let result = catch_unwind(AssertUnwindSafe(|| f(&scope)));
    let mut has_panic = false;
    // One at a time: a thread may start others before it ends.
    loop {
        let Some(task) = scope.started.lock().pop() else {
            break;
        };
        task.wait();
        has_panic |= task.has_left_a_panic();
    }
    match result {
        Ok(_) if has_panic => panic!("a scoped thread panicked"),
        Ok(value) => value,
        Err(payload) => resume_unwind(payload),
    }
}

impl<'scope> Scope<'scope, '_> {
    /// Starts a thread that may borrow anything that outlives the scope.
    pub fn spawn<F, T>(&'scope self, f: F) -> ScopedJoinHandle<'scope, T>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        let task = Arc::new(Task {
            thread: Mutex::new(None),
            result: Mutex::new(None),
        });
        let spawned = Arc::clone(&task);
        let body = move || {
            let result = catch_unwind(AssertUnwindSafe(f));
            *spawned.result.lock() = Some(result);
        };
        // Locked until the handle is stored, so that `wait` finds it.
        let mut thread = task.thread.lock();
        self.started
            .lock()
            .push(Arc::clone(&task) as Arc<dyn Started>);
        // SAFETY: `scope` waits for the thread before anything that it borrows ends. It finds the
        // thread in `started`.
        let started = unsafe { Builder::new().spawn_unchecked(body) };
        *thread = Some(started.expect("the thread could not be started"));
        drop(thread);
        ScopedJoinHandle {
            task,
            scope: PhantomData,
        }
    }
}

/// A handle to join a scoped thread.
#[derive(Debug)]
pub struct ScopedJoinHandle<'scope, T> {
    task: Arc<Task<T>>,
    scope: PhantomData<&'scope ()>,
}

impl<T: Send> ScopedJoinHandle<'_, T> {
    /// Whether the thread has run to its end.
    pub fn is_finished(&self) -> bool {
        self.task.result.lock().is_some()
    }

    /// Waits until the thread has ended. Returns its result or its panic payload.
    pub fn join(self) -> Result<T> {
        self.task.wait();
        let result = self.task.result.lock().take();
        result.expect("a thread that has ended left its result")
    }
}
