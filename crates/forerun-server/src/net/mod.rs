//! Sockets: listeners, and connections with or without TLS.

mod certificate_expiry;
mod listener;
mod tls;
mod transport;

pub(crate) use listener::{Listener, Socket};
pub(crate) use tls::TlsFiles;
pub use tls::{MinVersion, TlsOptions, VerifyClient};
pub(crate) use transport::{TLS_BUFFER_BYTES, Transport, retry};
