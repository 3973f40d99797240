//! Why a server does not start. Once it serves, an error concerns one connection and closes it.

use std::io;
use std::path::PathBuf;

use crate::snapshot::SnapshotError;

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is not the address of a listener.
    #[error("{text:?} is no address to listen at: {reason}")]
    Address {
        /// The text.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A listener cannot be bound.
    #[error("cannot listen at {address}")]
    Listen {
        /// Where.
        address: String,
        /// The system's reason.
        source: io::Error,
    },
    /// A certificate, a key or authorities cannot be used.
    #[error("TLS: {}: {reason}", path.display())]
    Tls {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The file of users cannot be used.
    #[error("authentication: {}: {reason}", path.display())]
    Auth {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The snapshot to start with cannot be used.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// An option has an invalid value.
    #[error("{option}: {reason}")]
    Option {
        /// Its name.
        option: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// The system provides no more threads, or no poll.
    #[error("cannot start {what}")]
    Start {
        /// What.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}
