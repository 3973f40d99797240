//! The syntax of memcached's protocol, separate from the execution of commands.
//!
//! ```text
//!   scan.rs        finds the ends of tokens and lines, 64 bytes at a time
//!   tokens.rs      a line's tokens
//!   numbers.rs     decimal numbers, expiration times
//!   meta_keys.rs   keys, plain and base64
//!   meta_flags.rs  the lines and flags of meta commands
//!   replies.rs     fixed answers
//!   binary.rs      refuses the binary protocol
//!   multi_get.rs   multi-get frames: requests, and the headers of answers
//! ```
//!
//! The reference is memcached's `doc/protocol.txt`. If that document does not define a reply, the
//! reference is memcached 1.6.18. docs/operate/protocol.md lists the differences.

pub(crate) mod binary;
pub(crate) mod meta_flags;
pub(crate) mod meta_keys;
pub(crate) mod multi_get;
pub(crate) mod numbers;
pub(crate) mod replies;
pub(crate) mod scan;
pub(crate) mod tokens;

/// Maximum key length in bytes. For a base64 key, both the encoded and the decoded length are
/// limited.
pub(crate) const KEY_BYTES_MAX: usize = 250;
