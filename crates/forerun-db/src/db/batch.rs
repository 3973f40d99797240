//! A batch of writes, applied as a whole or not at all.
//!
//! A batch holds its operations encoded, in the order in which they were added. The log writes
//! these same bytes, so nothing is encoded twice:
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
//! keyspace┌───┬────┐
//!         │ 4 │ id │    before an operation of another keyspace than the one before; at first it is 0
//!         └───┴────┘
//! ```

use crate::ops::{self, Op, Ops};
use crate::{BATCH_BYTES_MAX, Error, Result};

/// Writes that become visible together and durable together.
///
/// On the same key, a later operation of a batch wins over an earlier one.
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
    /// The keyspace of the last operation.
    last_keyspace: u32,
    /// The keyspaces of all operations, ascending; empty if all are in the store's own.
    keyspaces: Vec<u32>,
    /// The open store that the keyspaces belong to; 0 if the batch fits any.
    pub(super) store: u64,
    /// Why `extend` left out an operation.
    extend_error: Option<ExtendError>,
}

/// An operation that was left out.
#[derive(Clone, Debug)]
struct ExtendError(Box<Error>);

impl PartialEq for ExtendError {
    /// Errors with the same message are the same: they name the lengths.
    fn eq(&self, other: &ExtendError) -> bool {
        self.0.to_string() == other.0.to_string()
    }
}

impl Eq for ExtendError {}

impl WriteBatch {
    /// An empty batch. It allocates nothing.
    pub const fn new() -> WriteBatch {
        WriteBatch {
            encoded: Vec::new(),
            ops: 0,
            ranges: 0,
            last_keyspace: 0,
            keyspaces: Vec::new(),
            store: 0,
            extend_error: None,
        }
    }

    /// An empty batch with room for `capacity_bytes` of encoded operations: keys, values, and about
    /// 5 bytes each.
    pub fn with_capacity(capacity_bytes: usize) -> WriteBatch {
        WriteBatch {
            encoded: Vec::with_capacity(capacity_bytes),
            ..WriteBatch::new()
        }
    }

    /// Adds an operation that sets `key` to `value`.
    ///
    /// # Errors
    /// [`Error::KeyTooLong`], [`Error::ValueTooLong`], [`Error::BatchTooLong`],
    /// [`Error::OutOfMemory`]. The batch is then unchanged.
    #[inline]
    pub fn put(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        let (key, value) = (key.as_ref(), value.as_ref());
        self.push(Op::Put { key, value })
    }

    /// Adds an operation that removes `key`.
    ///
    /// # Errors
    /// [`Error::KeyTooLong`], [`Error::BatchTooLong`], [`Error::OutOfMemory`]. The batch is then
    /// unchanged.
    #[inline]
    pub fn delete(&mut self, key: impl AsRef<[u8]>) -> Result<()> {
        let key = key.as_ref();
        self.push(Op::Delete { key })
    }

    /// Adds an operation that removes all keys from `start` (included) to `end` (excluded), in the
    /// store's order. It costs no more than removing one key. It also removes what earlier
    /// operations of the batch put into the range; what later ones put there stays.
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
    /// [`Error::KeyTooLong`], [`Error::BatchTooLong`], [`Error::OutOfMemory`]. The batch is then
    /// unchanged. Whether the range is empty is checked when the batch is written.
    #[inline]
    pub fn delete_range(&mut self, start: impl AsRef<[u8]>, end: impl AsRef<[u8]>) -> Result<()> {
        let (start, end) = (start.as_ref(), end.as_ref());
        self.push(Op::DeleteRange { start, end })
    }

    /// Returns the error of the first entry that [`extend`](Extend::extend) could not add.
    /// [`Db::write`](crate::Db::write) returns the same error and writes nothing.
    ///
    /// ```
    /// use forerun_db::{Error, KEY_BYTES_MAX, WriteBatch};
    ///
    /// let long = "x".repeat(KEY_BYTES_MAX + 1);
    /// let batch = WriteBatch::from_iter([("paris", "48.85,2.35"), (&long, "")]);
    /// assert!(matches!(batch.check(), Err(Error::KeyTooLong { .. })));
    /// ```
    ///
    /// # Errors
    /// [`Error::KeyTooLong`], [`Error::ValueTooLong`], [`Error::BatchTooLong`]; for a
    /// [`KeyspaceBatch`](super::KeyspaceBatch), [`Error::ForeignKeyspace`].
    pub fn check(&self) -> Result<()> {
        match &self.extend_error {
            None => Ok(()),
            Some(ExtendError(error)) => Err(Error::clone(error)),
        }
    }

    /// Whether [`extend`](Extend::extend) could not add an entry.
    pub(super) fn has_extend_error(&self) -> bool {
        self.extend_error.is_some()
    }

    /// Remembers the first error from adding an operation.
    pub(super) fn note_extend_error(&mut self, added: Result<()>) {
        if let (Err(error), None) = (added, &self.extend_error) {
            self.extend_error = Some(ExtendError(Box::new(error)));
        }
    }

    /// Refuses a batch with keyspaces of another open store.
    pub(crate) fn check_store(&self, store: u64) -> Result<()> {
        if self.store == 0 || self.store == store {
            Ok(())
        } else {
            Err(Error::ForeignKeyspace {
                name: format!("number {}", self.last_keyspace),
            })
        }
    }

    /// Adds one operation.
    pub(crate) fn push(&mut self, op: Op<'_>) -> Result<()> {
        self.push_in(0, op)
    }

    /// Adds one operation of a keyspace.
    pub(crate) fn push_in(&mut self, keyspace: u32, op: Op<'_>) -> Result<()> {
        op.check_lengths()?;
        let needed = ops::encoded_len(self.last_keyspace, keyspace, &op);
        let len_bytes = self.encoded.len() + needed;
        if len_bytes > BATCH_BYTES_MAX {
            return Err(Error::BatchTooLong {
                len_bytes,
                limit_bytes: BATCH_BYTES_MAX,
            });
        }
        self.encoded
            .try_reserve(needed)
            .map_err(|error| Error::OutOfMemory {
                needed_bytes: len_bytes,
                reason: error.to_string(),
            })?;
        ops::encode(&mut self.encoded, self.last_keyspace, keyspace, &op);
        self.note_keyspace(keyspace);
        self.ranges += usize::from(matches!(op, Op::DeleteRange { .. }));
        self.ops += 1;
        Ok(())
    }

    /// Records that the next operation is one of this keyspace.
    fn note_keyspace(&mut self, keyspace: u32) {
        self.last_keyspace = keyspace;
        if keyspace == 0 && self.keyspaces.is_empty() {
            return;
        }
        if self.keyspaces.is_empty() && self.ops > 0 {
            self.keyspaces.push(0);
        }
        if let Err(at) = self.keyspaces.binary_search(&keyspace) {
            self.keyspaces.insert(at, keyspace);
        }
    }

    /// Removes all operations but keeps the memory.
    ///
    /// ```
    /// use forerun_db::WriteBatch;
    ///
    /// let mut batch = WriteBatch::new();
    /// batch.put("paris", "48.85,2.35")?;
    /// batch.clear(); // ready for the next batch
    /// assert!(batch.is_empty());
    /// # Ok::<(), forerun_db::Error>(())
    /// ```
    pub fn clear(&mut self) {
        self.encoded.clear();
        self.ops = 0;
        self.ranges = 0;
        self.last_keyspace = 0;
        self.keyspaces.clear();
        self.store = 0;
        self.extend_error = None;
    }

    /// The number of operations. Those that [`extend`](Extend::extend) could not add are not
    /// counted: see [`check`](Self::check).
    pub fn len(&self) -> usize {
        self.ops
    }

    /// Whether there is nothing to write: no operation, and no error of
    /// [`extend`](Extend::extend) that [`Db::write`](crate::Db::write) would return.
    pub fn is_empty(&self) -> bool {
        self.ops == 0 && self.extend_error.is_none()
    }

    /// The operations, in the order in which they were added.
    ///
    /// ```
    /// use forerun_db::WriteBatch;
    ///
    /// let mut batch = WriteBatch::new();
    /// batch.put("paris", "48.85,2.35")?;
    /// batch.delete("lutetia")?;
    /// let keys: Vec<_> = batch.ops().map(|op| op.key()).collect();
    /// assert_eq!(keys, [&b"paris"[..], b"lutetia"]);
    /// # Ok::<(), forerun_db::Error>(())
    /// ```
    pub fn ops(&self) -> Ops<'_> {
        Ops::trusted(&self.encoded, self.ops)
    }

    /// The encoded operations, as the log stores them.
    pub fn encoded(&self) -> &[u8] {
        &self.encoded
    }

    /// Decodes what [`encoded`](Self::encoded) returned.
    ///
    /// ```
    /// use forerun_db::WriteBatch;
    ///
    /// let mut batch = WriteBatch::new();
    /// batch.put("paris", "48.85,2.35")?;
    /// let copy = WriteBatch::from_encoded(batch.encoded(), batch.len())?;
    /// assert_eq!(copy.encoded(), batch.encoded());
    /// # Ok::<(), forerun_db::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::MalformedBatch`] if `encoded` is not exactly the encoding of a batch of `ops`
    /// operations.
    pub fn from_encoded(encoded: &[u8], ops: usize) -> Result<WriteBatch> {
        let mut batch = WriteBatch::new();
        let (checked, _) = Ops::checked(encoded, ops)?;
        for (keyspace, op) in checked.with_keyspaces() {
            batch.note_keyspace(keyspace);
            batch.ranges += usize::from(matches!(op, Op::DeleteRange { .. }));
            batch.ops += 1;
        }
        batch.encoded = encoded.to_vec();
        Ok(batch)
    }

    /// The keyspaces of the operations, ascending; empty if all are in the store's own.
    pub(crate) fn keyspaces(&self) -> &[u32] {
        &self.keyspaces
    }

    /// Whether an operation deletes a range.
    pub(crate) fn has_ranges(&self) -> bool {
        self.ranges > 0
    }

    /// Frees memory beyond `capacity_bytes` and keeps the operations.
    pub(crate) fn shrink_to(&mut self, capacity_bytes: usize) {
        self.encoded.shrink_to(capacity_bytes);
    }
}

/// Adds one operation per pair, which sets a key to a value.
///
/// `extend` cannot return an error. If an entry is too long, the batch remembers the error, and
/// `extend` adds no more entries. [`Db::write`](crate::Db::write) returns the error and writes
/// nothing: see [`WriteBatch::check`].
///
/// ```
/// use forerun_db::{Db, Durability, Options, WriteBatch};
/// use std::collections::BTreeMap;
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("store");
/// let db = Db::open(path, Options::default())?;
/// let towns = BTreeMap::from([("oslo", "59.91,10.75"), ("paris", "48.85,2.35")]);
/// let mut batch: WriteBatch = towns.iter().collect();
/// batch.extend([("rome", "41.89,12.48")]);
/// db.write(&batch, Durability::Buffered)?;
/// assert_eq!(db.iter().count(), 3);
/// # Ok::<(), forerun_db::Error>(())
/// ```
impl<K: AsRef<[u8]>, V: AsRef<[u8]>> Extend<(K, V)> for WriteBatch {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, entries: I) {
        for (key, value) in entries {
            if self.extend_error.is_some() {
                return;
            }
            let added = self.put(key, value);
            self.note_extend_error(added);
        }
    }
}

impl<K: AsRef<[u8]>, V: AsRef<[u8]>> FromIterator<(K, V)> for WriteBatch {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> WriteBatch {
        let mut batch = WriteBatch::new();
        batch.extend(entries);
        batch
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::fuzz;
    use crate::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

    #[test]
    fn a_key_over_the_limit_is_refused_and_leaves_the_batch_as_it_was() {
        let mut batch = WriteBatch::new();
        batch.put(&vec![0; KEY_BYTES_MAX], b"").unwrap();
        let before = batch.clone();
        let key = vec![0; KEY_BYTES_MAX + 1];
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
        let value = vec![0; VALUE_BYTES_MAX + 1];
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

    proptest! {
        #[test]
        fn added_records_are_read_back(ops in prop::collection::vec(
            (
                prop::sample::select(vec![0_u32, 0, 1, 3, 300]),
                prop::collection::vec(any::<u8>(), 0..300),
                prop::option::of(prop::collection::vec(any::<u8>(), 0..300)),
            ),
            0..20,
        )) {
            let mut batch = WriteBatch::new();
            let (mut len, mut before) = (0, 0);
            for (keyspace, key, value) in &ops {
                let op = match value {
                    Some(value) => Op::Put { key, value },
                    None => Op::Delete { key },
                };
                batch.push_in(*keyspace, op).unwrap();
                len += ops::encoded_len(before, *keyspace, &op);
                before = *keyspace;
                prop_assert_eq!(batch.encoded().len(), len);
            }
            let again = WriteBatch::from_encoded(batch.encoded(), ops.len()).unwrap();
            prop_assert_eq!(&again, &batch);
            prop_assert_eq!(again.ops().len(), ops.len());
            let keyspaces: std::collections::BTreeSet<u32> = ops.iter()
                .map(|(keyspace, ..)| *keyspace).collect();
            match keyspaces.iter().max() {
                None | Some(0) => prop_assert!(batch.keyspaces().is_empty()),
                Some(_) => prop_assert!(keyspaces.iter().eq(batch.keyspaces())),
            }
            for ((in_keyspace, op), (keyspace, key, value)) in again.ops().with_keyspaces()
                .zip(&ops) {
                prop_assert_eq!(in_keyspace, *keyspace);
                match (op, value) {
                    (Op::Put { key: k, value: v }, Some(value)) =>
                        prop_assert!(k == key && v == value),
                    (Op::Delete { key: k }, None) => prop_assert!(k == key),
                    _ => prop_assert!(false, "wrong kind"),
                }
            }
        }

        #[test]
        fn arbitrary_bytes_decode_to_themselves_or_not_at_all(
            bytes in prop::collection::vec(0u8..6, 0..24), ops in 0usize..6,
        ) {
            prop_assert!([0, ops].contains(&fuzz::write_batch(&bytes, ops)));
        }
    }
}
