//! The syntax of memcached's binary protocol.
//!
//! ```text
//!   request   80 opcode key_len(2) extras_len 0 reserved(2) body_len(4) opaque(4) cas(8) │ extras key value
//!   answer    81 opcode key_len(2) extras_len 0 status(2)   body_len(4) opaque(4) cas(8) │ extras key value
//!             └──────────────────────── header: 24 bytes, big endian ──────────────────┘   └── body ──────┘
//!
//!   header.rs    headers of requests         parsed_request.rs   opcodes, and the parts of their bodies
//!   reply.rs     answers and status codes    refusal.rs   the only answer of a server without the protocol
//!   sasl.rs      the message of PLAIN
//! ```
//!
//! As in memcached, the first byte of a connection determines the protocol: no text command begins
//! with 0x80. The reference is memcached's `proto_bin.c` of 1.6.45, and its document
//! `protocol-binary` for what only that describes.

pub(crate) mod header;
pub(crate) mod parsed_request;
pub(crate) mod refusal;
pub(crate) mod reply;
pub(crate) mod sasl;

/// The first byte of a request.
pub(crate) const REQUEST: u8 = 0x80;
/// The first byte of an answer.
const RESPONSE: u8 = 0x81;
/// Bytes of a header.
pub(crate) const HEADER_BYTES: usize = 24;
