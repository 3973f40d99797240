//! The scheduler's baton. The threads of a simulation are OS threads, and only the one with the
//! baton runs. At a scheduling point it may pass the baton to another thread and wait until it gets
//! it back.

use std::cell::Cell;
use std::panic::PanicHookInfo;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_epoch::{Collector, LocalHandle};

use super::config::Config;
use super::outcome::{End, Operation, Outcome, WaitsFor};
use super::state::{At, State, Status, Wait, Wake, message};

/// A simulation. Simulations are never freed but reused, so that each thread can keep a plain
/// reference to its own. A simulation that ends with blocked threads is leaked, because these
/// threads refer to it.
pub(super) struct Simulation {
    state: Mutex<Option<State>>,
    /// Every panic so far: the thread and what it said. Apart from the state, which the thread that
    /// panics may have locked.
    panics: Mutex<Vec<(usize, String)>>,
}

/// The calling thread's simulation and its index there.
#[derive(Clone, Copy)]
pub(super) struct Here {
    simulation: &'static Simulation,
    pub(super) thread: usize,
}

/// Number of simulations that run in this process. While it is 0, no thread checks whether it is
/// simulated.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// Simulations that have ended and can be reused.
static ENDED: Mutex<Vec<&'static Simulation>> = Mutex::new(Vec::new());

thread_local! {
    /// Has no destructor, so that it can be read while the thread's other locals are destroyed.
    static HERE: Cell<Option<Here>> = const { Cell::new(None) };
    /// Ends the simulated thread. Locals are destroyed in the reverse order of their first use.
    /// This one is used first, so the destructors of all others are part of the simulation.
    static EXIT: Exit = const { Exit(Cell::new(None)) };
    /// The message and location of this thread's last panic.
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

    fn panics(&self) -> MutexGuard<'_, Vec<(usize, String)>> {
        self.panics.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Accesses the state of a simulation. The state exists as long as the simulation has threads.
fn of(state: &mut Option<State>) -> &mut State {
    state
        .as_mut()
        .expect("a simulation has a state while it has threads")
}

impl Here {
    /// The calling thread's simulation, if it is simulated.
    #[inline]
    pub(super) fn get() -> Option<Here> {
        // Relaxed: the simulation is counted before its threads start, and that start orders the
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

    /// A scheduling point directly after a change of the state.
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

    /// Blocks the thread until it is woken or its deadline passes.
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
            // This thread's own deadline was the earliest.
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

    /// Sleeps until this thread gets the baton.
    fn wait_for_turn(self) {
        loop {
            let locked = self.simulation.state();
            // After the simulation has ended, no thread passes the baton any more, and waiting
            // threads are left alone.
            let has_turn = matches!(&*locked, Some(state) if state.end.is_none()
                    && state.running == self.thread);
            drop(locked);
            if has_turn {
                return;
            }
            std::thread::park();
        }
    }

    /// Ends the simulation and leaves this and all other threads blocked forever.
    fn give_up(self, mut locked: MutexGuard<'_, Option<State>>, end: End) -> ! {
        of(&mut locked).set_end(end);
        drop(locked);
        sleep_for_ever()
    }

    /// Runs `f` as the body of this simulated thread. The thread ends after its locals are
    /// destroyed.
    pub(super) fn run<T>(self, f: impl FnOnce() -> T) -> T {
        EXIT.with(|exit| exit.0.set(Some(self)));
        HERE.set(Some(self));
        self.with(|state| state.threads[self.thread].os = Some(std::thread::current()));
        self.wait_for_turn();
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)) {
            Ok(value) => value,
            Err(payload) => {
                // The hook has recorded the panic, unless the panic bypassed the hook.
                let said = PANIC.take().unwrap_or_else(|| message(&*payload));
                self.with(|state| state.threads[self.thread].panic = Some(said));
                std::panic::resume_unwind(payload)
            }
        }
    }

    /// Ends this thread.
    fn exit(self) {
        let is_last = || self.with(|state| state.live.len() == 1);
        // Work that was deferred until no thread is pinned runs here, as part of the simulation.
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

    /// Adds a thread that is about to start.
    pub(super) fn add_thread(self, name: Option<String>, scope: Option<usize>, at: At) -> Here {
        let thread = self.with(|state| state.add_thread(name, scope, at));
        Here { thread, ..self }
    }

    /// Removes a thread that the operating system could not start.
    pub(super) fn not_started(self) {
        self.with(|state| {
            state.threads[self.thread].status = Status::Finished;
            state.live.retain(|thread| *thread != self.thread);
        });
    }

    /// Runs `f` as if this thread were not simulated.
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

    /// Registers this thread with the epochs of its simulation.
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

/// Wakes the thread that now has the baton. A thread that has not registered its handle yet has not
/// slept yet either, and will check for the baton.
fn wake(thread: Option<std::thread::Thread>) {
    if let Some(thread) = thread {
        thread.unpark();
    }
}

/// The end of a thread whose simulation was aborted.
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

/// Runs `body` as the main thread of a simulation until all its threads have finished.
///
/// Threads that wait forever are leaked, still blocked, together with everything they own.
///
/// # Panics
///
/// Panics inside a simulation, or if no thread can be started.
#[track_caller]
pub fn run(config: Config, body: impl FnOnce() + Send + 'static) -> Outcome {
    assert!(
        Here::get().is_none(),
        "a simulation cannot run inside another"
    );
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| match Here::get() {
            Some(here) => keep_panic(here, info),
            None => before(info),
        }));
    });
    let ended = || ENDED.lock().unwrap_or_else(PoisonError::into_inner);
    let before = ended().pop();
    let simulation = before.unwrap_or_else(|| {
        Box::leak(Box::new(Simulation {
            state: Mutex::new(None),
            panics: Mutex::default(),
        }))
    });
    simulation.panics().clear();
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

/// Returns the outcome, and whether no thread is left.
fn wait_for_end(simulation: &'static Simulation, silence_max: Duration) -> (bool, Outcome) {
    let (mut steps, mut since) = (0, Instant::now());
    loop {
        let mut locked = simulation.state();
        let state = of(&mut locked);
        if let Some(end) = state.end.clone() {
            let raised = std::mem::take(&mut *simulation.panics());
            return (state.live.is_empty(), state.outcome(end, raised));
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

/// The panic hook of a simulation. It prints nothing, because a panic may be part of the test.
fn keep_panic(here: Here, info: &PanicHookInfo<'_>) {
    let mut said = message(info.payload());
    if let Some(at) = info.location() {
        said = format!("{said}, at {at}");
    }
    let raised = (here.thread, said.clone());
    here.simulation.panics().push(raised);
    // If a thread panics while its locals are destroyed, the process aborts.
    let _ = PANIC.try_with(|kept| kept.set(Some(said)));
}
