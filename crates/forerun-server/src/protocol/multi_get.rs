//! Multi-get frames: lookups of many keys in binary, between the lines of the text protocol.
//!
//! ```text
//!   request  F6 form options 0    body_bytes(4) id(4) received(2) count(2) │ key_len(1)… key…
//!   part     F7 01   options last body_bytes(4) id(4) first(2)    count(2) │ value_len(4)… flags(4)… cas(8)… value…
//!   error    F7 02   0       1    body_bytes(4) id(4) code(2)     0(2)     │ text
//! ```
//!
//! Numbers are little-endian. docs/operate/multi-get.md describes the fields. This module reads
//! requests and writes headers; it knows nothing about items.

use crate::protocol::KEY_BYTES_MAX;

/// The version of the format that the command `multi_get` accepts.
pub(crate) const VERSION: &[u8] = b"1";
/// The answer to that command: the version, and the credits of a connection.
pub(crate) const ENABLED: &[u8] = b"MULTI_GET 1 64\r\n";
/// The answer to another version.
pub(crate) const BAD_VERSION: &[u8] = b"CLIENT_ERROR unsupported multi_get version\r\n";

/// The first byte of a request.
pub(crate) const REQUEST: u8 = 0xf6;
/// The first byte of a part of an answer.
const ANSWER: u8 = 0xf7;
/// Bytes of every header.
pub(crate) const HEADER_BYTES: usize = 16;
/// Maximum length of a request with its header.
pub(crate) const REQUEST_BYTES_MAX: usize = 16 << 10;
/// Maximum number of requests of a connection that are not answered yet.
const CREDITS: u16 = 64;
/// Maximum number of keys in a part of an answer.
pub(crate) const PART_KEYS_MAX: usize = 256;
/// A part takes no further value once it has this many bytes of values.
pub(crate) const PART_BYTES: usize = 16 << 10;
/// The length of a key's value if the key was not found.
const NOT_FOUND: u32 = u32::MAX;

const FORM_LENGTHS: u8 = 1;
const FORM_U64: u8 = 2;
const OPTION_FLAGS: u8 = 1;
const OPTION_CAS: u8 = 2;
const KIND_VALUES: u8 = 1;
const KIND_ERROR: u8 = 2;
const KEY_BYTES_U64: usize = 8;

/// How a request gives its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// A length per key, then the keys.
    Lengths,
    /// Keys of 8 bytes.
    U64,
}

/// What a request asks for besides the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestOptions {
    pub(crate) with_flags: bool,
    pub(crate) with_cas: bool,
}

impl RequestOptions {
    fn of(byte: u8) -> Self {
        Self {
            with_flags: byte & OPTION_FLAGS != 0,
            with_cas: byte & OPTION_CAS != 0,
        }
    }

    fn byte(self) -> u8 {
        u8::from(self.with_flags) * OPTION_FLAGS + u8::from(self.with_cas) * OPTION_CAS
    }

    /// Bytes in front of the values, per key.
    fn entry_bytes(self) -> usize {
        4 + usize::from(self.with_flags) * 4 + usize::from(self.with_cas) * 8
    }
}

/// The part of a request that its answer needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestHead {
    pub(crate) id: u32,
    pub(crate) options: RequestOptions,
    /// Number of keys.
    pub(crate) count: u16,
}

/// A whole request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request<'a> {
    pub(crate) head: RequestHead,
    form: Form,
    body: &'a [u8],
}

/// What is wrong with a request. The text is a part of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("form {0} is unknown; 1 and 2 are known")]
    Form(u8),
    #[error("options {options:#04x}, reserved byte {reserved:#04x}: reserved bits must be 0")]
    Reserved { options: u8, reserved: u8 },
    #[error("a request asks for at least one key")]
    NoKeys,
    #[error("a body of {bytes} bytes does not belong to {count} keys of form {form}")]
    Length { bytes: u32, count: u16, form: u8 },
    #[error("the request has {bytes} bytes, where {REQUEST_BYTES_MAX} are allowed")]
    Long { bytes: u64 },
    #[error("key {index} has {bytes} bytes; a key has 1 to {KEY_BYTES_MAX}")]
    Key { index: usize, bytes: u8 },
    #[error(
        "{received} answers were received, modulo 65536, of {answered}; at most {CREDITS} requests \
         may be unanswered"
    )]
    Credits { received: u16, answered: u16 },
}

impl FrameError {
    fn code(self) -> u16 {
        match self {
            Self::Form(_) => 1,
            Self::Reserved { .. } => 2,
            Self::NoKeys => 3,
            Self::Length { .. } | Self::Long { .. } => 4,
            Self::Key { .. } => 5,
            Self::Credits { .. } => 6,
        }
    }
}

/// A request that is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadRequest {
    pub(crate) id: u32,
    pub(crate) error: FrameError,
}

fn u16_at(header: &[u8; HEADER_BYTES], at: usize) -> u16 {
    u16::from_le_bytes([header[at], header[at + 1]])
}

fn u32_at(header: &[u8; HEADER_BYTES], at: usize) -> u32 {
    u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
}

impl<'a> Request<'a> {
    /// Reads the request at the front of `bytes`, which begin with [`REQUEST`]. `answered` is the
    /// number of earlier requests of the connection. Returns `None` if the request is incomplete.
    ///
    /// # Errors
    /// [`BadRequest`]. The result does not depend on how much has arrived behind the error.
    pub(crate) fn parse(bytes: &'a [u8], answered: u16) -> Result<Option<Request<'a>>, BadRequest> {
        let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let (form, options, reserved) = (header[1], header[2], header[3]);
        let (body_bytes, id) = (u32_at(header, 4), u32_at(header, 8));
        let (received, count) = (u16_at(header, 12), u16_at(header, 14));
        let refuse = |error| Err(BadRequest { id, error });
        let parsed_form = match form {
            FORM_LENGTHS => Form::Lengths,
            FORM_U64 => Form::U64,
            _ => return refuse(FrameError::Form(form)),
        };
        if options & !(OPTION_FLAGS | OPTION_CAS) != 0 || reserved != 0 {
            return refuse(FrameError::Reserved { options, reserved });
        }
        if count == 0 {
            return refuse(FrameError::NoKeys);
        }
        // A count of answers that were never sent wraps around to a large number.
        if answered.wrapping_sub(received) >= CREDITS {
            return refuse(FrameError::Credits { received, answered });
        }
        let bytes_of_request = u64::from(body_bytes) + HEADER_BYTES as u64;
        if bytes_of_request > REQUEST_BYTES_MAX as u64 {
            return refuse(FrameError::Long {
                bytes: bytes_of_request,
            });
        }
        let wrong_length = FrameError::Length {
            bytes: body_bytes,
            count,
            form,
        };
        let keys = usize::from(count);
        let can_be = match parsed_form {
            Form::Lengths => keys..=keys * (1 + usize::from(u8::MAX)),
            Form::U64 => keys * KEY_BYTES_U64..=keys * KEY_BYTES_U64,
        };
        if !can_be.contains(&(body_bytes as usize)) {
            return refuse(wrong_length);
        }
        let Some(body) = bytes.get(HEADER_BYTES..HEADER_BYTES + body_bytes as usize) else {
            return Ok(None);
        };
        if parsed_form == Form::Lengths {
            let (lengths, all_keys) = body.split_at(keys);
            let sum: usize = lengths.iter().map(|&bytes| usize::from(bytes)).sum();
            if sum != all_keys.len() {
                return refuse(wrong_length);
            }
            let is_bad = |bytes: &u8| *bytes == 0 || usize::from(*bytes) > KEY_BYTES_MAX;
            if let Some(index) = lengths.iter().position(is_bad) {
                let bytes = lengths[index];
                return refuse(FrameError::Key { index, bytes });
            }
        }
        Ok(Some(Request {
            head: RequestHead {
                id,
                options: RequestOptions::of(options),
                count,
            },
            form: parsed_form,
            body,
        }))
    }

    /// Length of the whole request.
    pub(crate) fn len_bytes(&self) -> usize {
        HEADER_BYTES + self.body.len()
    }

    /// Appends the keys from position `first` on to `keys`.
    pub(crate) fn push_keys(&self, first: usize, keys: &mut Vec<&'a [u8]>) {
        match self.form {
            Form::Lengths => {
                let (lengths, mut rest) = self.body.split_at(usize::from(self.head.count));
                keys.reserve(lengths.len() - first.min(lengths.len()));
                for (at, &bytes) in lengths.iter().enumerate() {
                    // The sum of the lengths was checked.
                    let (key, behind) = rest.split_at(usize::from(bytes));
                    rest = behind;
                    if at >= first {
                        keys.push(key);
                    }
                }
            }
            Form::U64 => keys.extend(self.body.chunks_exact(KEY_BYTES_U64).skip(first)),
        }
    }
}

/// What a part's arrays say about one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) value_bytes: usize,
    pub(crate) flags: u32,
    pub(crate) cas: u64,
}

/// Appends the header of a part and its arrays; `None` is a key that was not found. `first` is the
/// position of the first key in the request.
#[inline]
pub(crate) fn push_part<E>(head: RequestHead, first: usize, entries: E, out: &mut Vec<u8>)
where
    E: ExactSizeIterator<Item = Option<Entry>> + Clone,
{
    let count = entries.len();
    let values = entries.clone().flatten();
    let value_bytes: usize = values.map(|entry| entry.value_bytes).sum();
    let array_bytes = head.options.entry_bytes() * count;
    // An item has at most 1 GiB, and a part ends with its first large value.
    let body_bytes = u32::try_from(array_bytes + value_bytes).unwrap_or(u32::MAX);
    debug_assert!(body_bytes < u32::MAX, "a part has less than 4 GiB");
    let is_last = first + count == usize::from(head.count);
    out.reserve(HEADER_BYTES + array_bytes + value_bytes.min(2 * PART_BYTES));
    let start = [ANSWER, KIND_VALUES, head.options.byte(), is_last.into()];
    push_header(
        start,
        body_bytes,
        head.id,
        [first as u16, count as u16],
        out,
    );
    for entry in entries.clone() {
        let bytes = entry.map_or(NOT_FOUND, |entry| entry.value_bytes as u32);
        out.extend_from_slice(&bytes.to_le_bytes());
    }
    if head.options.with_flags {
        for entry in entries.clone() {
            let flags = entry.map_or(0, |entry| entry.flags);
            out.extend_from_slice(&flags.to_le_bytes());
        }
    }
    if head.options.with_cas {
        for entry in entries {
            let cas = entry.map_or(0, |entry| entry.cas);
            out.extend_from_slice(&cas.to_le_bytes());
        }
    }
}

/// Appends the answer to a request that is refused.
pub(crate) fn push_error(refused: BadRequest, out: &mut Vec<u8>) {
    let text = refused.error.to_string();
    let start = [ANSWER, KIND_ERROR, 0, 1];
    let code = refused.error.code();
    push_header(start, text.len() as u32, refused.id, [code, 0], out);
    out.extend_from_slice(text.as_bytes());
}

#[inline]
fn push_header(start: [u8; 4], body_bytes: u32, id: u32, end: [u16; 2], out: &mut Vec<u8>) {
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&start);
    header[4..8].copy_from_slice(&body_bytes.to_le_bytes());
    header[8..12].copy_from_slice(&id.to_le_bytes());
    header[12..14].copy_from_slice(&end[0].to_le_bytes());
    header[14..].copy_from_slice(&end[1].to_le_bytes());
    out.extend_from_slice(&header);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request of form 1 with this header and these keys.
    fn request(keys: &[&[u8]]) -> Vec<u8> {
        let lengths: Vec<u8> = keys.iter().map(|key| key.len() as u8).collect();
        let body = [lengths, keys.concat()].concat();
        let mut bytes = vec![REQUEST, FORM_LENGTHS, 0, 0];
        bytes.extend((body.len() as u32).to_le_bytes());
        bytes.extend(7_u32.to_le_bytes());
        bytes.extend(0_u16.to_le_bytes());
        bytes.extend((keys.len() as u16).to_le_bytes());
        bytes.extend(body);
        bytes
    }

    fn with(mut bytes: Vec<u8>, at: usize, byte: u8) -> Vec<u8> {
        bytes[at] = byte;
        bytes
    }

    fn error_of(bytes: &[u8], answered: u16) -> FrameError {
        let refused = Request::parse(bytes, answered).expect_err("it breaks a rule");
        assert_eq!(refused.id, 7);
        refused.error
    }

    fn keys_of(bytes: &[u8], first: usize) -> Vec<&[u8]> {
        let request = Request::parse(bytes, 0).expect("a good request");
        let request = request.expect("a whole request");
        assert_eq!(request.len_bytes(), bytes.len());
        let mut keys = Vec::new();
        request.push_keys(first, &mut keys);
        keys
    }

    #[test]
    fn a_request_has_its_keys_once_all_of_it_has_arrived() {
        let keys = [&b"a"[..], b"bc", b"\r\n\0", &[b'x'; KEY_BYTES_MAX]];
        let bytes = request(&keys);
        for end in 1..bytes.len() {
            assert_eq!(Request::parse(&bytes[..end], 0), Ok(None), "{end} bytes");
        }
        assert_eq!(keys_of(&bytes, 0), keys);
        assert_eq!(keys_of(&bytes, 3), keys[3..]);
        // Keys of 8 bytes have no lengths.
        let mut bytes = request(&[b"1234567"]);
        (bytes[1], bytes[16]) = (FORM_U64, b'0');
        assert_eq!(keys_of(&bytes, 0), [b"01234567"]);
        assert!(keys_of(&bytes, 1).is_empty());
    }

    #[test]
    fn every_broken_rule_has_its_code() {
        let good = request(&[b"a", b"bc"]);
        for (bytes, answered, code) in [
            (with(good.clone(), 1, 0), 0, 1),
            (with(good.clone(), 1, 3), 0, 1),
            (with(good.clone(), 2, 4), 0, 2),
            (with(good.clone(), 3, 1), 0, 2),
            (with(good.clone(), 14, 0), 0, 3),
            (with(good.clone(), 14, 3), 0, 4),
            (with(good.clone(), 14, 1), 0, 4),
            (with(good.clone(), 7, 0xff), 0, 4),
            (with(good.clone(), 1, FORM_U64), 0, 4),
            (with(request(&[b"a", b""]), 16, 0), 0, 4),
            (request(&[b"a", b""]), 0, 5),
            (request(&[&[b'x'; KEY_BYTES_MAX + 1]]), 0, 5),
            (good.clone(), CREDITS, 6),
            (with(good.clone(), 12, 1), 0, 6),
        ] {
            assert_eq!(error_of(&bytes, answered).code(), code, "{bytes:02x?}");
        }
        // The counts wrap around.
        let request = with(with(good.clone(), 12, 0xff), 13, 0xff);
        for (answered, is_good) in [(u16::MAX, true), (CREDITS - 2, true), (CREDITS - 1, false)] {
            assert_eq!(
                Request::parse(&request, answered).is_ok(),
                is_good,
                "{answered}"
            );
        }
    }

    #[test]
    fn a_request_has_at_most_16_kib() {
        let key = [b'k'; 203];
        // With its header, its 81 lengths and 80 of its keys, the request has 16,337 bytes.
        let mut keys = vec![&key[..]; 80];
        let last = [b'l'; 48];
        keys.push(&last[..47]);
        let longest = request(&keys);
        assert_eq!(longest.len(), REQUEST_BYTES_MAX);
        assert_eq!(keys_of(&longest, 80), [&last[..47]]);
        keys[80] = &last;
        let long = request(&keys);
        let bytes = REQUEST_BYTES_MAX as u64 + 1;
        assert_eq!(
            error_of(&long[..HEADER_BYTES], 0),
            FrameError::Long { bytes }
        );
    }

    #[test]
    fn a_part_says_where_each_value_goes() {
        let head = RequestHead {
            id: 0x0403_0201,
            options: RequestOptions::of(OPTION_FLAGS | OPTION_CAS),
            count: 300,
        };
        let entry = |value_bytes| Entry {
            value_bytes,
            flags: 9,
            cas: 0x1122,
        };
        let mut out = Vec::new();
        push_part(head, 298, [Some(entry(3)), None].into_iter(), &mut out);
        let header = [0xf7, 1, 3, 1, 35, 0, 0, 0, 1, 2, 3, 4, 42, 1, 2, 0];
        assert_eq!(out[..16], header);
        assert_eq!(out[16..24], [3, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(out[24..32], [9, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(
            out[32..],
            [0x22, 0x11, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        );
    }
}
