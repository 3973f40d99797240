//! The part of a batch that belongs to one keyspace.

use super::Keyspace;
use super::batch::WriteBatch;
use crate::ops::Op;
use crate::{Error, Result};

impl WriteBatch {
    /// Returns a wrapper that adds operations of a keyspace to this batch.
    ///
    /// ```
    /// use forerun_db::{Db, Durability, Options, WriteBatch};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("store");
    /// let db = Db::open(path, Options::default())?;
    /// let (users, by_name) = (db.keyspace("users")?, db.keyspace("users by name")?);
    /// let mut batch = WriteBatch::new();
    /// batch.keyspace(&users).put(b"4711", b"Ada")?;
    /// batch.keyspace(&by_name).put(b"Ada", b"4711")?;
    /// batch.put(b"last user", b"4711")?;
    /// // All three, or none.
    /// db.write(&batch, Durability::Synced)?;
    /// assert_eq!(by_name.get(b"Ada")?.as_deref(), Some(&b"4711"[..]));
    /// # Ok::<(), forerun_db::Error>(())
    /// ```
    pub fn keyspace<'b>(&'b mut self, keyspace: &'b Keyspace) -> KeyspaceBatch<'b> {
        KeyspaceBatch {
            batch: self,
            keyspace,
        }
    }
}

/// A batch for adding operations of one keyspace. See [`WriteBatch::keyspace`].
#[derive(Debug)]
pub struct KeyspaceBatch<'b> {
    batch: &'b mut WriteBatch,
    keyspace: &'b Keyspace,
}

impl KeyspaceBatch<'_> {
    /// Adds an operation that sets `key` to `value`. See [`WriteBatch::put`].
    ///
    /// # Errors
    /// The errors of [`WriteBatch::put`], and [`Error::ForeignKeyspace`] if the batch has
    /// operations for keyspaces of another store.
    #[inline]
    pub fn put(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        let (key, value) = (key.as_ref(), value.as_ref());
        self.push(Op::Put { key, value })
    }

    /// Adds an operation that removes `key`. See [`WriteBatch::delete`].
    ///
    /// # Errors
    /// The same as for [`put`](Self::put).
    #[inline]
    pub fn delete(&mut self, key: impl AsRef<[u8]>) -> Result<()> {
        let key = key.as_ref();
        self.push(Op::Delete { key })
    }

    /// Adds an operation that removes all keys from `start` (included) to `end` (excluded), in the
    /// keyspace's order. See [`WriteBatch::delete_range`].
    ///
    /// # Errors
    /// The same as for [`put`](Self::put).
    #[inline]
    pub fn delete_range(&mut self, start: impl AsRef<[u8]>, end: impl AsRef<[u8]>) -> Result<()> {
        let (start, end) = (start.as_ref(), end.as_ref());
        self.push(Op::DeleteRange { start, end })
    }

    fn push(&mut self, op: Op<'_>) -> Result<()> {
        let store = self.keyspace.store();
        if self.batch.check_store(store).is_err() {
            return Err(Error::ForeignKeyspace {
                name: self.keyspace.name().to_owned(),
            });
        }
        self.batch.push_in(self.keyspace.id(), op)?;
        self.batch.store = store;
        Ok(())
    }
}

impl<K: AsRef<[u8]>, V: AsRef<[u8]>> Extend<(K, V)> for KeyspaceBatch<'_> {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, entries: I) {
        for (key, value) in entries {
            if self.batch.has_extend_error() {
                return;
            }
            let added = self.put(key, value);
            self.batch.note_extend_error(added);
        }
    }
}
