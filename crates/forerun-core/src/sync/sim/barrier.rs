//! A barrier made of a mutex and a condition variable.

use std::sync::PoisonError;

use super::{Condvar, Mutex};

/// [`std::sync::Barrier`], or its model in a simulation.
#[derive(Debug)]
pub struct Barrier {
    threads: usize,
    state: Mutex<Arrived>,
    all: Condvar,
}

#[derive(Debug, Default)]
struct Arrived {
    count: usize,
    /// Number of times that all threads have arrived.
    generation: u64,
}

/// [`std::sync::BarrierWaitResult`].
#[derive(Debug)]
pub struct BarrierWaitResult(bool);

impl BarrierWaitResult {
    /// Whether this thread was the last to arrive.
    pub fn is_leader(&self) -> bool {
        self.0
    }
}

impl Barrier {
    /// Creates a barrier for this many threads.
    pub const fn new(threads: usize) -> Barrier {
        let arrived = Arrived {
            count: 0,
            generation: 0,
        };
        Barrier {
            threads,
            state: Mutex::new(arrived),
            all: Condvar::new(),
        }
    }

    /// Waits until all threads have arrived.
    #[track_caller]
    pub fn wait(&self) -> BarrierWaitResult {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.count += 1;
        if state.count >= self.threads {
            state.count = 0;
            state.generation += 1;
            self.all.notify_all();
            return BarrierWaitResult(true);
        }
        let generation = state.generation;
        let waited = self
            .all
            .wait_while(state, |state| state.generation == generation);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        BarrierWaitResult(false)
    }
}
