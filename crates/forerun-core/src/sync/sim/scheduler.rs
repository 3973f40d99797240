//! The baton: the threads of a simulation are threads of the operating system, of which exactly one
//! runs. It hands over to another at a scheduling point, and waits until the baton comes back.

use std::cell::Cell;
use std::panic::PanicHookInfo;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_epoch::{Collector, LocalHandle};

use super::report::{Config, End, Operation, Outcome, WaitsFor};
use super::state::{At, State, Status, Wait, Wake, message};

/// A simulation. They are never freed but used again, so that a thread has a plain reference to its
/// own; one that ends with threads blocked for ever is left to them.
pub(super) struct Simulation {
    state: Mutex<Option<State>>,
}

/// Which simulated thread the calling thread is.
#[derive(Clone, Copy)]
pub(super) struct Here {
    simulation: &'static Simulation,
    pub(super) thread: usize,
}

/// How many simulations run in this process. While there is none, no thread asks whether it is in
/// one.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// Simulations that have ended, to be used again.
static ENDED: Mutex<Vec<&'static Simulation>> = Mutex::new(Vec::new());

thread_local! {
    /// Without a destructor, so that it can be read while the thread's other locals are destroyed.
    static HERE: Cell<Option<Here>> = const { Cell::new(None) };
    /// Ends the simulated thread. Locals are destroyed in the reverse order of their first use, and
    /// this one is used first: the destructors of all others are part of the simulation.
    static EXIT: Exit = const { Exit(Cell::new(None)) };
    /// What this thread's last panic said, and where it was.
    static PANIC: Cell<Option<String>> = const { Cell::new(None) };
}

struct Exit(Cell<Option<Here>>);

impl Drop for Exit {
    fn drop(&mut self) {
        if let Some(here) = self.0.take() {
            here.exit();
        }
    }
}

impl std::fmt::Debug for Here {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "simulated thread {}", self.thread)
    }
}

impl Simulation {
    fn state(&self) -> MutexGuard<'_, Option<State>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a thread does with the state of its simulation. There is one as long as the simulation has
/// threads.
fn of(state: &mut Option<State>) -> &mut State {
    state
        .as_mut()
        .expect("a simulation has a state while it has threads")
}

impl Here {
    /// Which simulated thread this is, if it is one.
    #[inline]
    pub(super) fn get() -> Option<Here> {
        // Relaxed: a simulated thread is started after its simulation was counted, which orders the
        // two.
        match RUNNING.load(Ordering::Relaxed) {
            0 => None,
            _ => HERE.get(),
        }
    }

    pub(super) fn with<T>(self, f: impl FnOnce(&mut State) -> T) -> T {
        f(of(&mut self.simulation.state()))
    }

    /// A scheduling point: another thread may run first.
    #[inline]
    pub(super) fn point(self, operation: Operation, at: At) {
        self.point_after(operation, at, |_| {});
    }

    /// A scheduling point right after a change to the state.
    #[inline]
    pub(super) fn point_after(self, operation: Operation, at: At, f: impl FnOnce(&mut State)) {
        let mut locked = self.simulation.state();
        let state = of(&mut locked);
        if state.end.is_some() {
            drop(locked);
            sleep_for_ever();
        }
        f(state);
        state.step(self.thread, operation, at);
        if state.is_over_limit() {
            let end = End::StepLimit(state.blocked());
            self.give_up(locked, end);
        }
        let next = match operation {
            Operation::Yield => state.choose_after_yield(self.thread),
            _ => state.choose(self.thread, operation),
        };
        if next != self.thread {
            self.hand_over(locked, next);
        }
    }

    /// Waits, until woken or until the deadline.
    pub(super) fn block(
        self,
        kind: WaitsFor,
        key: usize,
        deadline_ns: Option<u64>,
        at: At,
    ) -> Wake {
        let mut locked = self.simulation.state();
        let state = of(&mut locked);
        if state.end.is_some() {
            drop(locked);
            sleep_for_ever();
        }
        let since_ns = state.now_ns;
        let wait = Wait {
            kind,
            key,
            deadline_ns,
            at,
            since_ns,
        };
        state.set_blocked(self.thread, wait);
        match state.choose_next() {
            // Its own deadline was the earliest.
            Some(next) if next == self.thread => drop(locked),
            Some(next) => self.hand_over(locked, next),
            None => {
                let end = state.final_end();
                self.give_up(locked, end);
            }
        }
        self.with(|state| state.threads[self.thread].wake)
    }

    fn hand_over(self, mut locked: MutexGuard<'_, Option<State>>, next: usize) {
        let state = of(&mut locked);
        state.switch_to(next);
        let thread = state.threads[next].os.clone();
        drop(locked);
        wake(thread);
        self.wait_for_turn();
    }

    /// Sleeps until this thread has the baton.
    fn wait_for_turn(self) {
        loop {
            let locked = self.simulation.state();
            // Once the simulation has ended nobody hands over any more; whoever still waits is left
            // alone.
            let has_turn = matches!(&*locked, Some(state) if state.end.is_none() && state.running == self.thread);
            drop(locked);
            if has_turn {
                return;
            }
            std::thread::park();
        }
    }

    /// Ends the simulation, and leaves this and all other threads blocked for ever.
    fn give_up(self, mut locked: MutexGuard<'_, Option<State>>, end: End) -> ! {
        of(&mut locked).set_end(end);
        drop(locked);
        sleep_for_ever()
    }

    /// Runs `f` as the body of this simulated thread: the thread ends when its locals have been
    /// destroyed.
    pub(super) fn run<T>(self, f: impl FnOnce() -> T) -> T {
        EXIT.with(|exit| exit.0.set(Some(self)));
        HERE.set(Some(self));
        self.with(|state| state.threads[self.thread].os = Some(std::thread::current()));
        self.wait_for_turn();
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)) {
            Ok(value) => value,
            Err(payload) => {
                // The hook has seen the panic, unless it was raised without it.
                let said = PANIC.take().unwrap_or_else(|| message(&*payload));
                self.with(|state| state.threads[self.thread].panic = Some(said));
                std::panic::resume_unwind(payload)
            }
        }
    }

    /// The end of this thread.
    fn exit(self) {
        let is_last = || self.with(|state| state.live.len() == 1);
        // What was deferred until no thread is pinned runs here, as a part of the simulation.
        while is_last()
            && let Some(collector) = self.with(|state| state.collector.take())
        {
            drop(collector);
        }
        HERE.set(None);
        let mut locked = self.simulation.state();
        let state = of(&mut locked);
        if state.end.is_some() {
            return;
        }
        let at = state.threads[self.thread].at;
        state.step(self.thread, Operation::Exit, at);
        state.threads[self.thread].status = Status::Finished;
        state.live.retain(|thread| *thread != self.thread);
        state.wake_all(&[WaitsFor::Join], self.thread);
        match state.choose_next() {
            Some(next) => {
                state.switch_to(next);
                let thread = state.threads[next].os.clone();
                drop(locked);
                wake(thread);
            }
            None => {
                let end = state.final_end();
                state.set_end(end);
            }
        }
    }

    /// A thread that is about to be started.
    pub(super) fn add_thread(self, name: Option<String>, scope: Option<usize>, at: At) -> Here {
        let thread = self.with(|state| state.add_thread(name, scope, at));
        Here { thread, ..self }
    }

    /// Takes back a thread that the operating system did not start.
    pub(super) fn not_started(self) {
        self.with(|state| {
            state.threads[self.thread].status = Status::Finished;
            state.live.retain(|thread| *thread != self.thread);
        });
    }

    /// Runs `f` as if this thread were in no simulation.
    pub(super) fn outside<T>(self, f: impl FnOnce() -> T) -> T {
        struct Back(Here);
        impl Drop for Back {
            fn drop(&mut self) {
                HERE.set(Some(self.0));
            }
        }
        HERE.set(None);
        let _back = Back(self);
        f()
    }

    /// This thread's part in the epochs of its simulation.
    pub(super) fn register(self) -> LocalHandle {
        self.with(|state| {
            state
                .collector
                .get_or_insert_with(Collector::new)
                .register()
        })
    }

    pub(super) fn is_same_simulation(self, other: Here) -> bool {
        std::ptr::eq(self.simulation, other.simulation)
    }
}

/// Wakes a thread that has the baton now. One that has not told who it is yet has not slept yet,
/// and will look.
fn wake(thread: Option<std::thread::Thread>) {
    if let Some(thread) = thread {
        thread.unpark();
    }
}

/// What becomes of a thread of a simulation that was given up.
fn sleep_for_ever() -> ! {
    loop {
        std::thread::park();
    }
}

impl State {
    fn set_end(&mut self, end: End) {
        self.end = Some(end);
        if let Some(runner) = &self.runner {
            runner.unpark();
        }
    }
}

/// Runs `body` as the main thread of a simulation, until all its threads have finished.
///
/// Threads that wait for ever are left behind, blocked, with all that they own.
///
/// # Panics
///
/// Panics if it is called inside a simulation, or if no thread can be started.
#[track_caller]
pub fn run(config: Config, body: impl FnOnce() + Send + 'static) -> Outcome {
    assert!(
        Here::get().is_none(),
        "a simulation does not run inside another"
    );
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| match Here::get() {
            Some(_) => keep_panic(info),
            None => before(info),
        }));
    });
    let ended = || ENDED.lock().unwrap_or_else(PoisonError::into_inner);
    let before = ended().pop();
    let simulation = before.unwrap_or_else(|| {
        Box::leak(Box::new(Simulation {
            state: Mutex::new(None),
        }))
    });
    let silence_max = config.silence_max;
    *simulation.state() = Some(State::new(config));
    let main = Here {
        simulation,
        thread: 0,
    };
    RUNNING.fetch_add(1, Ordering::Relaxed);
    std::thread::Builder::new()
        .name("main".into())
        .spawn(move || main.run(body))
        .expect("the main thread of a simulation starts");
    let outcome = wait_for_end(simulation, silence_max);
    RUNNING.fetch_sub(1, Ordering::Relaxed);
    if outcome.0 {
        *simulation.state() = None;
        ended().push(simulation);
    }
    outcome.1
}

/// The outcome, and whether no thread is left.
fn wait_for_end(simulation: &'static Simulation, silence_max: Duration) -> (bool, Outcome) {
    let (mut steps, mut since) = (0, Instant::now());
    loop {
        let mut locked = simulation.state();
        let state = of(&mut locked);
        if let Some(end) = state.end.clone() {
            return (state.live.is_empty(), state.outcome(end));
        }
        if state.steps != steps {
            (steps, since) = (state.steps, Instant::now());
        } else if since.elapsed() >= silence_max {
            let end = End::Silent(state.blocked());
            state.end = Some(end);
            continue;
        }
        drop(locked);
        std::thread::park_timeout(silence_max);
    }
}

/// What the hook of panics does in a simulation: it prints nothing, for panics may be part of what
/// is tested.
fn keep_panic(info: &PanicHookInfo<'_>) {
    let mut said = message(info.payload());
    if let Some(at) = info.location() {
        said = format!("{said}, at {at}");
    }
    // A thread whose locals are destroyed aborts the process when it panics.
    let _ = PANIC.try_with(|kept| kept.set(Some(said)));
}
