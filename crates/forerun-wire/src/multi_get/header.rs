//! The 16 bytes in front of requests, parts and errors.

use super::{ANSWER, HEADER_BYTES, REQUEST};

/// Position of the number of answers received.
const RECEIVED_AT: usize = 12;

/// The header of a request, after its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// A [`Form`](super::Form).
    pub form: u8,
    /// [`RequestOptions`](super::RequestOptions).
    pub options: u8,
    /// 0.
    pub reserved: u8,
    /// Bytes after the header.
    pub body_bytes: u32,
    /// Any number; the answer repeats it.
    pub id: u32,
    /// The number of answers received on this connection, modulo 2^16.
    pub received: u16,
    /// The number of keys.
    pub count: u16,
}

/// What an answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum AnswerKind {
    /// A part: values.
    Values = 1,
    /// An error.
    Error = 2,
}

/// The header of a part, or of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerHeader {
    /// A part or an error.
    pub kind: AnswerKind,
    /// The options of the request; 0 in an error.
    pub options: u8,
    /// 1: the last part of the answer.
    pub last: u8,
    /// Bytes after the header.
    pub body_bytes: u32,
    /// The id of the request.
    pub id: u32,
    /// The position in the request of the part's first key; the code of an error.
    pub first: u16,
    /// The number of keys in the part; 0 in an error.
    pub count: u16,
}

impl RequestHeader {
    /// Reads a header that begins with [`REQUEST`].
    #[inline]
    pub fn read(bytes: &[u8; HEADER_BYTES]) -> RequestHeader {
        let ([_, form, options, reserved], body_bytes, id, [received, count]) = fields(bytes);
        RequestHeader {
            form,
            options,
            reserved,
            body_bytes,
            id,
            received,
            count,
        }
    }

    /// The bytes of the header.
    #[inline]
    pub fn bytes(self) -> [u8; HEADER_BYTES] {
        let start = [REQUEST, self.form, self.options, self.reserved];
        header(start, self.body_bytes, self.id, [self.received, self.count])
    }
}

impl AnswerHeader {
    /// `None` if the bytes are not the header of a part or of an error.
    #[inline]
    pub fn read(bytes: &[u8; HEADER_BYTES]) -> Option<AnswerHeader> {
        const VALUES: u8 = AnswerKind::Values as u8;
        const ERROR: u8 = AnswerKind::Error as u8;
        let ([magic, kind, options, last], body_bytes, id, [first, count]) = fields(bytes);
        let kind = match (magic, kind) {
            (ANSWER, VALUES) => AnswerKind::Values,
            (ANSWER, ERROR) => AnswerKind::Error,
            _ => return None,
        };
        Some(AnswerHeader {
            kind,
            options,
            last,
            body_bytes,
            id,
            first,
            count,
        })
    }

    /// The bytes of the header.
    #[inline]
    pub fn bytes(self) -> [u8; HEADER_BYTES] {
        let start = [ANSWER, self.kind as u8, self.options, self.last];
        header(start, self.body_bytes, self.id, [self.first, self.count])
    }
}

/// Writes the number of answers received into the request at the front of `bytes`.
#[inline]
pub fn set_received(bytes: &mut [u8], received: u16) {
    if let Some(field) = bytes.get_mut(RECEIVED_AT..RECEIVED_AT + 2) {
        field.copy_from_slice(&received.to_le_bytes());
    }
}

#[inline]
fn fields(bytes: &[u8; HEADER_BYTES]) -> ([u8; 4], u32, u32, [u16; 2]) {
    let &[a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = bytes;
    let numbers = [[m, n], [o, p]].map(u16::from_le_bytes);
    let [body_bytes, id] = [[e, f, g, h], [i, j, k, l]].map(u32::from_le_bytes);
    ([a, b, c, d], body_bytes, id, numbers)
}

#[inline]
fn header(start: [u8; 4], body_bytes: u32, id: u32, end: [u16; 2]) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&start);
    header[4..8].copy_from_slice(&body_bytes.to_le_bytes());
    header[8..12].copy_from_slice(&id.to_le_bytes());
    header[12..14].copy_from_slice(&end[0].to_le_bytes());
    header[14..].copy_from_slice(&end[1].to_le_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_have_the_documented_bytes() {
        let request = RequestHeader {
            form: 1,
            options: 3,
            reserved: 0,
            body_bytes: 0x0403_0201,
            id: 0x0807_0605,
            received: 0x0a09,
            count: 0x0c0b,
        };
        let bytes = [0xf6, 1, 3, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
        assert_eq!(request.bytes(), bytes);
        assert_eq!(RequestHeader::read(&bytes), request);
        let mut changed = bytes;
        set_received(&mut changed, 0xffff);
        let request = RequestHeader {
            received: 0xffff,
            ..request
        };
        assert_eq!(RequestHeader::read(&changed), request);
        let answer = AnswerHeader {
            kind: AnswerKind::Values,
            options: 3,
            last: 1,
            body_bytes: 0x0403_0201,
            id: 0x0807_0605,
            first: 0x0a09,
            count: 0x0c0b,
        };
        let bytes = [0xf7, 1, 3, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
        assert_eq!(answer.bytes(), bytes);
        assert_eq!(AnswerHeader::read(&bytes), Some(answer));
    }

    #[test]
    fn other_first_bytes_begin_no_answer() {
        for (magic, kind) in [(0xf6, 1), (0xf7, 0), (0xf7, 3), (b'S', b'E')] {
            let mut bytes = [0; HEADER_BYTES];
            (bytes[0], bytes[1]) = (magic, kind);
            assert_eq!(AnswerHeader::read(&bytes), None);
        }
    }
}
