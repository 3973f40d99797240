//! Requests: how the server reads them.

use super::header::RequestHeader;
use super::{CREDITS, Form, HEADER_BYTES, KEY_BYTES_MAX, REQUEST_BYTES_MAX, RequestOptions};

const LENGTHS: u8 = Form::Lengths as u8;
const U64: u8 = Form::U64 as u8;

/// The part of a request that its answer needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHead {
    /// Repeated in the answer.
    pub id: u32,
    /// What the answer has besides the values.
    pub options: RequestOptions,
    /// Number of keys.
    pub count: u16,
}

/// A whole request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// The part that the answer needs.
    pub head: RequestHead,
    form: Form,
    body: &'a [u8],
}

/// What is wrong with a request. The text is a part of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// An unknown form.
    #[error("form {0} is unknown; 1 and 2 are known")]
    Form(u8),
    /// Reserved bits are set.
    #[error("options {options:#04x}, reserved byte {reserved:#04x}: reserved bits must be 0")]
    Reserved {
        /// The options.
        options: u8,
        /// The reserved byte.
        reserved: u8,
    },
    /// It asks for nothing.
    #[error("a request asks for at least one key")]
    NoKeys,
    /// The lengths do not add up.
    #[error("a body of {bytes} bytes does not belong to {count} keys of form {form}")]
    Length {
        /// Bytes of the body.
        bytes: u32,
        /// The number of keys.
        count: u16,
        /// How the keys are given.
        form: u8,
    },
    /// It is too long.
    #[error("the request has {bytes} bytes, where {REQUEST_BYTES_MAX} are allowed")]
    Long {
        /// Its length.
        bytes: u64,
    },
    /// A key is empty or too long.
    #[error("key {index} has {bytes} bytes; a key has 1 to {KEY_BYTES_MAX}")]
    Key {
        /// Its position.
        index: usize,
        /// Its length.
        bytes: u8,
    },
    /// More requests than credits, or more answers than requests.
    #[error(
        "{received} answers were received, modulo 65536, of {answered}; at most {CREDITS} requests \
         may be unanswered"
    )]
    Credits {
        /// The number in the request.
        received: u16,
        /// The number of earlier requests.
        answered: u16,
    },
}

impl FrameError {
    /// The code in the answer.
    pub fn code(self) -> u16 {
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
pub struct BadRequest {
    /// The id in the request.
    pub id: u32,
    /// What is wrong.
    pub error: FrameError,
}

impl<'a> Request<'a> {
    /// Reads the request at the front of `bytes`, which begin with [`REQUEST`](super::REQUEST).
    /// `answered` is the number of earlier requests of the connection. Returns `None` if the
    /// request is incomplete.
    ///
    /// # Errors
    /// [`BadRequest`]. The result does not depend on how much has arrived behind the error.
    #[inline]
    pub fn parse(bytes: &'a [u8], answered: u16) -> Result<Option<Request<'a>>, BadRequest> {
        let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let RequestHeader {
            form,
            options,
            reserved,
            body_bytes,
            id,
            received,
            count,
        } = RequestHeader::read(header);
        let refuse = |error| Err(BadRequest { id, error });
        let parsed_form = match form {
            LENGTHS => Form::Lengths,
            U64 => Form::U64,
            _ => return refuse(FrameError::Form(form)),
        };
        let (Some(known_options), 0) = (RequestOptions::of(options), reserved) else {
            return refuse(FrameError::Reserved { options, reserved });
        };
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
            Form::U64 => keys * Form::KEY_BYTES_U64..=keys * Form::KEY_BYTES_U64,
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
                options: known_options,
                count,
            },
            form: parsed_form,
            body,
        }))
    }

    /// Length of the whole request.
    pub fn len_bytes(&self) -> usize {
        HEADER_BYTES + self.body.len()
    }

    /// Appends the keys from position `first` on to `keys`.
    #[inline]
    pub fn push_keys(&self, first: usize, keys: &mut Vec<&'a [u8]>) {
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
            Form::U64 => keys.extend(self.body.chunks_exact(Form::KEY_BYTES_U64).skip(first)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::REQUEST;
    use super::*;

    /// A request of form 1 with this header and these keys.
    fn request(keys: &[&[u8]]) -> Vec<u8> {
        let lengths: Vec<u8> = keys.iter().map(|key| key.len() as u8).collect();
        let body = [lengths, keys.concat()].concat();
        let mut bytes = vec![REQUEST, LENGTHS, 0, 0];
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
        (bytes[1], bytes[16]) = (U64, b'0');
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
            (with(good.clone(), 1, U64), 0, 4),
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
}
