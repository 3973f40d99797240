//! Threads. A thread started by a simulated thread is simulated; any other thread is not. Each is a
//! new OS thread, so the program's thread-locals start afresh in each simulation.

use std::io;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
pub use std::thread::{AccessError, LocalKey, Result, ThreadId, available_parallelism, panicking};
use std::time::Duration;

use super::outcome::{Operation, WaitsFor};
use super::scheduler::Here;
use super::state::{At, Status};

/// Starts a thread.
///
/// # Panics
///
/// Panics if the operating system cannot start a thread.
#[track_caller]
pub fn spawn<F, T>(f: F) -> JoinHandle<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    Builder::new().spawn(f).expect("failed to spawn thread")
}

/// [`std::thread::Builder`].
#[derive(Debug, Default)]
pub struct Builder {
    name: Option<String>,
    stack_bytes: Option<usize>,
}

impl Builder {
    /// A builder for a thread without a name.
    pub fn new() -> Builder {
        Builder::default()
    }

    /// Names the thread.
    pub fn name(self, name: String) -> Builder {
        let name = Some(name);
        Builder { name, ..self }
    }

    /// Sets the size of the thread's stack.
    pub fn stack_size(self, bytes: usize) -> Builder {
        let stack_bytes = Some(bytes);
        Builder {
            stack_bytes,
            ..self
        }
    }

    /// Starts a thread.
    #[track_caller]
    pub fn spawn<F, T>(self, f: F) -> io::Result<JoinHandle<T>>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let new = New::of(&self, None, Location::caller());
        let started = match new.here {
            None => self.inner().spawn(f),
            Some(here) => self.inner().spawn(move || here.run(f)),
        };
        let inner = new.started(started)?;
        Ok(JoinHandle {
            thread: Thread::of(inner.thread(), new.here),
            inner,
        })
    }

    /// Starts a thread that ends before `scope` does.
    #[track_caller]
    pub fn spawn_scoped<'scope, 'env, F, T>(
        self,
        scope: &'scope Scope<'scope, 'env>,
        f: F,
    ) -> io::Result<ScopedJoinHandle<'scope, T>>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        let new = New::of(&self, Some(scope.key()), Location::caller());
        let started = match new.here {
            None => self.inner().spawn_scoped(&scope.0, f),
            Some(here) => self.inner().spawn_scoped(&scope.0, move || here.run(f)),
        };
        let inner = new.started(started)?;
        Ok(ScopedJoinHandle {
            thread: Thread::of(inner.thread(), new.here),
            inner,
        })
    }

    fn inner(self) -> std::thread::Builder {
        let mut inner = std::thread::Builder::new();
        if let Some(name) = self.name {
            inner = inner.name(name);
        }
        match self.stack_bytes {
            Some(bytes) => inner.stack_size(bytes),
            None => inner,
        }
    }
}

/// A thread that is being started.
struct New {
    parent: Option<Here>,
    /// The simulated thread, if it is simulated.
    here: Option<Here>,
    at: At,
}

impl New {
    fn of(builder: &Builder, scope: Option<usize>, at: At) -> New {
        let parent = Here::get();
        let name = &builder.name;
        New {
            here: parent.map(|parent| parent.add_thread(name.clone(), scope, at)),
            parent,
            at,
        }
    }

    fn started<T>(&self, started: io::Result<T>) -> io::Result<T> {
        match (&started, self.here, self.parent) {
            (Ok(_), _, Some(parent)) => parent.point(Operation::Spawn, self.at),
            (Err(_), Some(here), _) => here.not_started(),
            _ => {}
        }
        started
    }
}

/// Waits in the scheduler until a thread of the same simulation has ended.
fn wait_for_end(thread: &Thread, at: At) {
    if let Some((here, thread)) = thread.in_this_simulation() {
        here.point(Operation::Join, at);
        while !here.is_finished(thread) {
            here.block(WaitsFor::Join, thread, None, at);
        }
        here.with(|state| state.threads[thread].is_joined = true);
    }
}

/// [`std::thread::JoinHandle`].
#[derive(Debug)]
pub struct JoinHandle<T> {
    inner: std::thread::JoinHandle<T>,
    thread: Thread,
}

impl<T> JoinHandle<T> {
    /// Waits until the thread has ended. Returns its result or its panic payload.
    #[track_caller]
    pub fn join(self) -> Result<T> {
        wait_for_end(&self.thread, Location::caller());
        self.inner.join()
    }

    /// Whether the thread has ended.
    #[track_caller]
    pub fn is_finished(&self) -> bool {
        let Some((here, thread)) = self.thread.in_this_simulation() else {
            return self.inner.is_finished();
        };
        here.point(Operation::Yield, Location::caller());
        here.is_finished(thread)
    }

    /// The thread.
    pub fn thread(&self) -> &Thread {
        &self.thread
    }
}

/// [`std::thread::ScopedJoinHandle`].
#[derive(Debug)]
pub struct ScopedJoinHandle<'scope, T> {
    inner: std::thread::ScopedJoinHandle<'scope, T>,
    thread: Thread,
}

impl<T> ScopedJoinHandle<'_, T> {
    /// Waits until the thread has ended. Returns its result or its panic payload.
    #[track_caller]
    pub fn join(self) -> Result<T> {
        wait_for_end(&self.thread, Location::caller());
        self.inner.join()
    }

    /// Whether the thread has ended.
    #[track_caller]
    pub fn is_finished(&self) -> bool {
        let Some((here, thread)) = self.thread.in_this_simulation() else {
            return self.inner.is_finished();
        };
        here.point(Operation::Yield, Location::caller());
        here.is_finished(thread)
    }

    /// The thread.
    pub fn thread(&self) -> &Thread {
        &self.thread
    }
}

/// [`std::thread::Scope`].
#[derive(Debug)]
#[repr(transparent)]
pub struct Scope<'scope, 'env: 'scope>(std::thread::Scope<'scope, 'env>);

impl<'scope, 'env> Scope<'scope, 'env> {
    fn of(inner: &'scope std::thread::Scope<'scope, 'env>) -> &'scope Self {
        // SAFETY: the two types have the same layout because of `repr(transparent)`, and the new
        // reference has the same lifetime and sharing as the one it is made from.
        unsafe { &*std::ptr::from_ref(inner).cast::<Self>() }
    }

    /// Starts a thread that ends before the scope does.
    ///
    /// # Panics
    ///
    /// Panics if the operating system cannot start a thread.
    #[track_caller]
    pub fn spawn<F, T>(&'scope self, f: F) -> ScopedJoinHandle<'scope, T>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        Builder::new()
            .spawn_scoped(self, f)
            .expect("failed to spawn thread")
    }

    fn key(&self) -> usize {
        std::ptr::from_ref(&self.0).addr()
    }
}

/// [`std::thread::scope`]. In a simulation, the scope's threads have also destroyed their
/// thread-locals when it returns.
#[track_caller]
pub fn scope<'env, F, T>(f: F) -> T
where
    F: for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> T,
{
    let at = Location::caller();
    std::thread::scope(|inner| {
        let scope = Scope::of(inner);
        let Some(here) = Here::get() else {
            return f(scope);
        };
        let returned = catch_unwind(AssertUnwindSafe(|| f(scope)));
        // The inner scope would wait while it holds the baton.
        while let Some(thread) = here.with(|state| state.live_of(scope.key())) {
            here.point(Operation::Join, at);
            while !here.is_finished(thread) {
                here.block(WaitsFor::Join, thread, None, at);
            }
        }
        returned.unwrap_or_else(|payload| resume_unwind(payload))
    })
}

/// A handle that names and unparks a thread.
#[derive(Debug, Clone)]
pub struct Thread {
    inner: std::thread::Thread,
    here: Option<Here>,
}

impl Thread {
    /// The OS thread's identifier. It differs in each simulation.
    pub fn id(&self) -> ThreadId {
        self.inner.id()
    }

    /// The thread's name, if it has one.
    pub fn name(&self) -> Option<&str> {
        self.inner.name()
    }

    /// Unparks the thread, or makes its next `park` return at once.
    #[track_caller]
    pub fn unpark(&self) {
        let Some((here, thread)) = self.in_this_simulation() else {
            return self.inner.unpark();
        };
        here.point(Operation::Unpark, Location::caller());
        here.with(|state| {
            state.threads[thread].is_unparked = true;
            state.wake_all(&[WaitsFor::Unpark], thread);
        });
    }

    fn of(inner: &std::thread::Thread, here: Option<Here>) -> Thread {
        let inner = inner.clone();
        Thread { inner, here }
    }

    /// The calling thread, and this thread's index if both belong to the same simulation.
    fn in_this_simulation(&self) -> Option<(Here, usize)> {
        let (here, thread) = Here::get().zip(self.here)?;
        here.is_same_simulation(thread)
            .then_some((here, thread.thread))
    }
}

/// The calling thread.
pub fn current() -> Thread {
    Thread {
        inner: std::thread::current(),
        here: Here::get(),
    }
}

/// Waits until the thread is unparked.
#[track_caller]
pub fn park() {
    match Here::get() {
        None => std::thread::park(),
        Some(here) => here.park(None, Location::caller()),
    }
}

/// Like [`park`], but for at most `timeout`.
#[track_caller]
pub fn park_timeout(timeout: Duration) {
    match Here::get() {
        None => std::thread::park_timeout(timeout),
        Some(here) => here.park(Some(timeout), Location::caller()),
    }
}

/// Sleeps for `duration`, in simulated time if in a simulation.
#[track_caller]
pub fn sleep(duration: Duration) {
    let Some(here) = Here::get() else {
        return std::thread::sleep(duration);
    };
    let at = Location::caller();
    here.point(Operation::Sleep, at);
    let deadline_ns = here.with(|state| state.deadline_after(duration));
    here.block(WaitsFor::Sleep, here.thread, Some(deadline_ns), at);
}

/// Lets other threads run.
#[track_caller]
pub fn yield_now() {
    match Here::get() {
        None => std::thread::yield_now(),
        Some(here) => here.point(Operation::Yield, Location::caller()),
    }
}

impl Here {
    fn is_finished(self, thread: usize) -> bool {
        self.with(|state| matches!(state.threads[thread].status, Status::Finished))
    }

    fn park(self, timeout: Option<Duration>, at: At) {
        self.point(Operation::Park, at);
        let deadline_ns = timeout.map(|timeout| self.with(|state| state.deadline_after(timeout)));
        let take =
            || self.with(|state| std::mem::take(&mut state.threads[self.thread].is_unparked));
        if !take() {
            self.block(WaitsFor::Unpark, self.thread, deadline_ns, at);
            take();
        }
    }
}
