//! Sockets: where to listen, connections plain or in TLS.

mod address;
mod listener;
mod tls;
mod transport;

pub use address::{Address, Listen, UNIX_MODE};
pub(crate) use listener::{Listener, Peer, Socket};
pub use tls::{MinVersion, TlsOptions, VerifyClient};
pub(crate) use transport::Transport;
