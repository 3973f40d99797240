//! Where a connection is in its worker's turns.

/// What a connection waits for in its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queued {
    /// The poll's report.
    No,
    /// Its turn.
    ForTurn,
    /// Room in the buffers.
    Paused,
}
