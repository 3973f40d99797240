//! Sockets: listen addresses, listeners, and connections with or without TLS.

mod address;
mod listener;
mod tls;
mod transport;

pub use address::{Address, Listen, UNIX_MODE};
pub use listener::Peer;
pub(crate) use listener::{Listener, Socket};
pub use tls::{MinVersion, TlsOptions, VerifyClient};
pub(crate) use transport::{Transport, retry};
