//! The operations of a batch, as they are encoded.

use crate::{Error, KEY_BYTES_MAX, Result, VALUE_BYTES_MAX};

const PUT: u8 = 1;
const DELETE: u8 = 2;
const DELETE_RANGE: u8 = 3;
const KEYSPACE: u8 = 4;

/// One write of a batch, borrowed from the batch.
///
/// ```
/// use forerun_db::{Op, WriteBatch};
///
/// let mut batch = WriteBatch::new();
/// batch.put("paris", "48.85,2.35")?;
/// batch.delete("lutetia")?;
/// let deleted = batch.ops().filter(|op| matches!(op, Op::Delete { .. }));
/// assert_eq!(deleted.map(|op| op.key()).collect::<Vec<_>>(), [b"lutetia"]);
/// # Ok::<(), forerun_db::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op<'a> {
    /// Sets `key` to `value`.
    Put {
        /// The key's bytes.
        key: &'a [u8],
        /// The value's bytes.
        value: &'a [u8],
    },
    /// Removes `key`.
    Delete {
        /// The key's bytes.
        key: &'a [u8],
    },
    /// Removes all keys from `start` (included) to `end` (excluded).
    DeleteRange {
        /// The first key that is removed.
        start: &'a [u8],
        /// The first key after the range.
        end: &'a [u8],
    },
}

impl<'a> Op<'a> {
    /// The key that is written, or the first key of a range.
    pub fn key(&self) -> &'a [u8] {
        match self {
            Op::Put { key, .. } | Op::Delete { key } => key,
            Op::DeleteRange { start, .. } => start,
        }
    }

    /// Refuses keys and values that are too long.
    pub(crate) fn check_lengths(&self) -> Result<()> {
        let end: &[u8] = match self {
            Op::DeleteRange { end, .. } => end,
            Op::Put { .. } | Op::Delete { .. } => &[],
        };
        let len_bytes = self.key().len().max(end.len());
        if len_bytes > KEY_BYTES_MAX {
            return Err(Error::KeyTooLong {
                len_bytes,
                limit_bytes: KEY_BYTES_MAX,
            });
        }
        if let Op::Put { value, .. } = self
            && value.len() > VALUE_BYTES_MAX
        {
            return Err(Error::ValueTooLong {
                len_bytes: value.len(),
                limit_bytes: VALUE_BYTES_MAX,
            });
        }
        Ok(())
    }
}

/// The operations of a batch, in order. See [`WriteBatch::ops`](crate::WriteBatch::ops).
#[derive(Clone, Debug)]
pub struct Ops<'a> {
    rest: &'a [u8],
    left: usize,
    /// The keyspace of the previous operation.
    keyspace: u32,
}

impl<'a> Ops<'a> {
    /// The operations of `encoded`, which are known to number `ops`.
    pub(super) fn trusted(encoded: &'a [u8], ops: usize) -> Ops<'a> {
        Ops {
            rest: encoded,
            left: ops,
            keyspace: 0,
        }
    }

    /// Checks that each operation of `encoded` is complete, that there are `ops` of them, and that
    /// they fill `encoded` to its end. Returns them with the greatest number of their keyspaces.
    pub(crate) fn checked(encoded: &'a [u8], ops: usize) -> Result<(Ops<'a>, u32)> {
        let malformed = |rest: &[u8], reason| Error::MalformedBatch {
            offset: encoded.len() - rest.len(),
            reason,
        };
        let (mut rest, mut keyspace, mut greatest) = (encoded, 0, 0);
        for _ in 0..ops {
            let decoded = decode(rest, keyspace).map_err(|reason| malformed(rest, reason))?;
            let op;
            let before = rest;
            (keyspace, op, rest) = decoded;
            greatest = keyspace.max(greatest);
            op.check_lengths()
                .map_err(|_| malformed(before, "a length is over its limit"))?;
        }
        if !rest.is_empty() {
            return Err(malformed(rest, "there are bytes after the last operation"));
        }
        Ok((Ops::trusted(encoded, ops), greatest))
    }

    /// The operations, each with the number of its keyspace: [`Keyspace::id`](crate::Keyspace::id),
    /// 0 for the store's own.
    ///
    /// ```
    /// use forerun_db::{Db, Op, Options, WriteBatch};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("store");
    /// let db = Db::open(path, Options::default())?;
    /// let users = db.keyspace("users")?;
    /// let mut batch = WriteBatch::new();
    /// batch.delete("draft")?;
    /// batch.keyspace(&users).put("4711", "Ada")?;
    /// let ops: Vec<(u32, Op)> = batch.ops().with_keyspaces().collect();
    /// assert_eq!(ops[0], (0, Op::Delete { key: b"draft" }));
    /// assert_eq!(ops[1].0, users.id());
    /// # Ok::<(), forerun_db::Error>(())
    /// ```
    pub fn with_keyspaces(mut self) -> impl Iterator<Item = (u32, Op<'a>)> + Clone {
        std::iter::from_fn(move || self.next_in())
    }

    #[inline]
    fn next_in(&mut self) -> Option<(u32, Op<'a>)> {
        if self.left == 0 {
            return None;
        }
        // The bytes come from `push` or passed `checked`, so this decodes; bad bytes would end the
        // iteration.
        let (keyspace, op, rest) = decode(self.rest, self.keyspace).ok()?;
        self.rest = rest;
        self.keyspace = keyspace;
        self.left -= 1;
        Some((keyspace, op))
    }
}

impl<'a> Iterator for Ops<'a> {
    type Item = Op<'a>;

    #[inline]
    fn next(&mut self) -> Option<Op<'a>> {
        self.next_in().map(|(_, op)| op)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Ops<'_> {}

/// Appends an operation of a keyspace. The last operation before it belongs to keyspace `before`.
pub(super) fn encode(out: &mut Vec<u8>, before: u32, keyspace: u32, op: &Op<'_>) {
    if keyspace != before {
        out.push(KEYSPACE);
        push_varint(out, keyspace as usize);
    }
    match op {
        Op::Put { key, value } => {
            out.push(PUT);
            push_bytes(out, key);
            push_bytes(out, value);
        }
        Op::Delete { key } => {
            out.push(DELETE);
            push_bytes(out, key);
        }
        Op::DeleteRange { start, end } => {
            out.push(DELETE_RANGE);
            push_bytes(out, start);
            push_bytes(out, end);
        }
    }
}

/// Bytes that [`encode`] adds.
pub(super) fn encoded_len(before: u32, keyspace: u32, op: &Op<'_>) -> usize {
    let with_len = |bytes: &[u8]| varint_len(bytes.len()) + bytes.len();
    let switch = if keyspace == before {
        0
    } else {
        1 + varint_len(keyspace as usize)
    };
    1 + switch
        + match op {
            Op::Put { key, value } => with_len(key) + with_len(value),
            Op::Delete { key } => with_len(key),
            Op::DeleteRange { start, end } => with_len(start) + with_len(end),
        }
}

/// Splits off the first operation, with the number of its keyspace.
#[inline]
fn decode(bytes: &[u8], before: u32) -> Result<(u32, Op<'_>, &[u8]), &'static str> {
    let (mut tag, mut rest) = split_tag(bytes)?;
    let mut keyspace = before;
    if tag == KEYSPACE {
        (keyspace, rest) = split_varint(rest)?;
        // A batch has only one encoding.
        if keyspace == before {
            return Err("the keyspace is the same as before");
        }
        (tag, rest) = split_tag(rest)?;
    }
    match tag {
        PUT => {
            let (key, rest) = split_bytes(rest)?;
            let (value, rest) = split_bytes(rest)?;
            Ok((keyspace, Op::Put { key, value }, rest))
        }
        DELETE => {
            let (key, rest) = split_bytes(rest)?;
            Ok((keyspace, Op::Delete { key }, rest))
        }
        DELETE_RANGE => {
            let (start, rest) = split_bytes(rest)?;
            let (end, rest) = split_bytes(rest)?;
            Ok((keyspace, Op::DeleteRange { start, end }, rest))
        }
        _ => Err("the tag is unknown"),
    }
}

#[inline]
fn split_tag(bytes: &[u8]) -> Result<(u8, &[u8]), &'static str> {
    let (&tag, rest) = bytes.split_first().ok_or("an operation is missing")?;
    Ok((tag, rest))
}

/// Splits off a length and that many bytes.
#[inline]
fn split_bytes(bytes: &[u8]) -> Result<(&[u8], &[u8]), &'static str> {
    let (len, rest) = split_varint(bytes)?;
    rest.split_at_checked(len as usize)
        .ok_or("a length reaches beyond the end")
}

fn push_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    push_varint(out, bytes.len());
    out.extend_from_slice(bytes);
}

fn push_varint(out: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn varint_len(value: usize) -> usize {
    let bits = usize::BITS - value.max(1).leading_zeros();
    bits.div_ceil(7) as usize
}

/// Splits off a LEB128 number of at most 32 bits. Only its shortest form is accepted, so that a
/// batch has only one encoding.
#[inline]
fn split_varint(bytes: &[u8]) -> Result<(u32, &[u8]), &'static str> {
    let mut value = 0u64;
    for (i, &byte) in bytes.iter().take(5).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte < 0x80 {
            if byte == 0 && i > 0 {
                return Err("a length is not in its shortest form");
            }
            let value = u32::try_from(value).map_err(|_| "a length is over 32 bits")?;
            return Ok((value, &bytes[i + 1..]));
        }
    }
    Err("a length does not end")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WriteBatch;

    #[test]
    fn an_overlong_varint_and_an_overrun_are_refused() {
        for (bytes, offset) in [
            (&[DELETE, 0x80, 0x00][..], 0),               // zero in two bytes
            (&[DELETE, 0xff, 0xff, 0xff, 0xff, 0x1f], 0), // 33 bits
            (&[DELETE, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80], 0), // no end
            (&[DELETE, 2, b'a'], 0),                      // key cut
            (&[PUT, 1, b'a', 1], 0),                      // value cut
            (&[DELETE, 1, b'a', 9], 3),                   // bytes after the last operation
            (&[9, 1, b'a'], 0),                           // unknown tag
            (&[KEYSPACE, 3], 0),                          // a keyspace without an operation
            (&[KEYSPACE, 0, DELETE, 1, b'a'], 0),         // the current keyspace again
            (&[KEYSPACE, 3, KEYSPACE, 4, DELETE, 1, b'a'], 0), // a keyspace without an operation
            (&[DELETE, 1, b'a', KEYSPACE, 3], 3),         // a keyspace after the last operation
            (&[], 0),                                     // nothing
        ] {
            match WriteBatch::from_encoded(bytes, 1) {
                Err(Error::MalformedBatch { offset: at, .. }) => {
                    assert_eq!(at, offset, "{bytes:?}")
                }
                other => panic!("{bytes:?} gave {other:?}"),
            }
        }
        let (_, rest) = split_varint(&[0xff, 0xff, 0xff, 0xff, 0x0f, 7]).unwrap();
        assert_eq!(rest, [7]);
    }
}
