//! Multi-get frames: lookups of many keys in binary, between the lines of the text protocol.
//!
//! ```text
//!   request  F6 form options 0    body_bytes(4) id(4) received(2) count(2) │ key_len(1)… key…
//!   part     F7 01   options last body_bytes(4) id(4) first(2)    count(2) │ value_len(4)… flags(4)… cas(8)… value…
//!   error    F7 02   0       1    body_bytes(4) id(4) code(2)     0(2)     │ text
//!
//!   header.rs          the 16 bytes in front
//!   frame_request.rs   the rules of requests
//!   answer.rs          parts, errors
//! ```
//!
//! Numbers are little-endian. docs/operate/multi-get.md describes the fields. Only this module
//! contains the format; the server, the client and the benches share it. The simulator of the tests
//! has its own code for it.

mod answer;
mod frame_request;
mod header;

pub use answer::{Entry, PartArrays, push_error, push_part};
pub use frame_request::{BadRequest, FrameError, Request, RequestHead};
pub use header::{AnswerHeader, AnswerKind, RequestHeader, set_received};

/// The line that asks for frames, once per connection.
pub const ENABLE: &[u8] = b"multi_get 1\r\n";
/// The version of the format in that line.
pub const VERSION: &[u8] = b"1";
/// The answer to it: the version, and the credits of a connection.
pub const ENABLED: &[u8] = b"MULTI_GET 1 64\r\n";
/// The answer to another version.
pub const BAD_VERSION: &[u8] = b"CLIENT_ERROR unsupported multi_get version\r\n";

/// The first byte of a request.
pub const REQUEST: u8 = 0xf6;
/// The first byte of a part of an answer, and of an error.
pub const ANSWER: u8 = 0xf7;
/// Bytes of every header.
pub const HEADER_BYTES: usize = 16;
/// Maximum length of a request with its header.
pub const REQUEST_BYTES_MAX: usize = 16 << 10;
/// Maximum number of requests of a connection that are not answered yet.
pub const CREDITS: u16 = 64;
/// Maximum length of a key in bytes.
pub const KEY_BYTES_MAX: usize = 250;
/// Maximum number of keys in a part of an answer.
pub const PART_KEYS_MAX: usize = 256;
/// A part takes no further value once it has this many bytes of values.
pub const PART_BYTES: usize = 16 << 10;
/// The length of a key's value if the key was not found.
pub const NOT_FOUND: u32 = u32::MAX;

/// How a request gives its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Form {
    /// A length per key, then the keys.
    Lengths = 1,
    /// Keys of [`Form::KEY_BYTES_U64`] bytes.
    U64 = 2,
}

impl Form {
    /// The length of a key of the form [`Form::U64`].
    pub const KEY_BYTES_U64: usize = 8;
}

const OPTION_FLAGS: u8 = 1;
const OPTION_CAS: u8 = 2;

/// What a request asks for besides the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestOptions {
    /// The flags of the items.
    pub with_flags: bool,
    /// Their versions.
    pub with_cas: bool,
}

impl RequestOptions {
    /// `None` if the byte has a reserved bit.
    #[inline]
    pub fn of(byte: u8) -> Option<RequestOptions> {
        (byte & !(OPTION_FLAGS | OPTION_CAS) == 0).then_some(RequestOptions {
            with_flags: byte & OPTION_FLAGS != 0,
            with_cas: byte & OPTION_CAS != 0,
        })
    }

    /// As a header has them.
    #[inline]
    pub fn byte(self) -> u8 {
        u8::from(self.with_flags) * OPTION_FLAGS + u8::from(self.with_cas) * OPTION_CAS
    }

    /// Bytes in front of the values, per key.
    #[inline]
    pub fn entry_bytes(self) -> usize {
        4 + usize::from(self.with_flags) * 4 + usize::from(self.with_cas) * 8
    }
}
