//! The turns of a connection: its phase, what its worker lends to it, and what it returns.

use crate::auth::UserFile;
use crate::session::Context;

use super::buffers::Spare;
use super::linger::Linger;

/// A connection's phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Requests are read as they arrive.
    Serving,
    /// The server drains. Requests that have arrived are still answered, even if earlier answers
    /// wait for a slow reader.
    Draining { turns_left: u32 },
    /// The server drains. A command that has partly arrived is still answered.
    LastCommand,
    /// The output is written, then the connection closes.
    Closing,
    /// The client was refused, and everything is sent. What still arrives is discarded.
    Lingering(Linger),
}

/// The result of a read.
pub(super) enum Arrived {
    Bytes,
    Nothing,
    /// The peer sends no more bytes.
    End,
    /// The peer violated the TLS protocol. The alert that says so is sent, or will be.
    Refused,
}

/// The result of a connection's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TurnResult {
    /// Wait until the poll reports the connection.
    Wait,
    /// The connection has more to do after the buffers of all connections have room again.
    Pause,
    /// The connection has more to do. Other connections get their turns first.
    Again,
    /// The connection has ended.
    Close,
    /// The connection has ended, but its last error may not have arrived. It has more to do, and
    /// must be closed after [`LINGER`](super::linger::LINGER).
    Linger,
    /// The connection must be closed, because its answers need more memory than there is.
    OutOfMemory,
    /// The client sent `shutdown`, so the server must end. The connection itself has more to do.
    Shutdown,
}

/// State that a worker lends to a connection for one turn.
pub(crate) struct TurnContext<'a> {
    pub(crate) context: &'a mut Context,
    pub(crate) users: Option<&'a UserFile>,
    pub(crate) spare: &'a mut Spare,
    pub(crate) now_s: u64,
    /// Whether the server drains.
    pub(crate) is_draining: bool,
}
