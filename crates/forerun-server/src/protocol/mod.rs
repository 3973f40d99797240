//! The syntax of memcached's protocol, separate from the execution of commands.
//!
//! ```text
//!   scan.rs        finds the ends of tokens and lines, 64 bytes at a time
//!   tokens.rs      a line's tokens
//!   numbers.rs     decimal numbers, expiration times
//!   meta_keys.rs   keys, plain and base64
//!   meta_flags.rs  the lines and flags of meta commands
//!   replies.rs     fixed answers
//!   binary/        the binary protocol: headers, requests, answers
//! ```
//!
//! The reference is memcached's `doc/protocol.txt`. If that document does not define a reply, the
//! reference is memcached 1.6.18. docs/operate/protocol.md lists the differences.
//! The format of multi-get frames is in `forerun_wire`, because the client needs it too.

pub(crate) mod binary;
pub(crate) mod meta_flags;
pub(crate) mod meta_keys;
pub(crate) mod numbers;
pub(crate) mod replies;
pub(crate) mod scan;
pub(crate) mod tokens;

/// Maximum key length in bytes. For a base64 key, both the encoded and the decoded length are
/// limited.
pub(crate) use forerun_wire::multi_get::KEY_BYTES_MAX;
