//! Answers: the arrays of a part, and errors.

use super::frame_request::{BadRequest, RequestHead};
use super::header::{AnswerHeader, AnswerKind};
use super::{HEADER_BYTES, NOT_FOUND, PART_BYTES, RequestOptions};

/// What a part's arrays say about one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The length of its value.
    pub value_bytes: usize,
    /// The item's flags.
    pub flags: u32,
    /// The item's version.
    pub cas: u64,
}

/// Appends the header of a part and its arrays; `None` is a key that was not found. `first` is the
/// position of the first key in the request.
#[inline]
pub fn push_part<E>(head: RequestHead, first: usize, entries: E, out: &mut Vec<u8>)
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
    let header = AnswerHeader {
        kind: AnswerKind::Values,
        options: head.options.byte(),
        last: is_last.into(),
        body_bytes,
        id: head.id,
        first: first as u16,
        count: count as u16,
    };
    out.extend_from_slice(&header.bytes());
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
pub fn push_error(refused: BadRequest, out: &mut Vec<u8>) {
    let text = refused.error.to_string();
    let header = AnswerHeader {
        kind: AnswerKind::Error,
        options: 0,
        last: 1,
        body_bytes: text.len() as u32,
        id: refused.id,
        first: refused.error.code(),
        count: 0,
    };
    out.extend_from_slice(&header.bytes());
    out.extend_from_slice(text.as_bytes());
}

/// The arrays of a part, for those who read it.
#[derive(Clone, Copy, Debug)]
pub struct PartArrays<'a> {
    bytes: &'a [u8],
    count: usize,
    options: RequestOptions,
}

impl<'a> PartArrays<'a> {
    /// Bytes of the arrays of `count` keys.
    #[inline]
    pub fn len_bytes(count: usize, options: RequestOptions) -> usize {
        options.entry_bytes() * count
    }

    /// The arrays of `count` keys at the front of `bytes`. `None` if they are incomplete.
    #[inline]
    pub fn read(bytes: &'a [u8], count: usize, options: RequestOptions) -> Option<PartArrays<'a>> {
        Some(PartArrays {
            bytes: bytes.get(..PartArrays::len_bytes(count, options))?,
            count,
            options,
        })
    }

    /// What they say about the key at a position. `None` if it was not found. Flags and version are
    /// 0 if the request did not ask for them.
    ///
    /// # Panics
    /// If there are not so many keys.
    #[inline]
    pub fn entry(&self, at: usize) -> Option<Entry> {
        assert!(at < self.count, "the part has {} keys", self.count);
        let u32_at = |from: usize| {
            let bytes = &self.bytes[from..from + 4];
            u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
        };
        let value_bytes = u32_at(4 * at);
        if value_bytes == NOT_FOUND {
            return None;
        }
        let (mut flags, mut cas, mut begin) = (0, 0, 4 * self.count);
        if self.options.with_flags {
            flags = u32_at(begin + 4 * at);
            begin += 4 * self.count;
        }
        if self.options.with_cas {
            let from = begin + 8 * at;
            cas = u64::from(u32_at(from)) | u64::from(u32_at(from + 4)) << 32;
        }
        Some(Entry {
            value_bytes: value_bytes as usize,
            flags,
            cas,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_says_where_each_value_goes() {
        let head = RequestHead {
            id: 0x0403_0201,
            options: RequestOptions::of(3).expect("known bits"),
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

    #[test]
    fn arrays_are_read_as_they_were_written() {
        for byte in 0..4 {
            let options = RequestOptions::of(byte).expect("known bits");
            let head = RequestHead {
                id: 1,
                options,
                count: 3,
            };
            let entry = |n: u32| Entry {
                value_bytes: n as usize,
                flags: if options.with_flags { n + 1 } else { 0 },
                cas: if options.with_cas {
                    u64::from(n) << 40
                } else {
                    0
                },
            };
            let entries = [Some(entry(7)), None, Some(entry(0))];
            let mut out = Vec::new();
            push_part(head, 0, entries.into_iter(), &mut out);
            let arrays = PartArrays::read(&out[HEADER_BYTES..], 3, options).expect("whole");
            assert_eq!([0, 1, 2].map(|at| arrays.entry(at)), entries);
            assert!(PartArrays::read(&out[HEADER_BYTES + 1..], 3, options).is_none());
        }
    }
}
