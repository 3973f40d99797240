//! A batch of writes, applied whole or not at all.
//!
//! A batch holds its operations encoded, one after the other, in the order in which they were
//! added. The log writes these very bytes, so that nothing is encoded twice:
//!
//! ```text
//! put     ┌───┬─────────┬───────────┬───────────┬─────────────┐
//!         │ 1 │ key_len │ key bytes │ value_len │ value bytes │
//!         └───┴─────────┴───────────┴───────────┴─────────────┘
//! delete  ┌───┬─────────┬───────────┐
//!         │ 2 │ key_len │ key bytes │        lengths: LEB128, the shortest form
//!         └───┴─────────┴───────────┘
//! delete  ┌───┬───────────┬─────────────┬─────────┬───────────┐
//! range   │ 3 │ start_len │ start bytes │ end_len │ end bytes │
//!         └───┴───────────┴─────────────┴─────────┴───────────┘
//! ```

use crate::{Error, MAX_BATCH_BYTES, MAX_KEY_BYTES, MAX_VALUE_BYTES, Result};

const PUT: u8 = 1;
const DELETE: u8 = 2;
const DELETE_RANGE: u8 = 3;

/// One write of a batch, borrowed from it.
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
    /// Removes all keys from `start` up to, not including, `end`.
    DeleteRange {
        /// The first key that is removed.
        start: &'a [u8],
        /// The first key behind it that is not.
        end: &'a [u8],
    },
}

impl<'a> Op<'a> {
    /// The key that is written; the first one of a range.
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
        if len_bytes > MAX_KEY_BYTES {
            return Err(Error::KeyTooLong {
                len_bytes,
                limit_bytes: MAX_KEY_BYTES,
            });
        }
        if let Op::Put { value, .. } = self
            && value.len() > MAX_VALUE_BYTES
        {
            return Err(Error::ValueTooLong {
                len_bytes: value.len(),
                limit_bytes: MAX_VALUE_BYTES,
            });
        }
        Ok(())
    }
}

/// Writes that become visible, and durable, together.
///
/// Later operations of a batch win over earlier ones on the same key.
///
/// ```
/// use forerun_db::{Op, WriteBatch};
///
/// let mut batch = WriteBatch::new();
/// batch.put(b"paris", b"48.85,2.35")?;
/// batch.delete(b"lutetia")?;
/// assert_eq!(batch.len(), 2);
/// assert_eq!(batch.ops().next(), Some(Op::Put { key: b"paris", value: b"48.85,2.35" }));
/// # Ok::<(), forerun_db::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteBatch {
    encoded: Vec<u8>,
    ops: usize,
    /// Operations that delete a range.
    ranges: usize,
}

impl WriteBatch {
    /// An empty batch. It allocates nothing.
    pub const fn new() -> WriteBatch {
        WriteBatch {
            encoded: Vec::new(),
            ops: 0,
            ranges: 0,
        }
    }

    /// An empty batch with room for `capacity_bytes` of encoded operations: keys, values, and about
    /// 5 bytes each.
    pub fn with_capacity(capacity_bytes: usize) -> WriteBatch {
        WriteBatch {
            encoded: Vec::with_capacity(capacity_bytes),
            ops: 0,
            ranges: 0,
        }
    }

    /// Adds: set `key` to `value`.
    ///
    /// # Errors
    /// [`Error::KeyTooLong`], [`Error::ValueTooLong`], [`Error::BatchTooLong`]; the batch is then
    /// unchanged.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.push(Op::Put { key, value })
    }

    /// Adds: remove `key`.
    ///
    /// # Errors
    /// [`Error::KeyTooLong`], [`Error::BatchTooLong`]; the batch is then unchanged.
    pub fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.push(Op::Delete { key })
    }

    /// Adds: remove all keys from `start` up to, not including, `end`, in the store's order. It costs no more than
    /// removing one key. What the batch puts into the range before is removed with it, what it puts there after stays.
    ///
    /// ```
    /// use forerun_db::{Db, Durability, Options, WriteBatch};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("store");
    /// let db = Db::open(path, Options::default())?;
    /// for key in ["2025-12", "2026-01", "2026-02", "2027-01"] {
    ///     db.put(key.as_bytes(), b"")?;
    /// }
    /// let mut batch = WriteBatch::new();
    /// batch.delete_range(b"2026", b"2027")?;
    /// batch.put(b"2026-03", b"new")?;
    /// db.write(&batch, Durability::Buffered)?;
    /// let left: Vec<_> = db.iter().map(|entry| entry.unwrap().0).collect();
    /// assert_eq!(left, [b"2025-12", b"2026-03", b"2027-01"]);
    /// # Ok::<(), forerun_db::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::KeyTooLong`], [`Error::BatchTooLong`]; the batch is then unchanged. That the range is not empty is
    /// checked when the batch is written.
    pub fn delete_range(&mut self, start: &[u8], end: &[u8]) -> Result<()> {
        self.push(Op::DeleteRange { start, end })
    }

    /// Adds one operation.
    pub(crate) fn push(&mut self, op: Op<'_>) -> Result<()> {
        op.check_lengths()?;
        let needed = encoded_len(&op);
        let len_bytes = self.encoded.len() + needed;
        if len_bytes > MAX_BATCH_BYTES {
            return Err(Error::BatchTooLong {
                len_bytes,
                limit_bytes: MAX_BATCH_BYTES,
            });
        }
        self.encoded.reserve(needed);
        match op {
            Op::Put { key, value } => {
                self.encoded.push(PUT);
                push_bytes(&mut self.encoded, key);
                push_bytes(&mut self.encoded, value);
            }
            Op::Delete { key } => {
                self.encoded.push(DELETE);
                push_bytes(&mut self.encoded, key);
            }
            Op::DeleteRange { start, end } => {
                self.encoded.push(DELETE_RANGE);
                push_bytes(&mut self.encoded, start);
                push_bytes(&mut self.encoded, end);
                self.ranges += 1;
            }
        }
        self.ops += 1;
        Ok(())
    }

    /// Removes all operations and keeps the memory.
    pub fn clear(&mut self) {
        self.encoded.clear();
        self.ops = 0;
        self.ranges = 0;
    }

    /// Number of operations.
    pub fn len(&self) -> usize {
        self.ops
    }

    /// Whether there is no operation.
    pub fn is_empty(&self) -> bool {
        self.ops == 0
    }

    /// The operations, in the order in which they were added.
    pub fn ops(&self) -> Ops<'_> {
        Ops {
            rest: &self.encoded,
            left: self.ops,
        }
    }

    /// The encoded operations, as the log stores them.
    pub fn encoded(&self) -> &[u8] {
        &self.encoded
    }

    /// Decodes what [`encoded`](Self::encoded) gave.
    ///
    /// # Errors
    /// [`Error::MalformedBatch`] if `encoded` is not exactly the encoding of a batch of `ops`
    /// operations.
    pub fn from_encoded(encoded: &[u8], ops: usize) -> Result<WriteBatch> {
        let is_range = |op: &Op<'_>| matches!(op, Op::DeleteRange { .. });
        let ranges = Ops::checked(encoded, ops)?.filter(is_range).count();
        Ok(WriteBatch {
            encoded: encoded.to_vec(),
            ops,
            ranges,
        })
    }

    /// Whether an operation deletes a range.
    pub(crate) fn has_ranges(&self) -> bool {
        self.ranges > 0
    }

    /// Gives memory back beyond `capacity_bytes`, keeping the operations.
    pub(crate) fn shrink_to(&mut self, capacity_bytes: usize) {
        self.encoded.shrink_to(capacity_bytes);
    }
}

/// The operations of a batch, in order. See [`WriteBatch::ops`].
#[derive(Clone, Debug)]
pub struct Ops<'a> {
    rest: &'a [u8],
    left: usize,
}

impl<'a> Ops<'a> {
    /// The operations of `encoded`, after a look at all of them: each is whole, there are `ops` of
    /// them, and they fill `encoded` to its end.
    pub(crate) fn checked(encoded: &'a [u8], ops: usize) -> Result<Ops<'a>> {
        let malformed = |rest: &[u8], reason| Error::MalformedBatch {
            offset: encoded.len() - rest.len(),
            reason,
        };
        let mut rest = encoded;
        for _ in 0..ops {
            let (op, after) = decode(rest).map_err(|reason| malformed(rest, reason))?;
            op.check_lengths()
                .map_err(|_| malformed(rest, "a length is over its limit"))?;
            rest = after;
        }
        if !rest.is_empty() {
            return Err(malformed(rest, "there are bytes after the last operation"));
        }
        Ok(Ops {
            rest: encoded,
            left: ops,
        })
    }
}

impl<'a> Iterator for Ops<'a> {
    type Item = Op<'a>;

    #[inline]
    fn next(&mut self) -> Option<Op<'a>> {
        if self.left == 0 {
            return None;
        }
        // The bytes come from `push` or passed `checked`, so this decodes; were they bad, the
        // iteration would end.
        let (op, rest) = decode(self.rest).ok()?;
        self.rest = rest;
        self.left -= 1;
        Some(op)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Ops<'_> {}

/// Splits the first operation off.
#[inline]
fn decode(bytes: &[u8]) -> Result<(Op<'_>, &[u8]), &'static str> {
    let (&tag, rest) = bytes.split_first().ok_or("an operation is missing")?;
    match tag {
        PUT => {
            let (key, rest) = split_bytes(rest)?;
            let (value, rest) = split_bytes(rest)?;
            Ok((Op::Put { key, value }, rest))
        }
        DELETE => {
            let (key, rest) = split_bytes(rest)?;
            Ok((Op::Delete { key }, rest))
        }
        DELETE_RANGE => {
            let (start, rest) = split_bytes(rest)?;
            let (end, rest) = split_bytes(rest)?;
            Ok((Op::DeleteRange { start, end }, rest))
        }
        _ => Err("the tag is that of no operation"),
    }
}

/// Splits a length and as many bytes off.
#[inline]
fn split_bytes(bytes: &[u8]) -> Result<(&[u8], &[u8]), &'static str> {
    let (len, rest) = split_varint(bytes)?;
    rest.split_at_checked(len as usize)
        .ok_or("a length reaches beyond the end")
}

fn push_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    let mut len = bytes.len();
    while len >= 0x80 {
        out.push(len as u8 | 0x80);
        len >>= 7;
    }
    out.push(len as u8);
    out.extend_from_slice(bytes);
}

/// Splits a LEB128 number of at most 32 bits off. Only its shortest form is taken, so that a batch
/// has one encoding.
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

fn encoded_len(op: &Op<'_>) -> usize {
    let with_len = |len: usize| {
        let bits = usize::BITS - len.max(1).leading_zeros();
        bits.div_ceil(7) as usize + len
    };
    1 + match op {
        Op::Put { key, value } => with_len(key.len()) + with_len(value.len()),
        Op::Delete { key } => with_len(key.len()),
        Op::DeleteRange { start, end } => with_len(start.len()) + with_len(end.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_key_over_the_limit_is_refused_and_leaves_the_batch_as_it_was() {
        let mut batch = WriteBatch::new();
        batch.put(&vec![0; MAX_KEY_BYTES], b"").unwrap();
        let before = batch.clone();
        let key = vec![0; MAX_KEY_BYTES + 1];
        assert!(matches!(
            batch.put(&key, b""),
            Err(Error::KeyTooLong {
                len_bytes: 65_537,
                ..
            })
        ));
        assert!(matches!(batch.delete(&key), Err(Error::KeyTooLong { .. })));
        assert_eq!(batch, before);
    }

    #[test]
    fn a_value_over_the_limit_is_refused_without_being_copied() {
        // Zeroed memory of this size is mapped on first touch, and the check touches none of it.
        let value = vec![0; MAX_VALUE_BYTES + 1];
        let mut batch = WriteBatch::new();
        assert!(matches!(
            batch.put(b"k", &value),
            Err(Error::ValueTooLong {
                len_bytes: 1_073_741_825,
                ..
            })
        ));
        assert_eq!(batch.encoded().len(), 0);
    }

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

    proptest! {
        #[test]
        fn what_is_added_comes_back(ops in prop::collection::vec(
            (prop::collection::vec(any::<u8>(), 0..300), prop::option::of(prop::collection::vec(any::<u8>(), 0..300))),
            0..20,
        )) {
            let mut batch = WriteBatch::new();
            let mut len = 0;
            for (key, value) in &ops {
                let op = match value {
                    Some(value) => Op::Put { key, value },
                    None => Op::Delete { key },
                };
                batch.push(op).unwrap();
                len += encoded_len(&op);
                prop_assert_eq!(batch.encoded().len(), len);
            }
            let again = WriteBatch::from_encoded(batch.encoded(), ops.len()).unwrap();
            prop_assert_eq!(&again, &batch);
            prop_assert_eq!(again.ops().len(), ops.len());
            for (op, (key, value)) in again.ops().zip(&ops) {
                match (op, value) {
                    (Op::Put { key: k, value: v }, Some(value)) => prop_assert!(k == key && v == value),
                    (Op::Delete { key: k }, None) => prop_assert!(k == key),
                    _ => prop_assert!(false, "wrong kind"),
                }
            }
        }

        #[test]
        fn arbitrary_bytes_decode_to_themselves_or_not_at_all(
            bytes in prop::collection::vec(0u8..4, 0..24), ops in 0usize..6,
        ) {
            if let Ok(batch) = WriteBatch::from_encoded(&bytes, ops) {
                let mut again = WriteBatch::new();
                for op in batch.ops() {
                    again.push(op).unwrap();
                }
                prop_assert_eq!(again.encoded(), &bytes[..]);
            }
        }
    }
}
