//! Sockets: listeners, and connections with or without TLS, or over UCX.

mod certificate_expiry;
mod listener;
mod tls;
mod transport;
#[cfg(feature = "ucx")]
mod ucx;
#[cfg(not(feature = "ucx"))]
#[path = "ucx_none.rs"]
mod ucx;

pub(crate) use listener::{Listener, Socket};
pub(crate) use tls::TlsFiles;
pub use tls::{MinVersion, TlsOptions, VerifyClient};
pub(crate) use transport::{TLS_BUFFER_BYTES, Transport, retry};
pub(crate) use ucx::{SocketPoll, UcxPoll};
