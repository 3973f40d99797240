//! Why UCX cannot be used.

use crate::version::UcxVersion;

/// Why UCX cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UcxError {
    /// The library cannot be loaded.
    #[error("cannot load libucp.so.0 (Debian: package libucx0): {reason}")]
    NoLibrary {
        /// The system's reason.
        reason: String,
    },
    /// The library is older than the oldest supported version.
    #[error("UCX {found} is installed; Forerun needs {needed} or later")]
    TooOld {
        /// The library's version.
        found: UcxVersion,
        /// The oldest supported version.
        needed: UcxVersion,
    },
    /// The library lacks a function.
    #[error("libucp.so.0 has no function {name}")]
    MissingFunction {
        /// The function.
        name: &'static str,
    },
    /// A call into the library failed.
    #[error("{call} failed: {reason} (status {status})")]
    Call {
        /// The function.
        call: &'static str,
        /// UCX's number for the error.
        status: i8,
        /// UCX's description of the error.
        reason: String,
    },
    /// A configuration value is refused.
    #[error("UCX does not accept {name}={value}: {reason}")]
    Config {
        /// The variable, without its prefix `UCX_`.
        name: &'static str,
        /// The value.
        value: String,
        /// UCX's description of the error.
        reason: String,
    },
    /// The endpoint has failed or is closed.
    #[error("the UCX endpoint is closed")]
    Closed,
    /// This process is a fork of the one that opened UCX.
    #[error(transparent)]
    Forked(#[from] forerun_core::Forked),
}
