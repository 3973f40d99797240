//! Sockets: listeners, and connections with or without TLS, or over UCX.

mod certificate_expiry;
mod listener;
mod tls;
mod transport;
mod ucx_poll;
mod ucx_socket;

pub(crate) use listener::{Listener, Socket};
pub(crate) use tls::TlsFiles;
pub use tls::{MinVersion, TlsOptions, VerifyClient};
pub(crate) use transport::{TLS_BUFFER_BYTES, Transport, retry};
pub(crate) use ucx_poll::{SocketPoll, UcxPoll};
