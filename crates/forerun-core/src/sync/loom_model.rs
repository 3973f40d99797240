//! The one way in which loom runs this project's models.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Least number of executions of a model. A model with fewer of them has no interleaving to speak
/// of, so it would pass whatever the orderings are.
const EXECUTIONS_MIN: usize = 6;

/// Runs `body` in every execution that loom knows with at most `preemptions` switches away from a
/// thread that could continue. `LOOM_MAX_PREEMPTIONS` overrides the number.
///
/// Loom reorders a load with any earlier store to the same address, but a store only with the
/// access right before it. So a thread that writes must not read the same address just before, and
/// a reader whose loads matter should be a spawned thread: the writer's own loads would otherwise
/// hide the reader's, and the model would run only once.
///
/// # Panics
///
/// If the body panics in an execution, or if there are fewer than six executions.
pub fn check(preemptions: usize, body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    builder.max_branches = 10_000;
    let executions = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&executions);
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        body();
    });
    let executions = executions.load(Ordering::Relaxed);
    assert!(
        executions >= EXECUTIONS_MIN,
        "the model has only {executions} executions"
    );
}
