//! Named values in a table's store, beside its rows: keyspace `forerun.metadata`, name to bytes.
//! A checkpoint and a backup have them, too.

use crate::disk_tier::Store;
use crate::inner::Inner;
use crate::{Error, Result, Table};
use forerun_db::Durability;

const KEYSPACE: &str = "forerun.metadata";

impl Inner {
    fn store_of_metadata(&self) -> Result<&Store> {
        self.store.as_ref().ok_or(Error::NoStore { op: "metadata" })
    }
}

impl Table {
    /// The value that [`put_metadata`](Table::put_metadata) has stored under a name.
    ///
    /// # Errors
    /// [`Error::NoStore`], [`Error::Closed`]; those of the store.
    pub fn metadata(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let inner = self.inner()?;
        inner.check_open()?;
        match inner.store_of_metadata()?.db().find_keyspace(KEYSPACE) {
            Some(keyspace) => Ok(keyspace.get(name)?),
            None => Ok(None),
        }
    }

    /// Stores a value under a name, in the store and outside the rows. It is durable when this
    /// returns. A checkpoint or a backup of the table includes it.
    ///
    /// ```
    /// use forerun_table::{Dtype, Table};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("rows");
    /// let table = Table::builder(Dtype::F32, 4).path(path).open()?;
    /// table.put_metadata("model", b"resnet")?;
    /// assert_eq!(table.metadata("model")?.as_deref(), Some(&b"resnet"[..]));
    /// assert_eq!(table.count()?, 0);
    /// # Ok::<(), forerun_table::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoStore`], [`Error::Closed`]; those of the store, for example if it is read-only.
    pub fn put_metadata(&self, name: &str, value: &[u8]) -> Result<()> {
        let inner = self.inner()?;
        inner.check_takes_writes()?;
        let keyspace = inner.store_of_metadata()?.db().keyspace(KEYSPACE)?;
        Ok(keyspace.put_with(name, value, Durability::Synced)?)
    }
}
