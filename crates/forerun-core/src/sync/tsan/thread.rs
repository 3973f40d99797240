//! Threads: the standard library's, except for scopes. The standard library frees its record of a
//! scope in precompiled code, on the last thread to end, and the sanitizer does not see that the
//! other threads are done with it. A scope of this module joins its threads, which the sanitizer
//! does see.

#![allow(
    unsafe_code,
    reason = "a scoped thread borrows data that outlives the scope"
)]

use std::io;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use parking_lot::Mutex;

pub use std::thread::{
    AccessError, JoinHandle, LocalKey, Result, Thread, ThreadId, available_parallelism, current,
    panicking, park, park_timeout, sleep, spawn, yield_now,
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
        self.start(std::thread::Builder::new(), f)
            .expect("the thread could not be started")
    }

    fn start<F, T>(
        &'scope self,
        builder: std::thread::Builder,
        f: F,
    ) -> io::Result<ScopedJoinHandle<'scope, T>>
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
        // SAFETY: `scope` waits for the thread before anything that it borrows ends. It finds the
        // thread in `started`, to which it is added before this returns.
        let started = unsafe { builder.spawn_unchecked(body) }?;
        *task.thread.lock() = Some(started);
        self.started
            .lock()
            .push(Arc::clone(&task) as Arc<dyn Started>);
        Ok(ScopedJoinHandle {
            task,
            scope: PhantomData,
        })
    }
}

/// The standard library's builder, except that its scopes are those of this module.
#[derive(Debug)]
pub struct Builder(std::thread::Builder);

impl Builder {
    /// A builder of a thread without a name.
    #[allow(clippy::new_without_default, reason = "as in the standard library")]
    pub fn new() -> Self {
        Builder(std::thread::Builder::new())
    }

    /// Names the thread.
    pub fn name(self, name: String) -> Self {
        Builder(self.0.name(name))
    }

    /// Sets the size of the thread's stack.
    pub fn stack_size(self, bytes: usize) -> Self {
        Builder(self.0.stack_size(bytes))
    }

    /// Starts a thread.
    ///
    /// # Errors
    /// Those of the system.
    pub fn spawn<F, T>(self, f: F) -> io::Result<JoinHandle<T>>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        self.0.spawn(f)
    }

    /// Starts a thread of a scope.
    ///
    /// # Errors
    /// Those of the system.
    pub fn spawn_scoped<'scope, F, T>(
        self,
        scope: &'scope Scope<'scope, '_>,
        f: F,
    ) -> io::Result<ScopedJoinHandle<'scope, T>>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        scope.start(self.0, f)
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
