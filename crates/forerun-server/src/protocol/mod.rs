//! The lines of memcached's protocol: what a command says, apart from what it does.
//!
//! ```text
//!   scan.rs      where tokens and lines end, 64 bytes at a time      tokens.rs   a line's tokens
//!   numbers.rs   decimal numbers, expiration times                    keys.rs     keys, plain and base64
//!   meta.rs      the flags of meta commands                           replies.rs  the answers that never change
//!   binary.rs    how the binary protocol is refused
//! ```
//!
//! The reference is memcached's `doc/protocol.txt`, and memcached 1.6.18 where that leaves a reply
//! open. docs/operate/protocol.md lists what differs and why.

pub(crate) mod binary;
pub(crate) mod keys;
pub(crate) mod meta;
pub(crate) mod numbers;
pub(crate) mod replies;
pub(crate) mod scan;
pub(crate) mod tokens;

/// Longest key in bytes; of a base64 key, as it is sent and as it is decoded.
pub(crate) const KEY_BYTES_MAX: usize = 250;
