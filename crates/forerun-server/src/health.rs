//! The phase of a server, for health checks.
//!
//! ```text
//!                /health/live   /health/started   /health/ready   /health
//!   Starting     200            503               503             503       files are read, the snapshot is loaded
//!   Serving      200            200               200             200
//!   DrainDelay   200            200               503             200       clients should go elsewhere, but are served
//!   Draining     200            200               503             503       the listeners are closed
//! ```

use std::sync::atomic::{AtomicU8, Ordering};

/// A server's phase. The phases follow each other in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Phase {
    /// No connection is accepted yet.
    Starting,
    /// Connections are accepted.
    Serving,
    /// A drain was requested. Connections are accepted until the drain delay is over.
    DrainDelay,
    /// The listeners are closed.
    Draining,
}

const PHASES: [Phase; 4] = [
    Phase::Starting,
    Phase::Serving,
    Phase::DrainDelay,
    Phase::Draining,
];

/// The current phase of a server, which any thread can read.
#[derive(Debug)]
pub(crate) struct Health(AtomicU8);

impl Health {
    /// The health of a server that starts.
    pub(crate) fn starting() -> Health {
        Health(AtomicU8::new(Phase::Starting as u8))
    }

    /// Begins a phase.
    pub(crate) fn enter(&self, phase: Phase) {
        // Relaxed, here and below: a number for reports, which orders nothing.
        self.0.store(phase as u8, Ordering::Relaxed);
    }

    pub(crate) fn phase(&self) -> Phase {
        PHASES[usize::from(self.0.load(Ordering::Relaxed))]
    }

    /// Whether the start is over.
    pub(crate) fn is_started(&self) -> bool {
        self.phase() > Phase::Starting
    }

    /// Whether clients should use the server.
    pub(crate) fn is_ready(&self) -> bool {
        self.phase() == Phase::Serving
    }

    /// Whether connections are accepted.
    pub(crate) fn is_accepting(&self) -> bool {
        matches!(self.phase(), Phase::Serving | Phase::DrainDelay)
    }
}
