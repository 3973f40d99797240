//! Interrupting a call that waits.

use std::fmt;
use std::time::{Duration, Instant};

/// How often a waiting call asks the function.
const EVERY: Duration = Duration::from_millis(50);

/// An optional function that waiting calls ask whether to stop.
#[derive(Default)]
pub(crate) struct Interrupt(Option<Box<dyn Fn() -> bool + Send + Sync>>);

impl Interrupt {
    pub(crate) fn new(ask: impl Fn() -> bool + Send + Sync + 'static) -> Interrupt {
        Interrupt(Some(Box::new(ask)))
    }

    /// When a call that begins to wait must ask first. `None` if there is no function to ask.
    pub(crate) fn first_check(&self, now: Instant) -> Option<Instant> {
        self.0.as_ref().map(|_| now + EVERY)
    }

    /// Asks the function if `check` has passed, and advances `check`.
    pub(crate) fn is_raised(&self, check: &mut Option<Instant>, now: Instant) -> bool {
        let (Some(ask), Some(at)) = (&self.0, *check) else {
            return false;
        };
        if now < at {
            return false;
        }
        *check = Some(now + EVERY);
        ask()
    }
}

impl fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Asked" } else { "None" })
    }
}
