//! Errors that prevent a server from starting. After the start, an error affects only one
//! connection and closes it.

use std::io;
use std::path::PathBuf;

use crate::snapshot_error::SnapshotError;

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is not a listen address.
    #[error("{text:?} is not a listen address: {reason}")]
    Address {
        /// The text.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A listener cannot be bound.
    #[error("cannot listen at {address}")]
    Listen {
        /// The address.
        address: String,
        /// The system's error.
        source: io::Error,
    },
    /// A certificate, key or certificate authority file cannot be used.
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
    /// The address is one of UCX, which this build cannot use.
    #[error("cannot listen at {address}: this build lacks UCX (cargo's feature `ucx`)")]
    NoUcx {
        /// The address.
        address: String,
    },
    /// UCX cannot be used.
    #[cfg(feature = "ucx")]
    #[error("cannot listen over UCX")]
    Ucx(#[source] forerun_ucx::UcxError),
    /// The file with the token for connections over UCX cannot be used.
    #[error("token for UCX: {}: {reason}", path.display())]
    UcxToken {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The snapshot to restore cannot be used.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// An option has an invalid value.
    #[error("{option}: {reason}")]
    Option {
        /// The option's name.
        option: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// The server was asked to end before it had started. The snapshot, if there is one, is
    /// unchanged.
    #[error("the server was asked to end before it had started")]
    Interrupted,
    /// The system cannot provide another thread or poll.
    #[error("cannot start {what}")]
    Start {
        /// What could not be started.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}
