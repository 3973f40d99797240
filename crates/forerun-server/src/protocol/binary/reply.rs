//! Answers: their headers, and the status codes with memcached's texts.

use super::header::RequestId;
use super::{HEADER_BYTES, RESPONSE};

/// The status of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Success = 0x00,
    NotFound = 0x01,
    Exists = 0x02,
    TooLarge = 0x03,
    Invalid = 0x04,
    NotStored = 0x05,
    NotANumber = 0x06,
    AuthError = 0x20,
    AuthContinue = 0x21,
    UnknownCommand = 0x81,
    OutOfMemory = 0x82,
}

impl Status {
    /// The text that memcached sends with this status.
    fn text(self) -> &'static [u8] {
        match self {
            Status::Success | Status::AuthContinue => b"",
            Status::NotFound => b"Not found",
            Status::Exists => b"Data exists for key.",
            Status::TooLarge => b"Too large.",
            Status::Invalid => b"Invalid arguments",
            Status::NotStored => b"Not stored.",
            Status::NotANumber => b"Non-numeric server-side value for incr or decr",
            Status::AuthError => b"Auth failure.",
            Status::UnknownCommand => b"Unknown command",
            Status::OutOfMemory => b"Out of memory",
        }
    }
}

/// The parts of an answer whose length its header tells. The caller appends them after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BodyLengths {
    pub(crate) extras: u8,
    pub(crate) key: usize,
    pub(crate) value: usize,
}

/// The header of an answer.
#[inline]
pub(crate) fn header(
    id: RequestId,
    status: Status,
    lengths: BodyLengths,
    cas: u64,
) -> [u8; HEADER_BYTES] {
    // Keys have at most 250 bytes, names of statistics fewer, and values at most 1 GiB.
    let body_len = (usize::from(lengths.extras) + lengths.key + lengths.value) as u32;
    let mut header = [0; HEADER_BYTES];
    header[..2].copy_from_slice(&[RESPONSE, id.opcode]);
    header[2..4].copy_from_slice(&(lengths.key as u16).to_be_bytes());
    header[4] = lengths.extras;
    header[6..8].copy_from_slice(&(status as u16).to_be_bytes());
    header[8..12].copy_from_slice(&body_len.to_be_bytes());
    header[12..16].copy_from_slice(&id.opaque);
    header[16..].copy_from_slice(&cas.to_be_bytes());
    header
}

/// Appends the header of an answer.
#[inline]
pub(crate) fn push_header(
    out: &mut Vec<u8>,
    id: RequestId,
    status: Status,
    lengths: BodyLengths,
    cas: u64,
) {
    out.extend_from_slice(&header(id, status, lengths, cas));
}

/// Appends a successful answer with this value, or without one if it is empty.
pub(crate) fn push_success(out: &mut Vec<u8>, id: RequestId, value: &[u8], cas: u64) {
    let lengths = BodyLengths {
        value: value.len(),
        ..BodyLengths::default()
    };
    push_header(out, id, Status::Success, lengths, cas);
    out.extend_from_slice(value);
}

/// Appends an error with the text of its status.
pub(crate) fn push_error(out: &mut Vec<u8>, id: RequestId, status: Status) {
    push_error_text(out, id, status, status.text());
}

/// Appends an error with its own text.
pub(crate) fn push_error_text(out: &mut Vec<u8>, id: RequestId, status: Status, text: &[u8]) {
    let lengths = BodyLengths {
        value: text.len(),
        ..BodyLengths::default()
    };
    push_header(out, id, status, lengths, 0);
    out.extend_from_slice(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_of_an_answer_is_in_network_order() {
        let id = RequestId {
            opcode: 0x0c,
            opaque: *b"abcd",
        };
        let lengths = BodyLengths {
            extras: 4,
            key: 0x0102,
            value: 0x0003_0000,
        };
        let mut out = Vec::new();
        push_header(&mut out, id, Status::NotFound, lengths, 0x0102_0304_0506);
        let expected =
            b"\x81\x0c\x01\x02\x04\0\0\x01\0\x03\x01\x06abcd\0\0\x01\x02\x03\x04\x05\x06";
        assert_eq!(out, expected);
    }

    #[test]
    fn an_error_carries_its_text() {
        let id = RequestId {
            opcode: 1,
            opaque: [0; 4],
        };
        let mut out = Vec::new();
        push_error(&mut out, id, Status::TooLarge);
        assert_eq!((out[7], out[11], &out[24..]), (3, 10, &b"Too large."[..]));
    }
}
