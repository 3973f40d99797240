//! Connections over UCX: the sockets, and the part of a worker's poll that watches them.
//!
//! A build without the feature `ucx` has the same names in `ucx_none.rs` instead.

mod poll;
mod socket;

pub(crate) use poll::{SocketPoll, UcxPoll};
pub(crate) use socket::UcxServer;
pub use socket::UcxSocket;
