//! What Forerun's cache server and its clients share.
//!
//! ```text
//!   multi_get/    multi-get frames: constants, headers, requests, the arrays of a part
//!   private_key   reads a private key for TLS, and says why one cannot be used
//!   der           DER values
//! ```
//!
//! It does no I/O on sockets and knows nothing about items.

#![forbid(unsafe_code)]

#[cfg(feature = "tls")]
pub mod der;
pub mod multi_get;
#[cfg(feature = "tls")]
pub mod private_key;
