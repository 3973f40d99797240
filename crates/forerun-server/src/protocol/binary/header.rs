//! The header of a request.
//!
//! ```text
//!   0     1       2         4           5  6         8          12      16      24
//!   80 │ opcode │ key_len │ extras_len │ 0 │ reserved │ body_len │ opaque │ cas │
//! ```
//!
//! `body_len` counts extras, key and value. Memcached ignores the data type and the reserved bytes.

use super::{HEADER_BYTES, REQUEST};

/// A longer body is refused, as in memcached: its largest item has 1 GiB.
const BODY_BYTES_MAX: u32 = 1 << 30;

/// What an answer repeats of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestId {
    pub(crate) opcode: u8,
    pub(crate) opaque: [u8; 4],
}

/// The header of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) id: RequestId,
    pub(crate) cas: u64,
    pub(crate) extras_len: usize,
    pub(crate) key_len: usize,
    pub(crate) body_len: usize,
}

/// Why a header cannot be the start of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderError {
    /// The first byte is not [`REQUEST`].
    Magic,
    /// The key and the extras are longer than the body.
    ShortBody(RequestId),
    /// The body is longer than any item.
    LongBody(RequestId),
}

impl Header {
    /// Reads a header and checks that its lengths agree.
    ///
    /// # Errors
    /// [`HeaderError`].
    pub(crate) fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Header, HeaderError> {
        let [
            magic,
            opcode,
            k0,
            k1,
            extras_len,
            _,
            _,
            _,
            b0,
            b1,
            b2,
            b3,
            o0,
            o1,
            o2,
            o3,
            cas @ ..,
        ] = *bytes;
        if magic != REQUEST {
            return Err(HeaderError::Magic);
        }
        let id = RequestId {
            opcode,
            opaque: [o0, o1, o2, o3],
        };
        let body_len = u32::from_be_bytes([b0, b1, b2, b3]);
        let key_len = u16::from_be_bytes([k0, k1]);
        if u32::from(key_len) + u32::from(extras_len) > body_len {
            return Err(HeaderError::ShortBody(id));
        }
        if body_len > BODY_BYTES_MAX {
            return Err(HeaderError::LongBody(id));
        }
        Ok(Header {
            id,
            cas: u64::from_be_bytes(cas),
            extras_len: extras_len.into(),
            key_len: key_len.into(),
            body_len: body_len as usize,
        })
    }

    /// The length of the value.
    pub(crate) fn value_len(&self) -> usize {
        self.body_len - self.key_len - self.extras_len
    }

    /// The length of everything before the value.
    pub(crate) fn head_len(&self) -> usize {
        HEADER_BYTES + self.extras_len + self.key_len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: RequestId = RequestId {
        opcode: 1,
        opaque: *b"abcd",
    };

    /// A header of a set with these lengths.
    fn header(key_len: u16, extras_len: u8, body_len: u32) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..2].copy_from_slice(&[REQUEST, 1]);
        bytes[2..4].copy_from_slice(&key_len.to_be_bytes());
        bytes[4..8].copy_from_slice(&[extras_len, 9, 9, 9]);
        bytes[8..12].copy_from_slice(&body_len.to_be_bytes());
        bytes[12..16].copy_from_slice(b"abcd");
        bytes[16..].copy_from_slice(&0x0102_0304_0506_0708_u64.to_be_bytes());
        bytes
    }

    #[test]
    fn a_header_is_read_in_network_order() {
        let read = Header::parse(&header(0x0102, 8, 0x0001_0203)).expect("the lengths agree");
        let expected = Header {
            id: ID,
            cas: 0x0102_0304_0506_0708,
            extras_len: 8,
            key_len: 0x0102,
            body_len: 0x0001_0203,
        };
        assert_eq!(read, expected);
        assert_eq!(read.value_len(), 0x0001_0203 - 0x0102 - 8);
        assert_eq!(read.head_len(), 24 + 0x0102 + 8);
    }

    #[test]
    fn lengths_that_contradict_each_other_are_refused() {
        let mut wrong = header(1, 0, 1);
        wrong[0] = 0x81;
        assert_eq!(Header::parse(&wrong), Err(HeaderError::Magic));
        for (key_len, extras_len, body_len) in [(2, 0, 1), (0, 1, 0), (u16::MAX, 255, 65_789)] {
            let refused = Header::parse(&header(key_len, extras_len, body_len));
            assert_eq!(refused, Err(HeaderError::ShortBody(ID)));
        }
        Header::parse(&header(u16::MAX, 255, 65_790)).expect("as long as key and extras");
        Header::parse(&header(1, 0, 1 << 30)).expect("the longest body");
        for body_len in [(1 << 30) + 1, u32::MAX] {
            let refused = Header::parse(&header(1, 0, body_len));
            assert_eq!(refused, Err(HeaderError::LongBody(ID)));
        }
    }
}
