//! Snapshots: the store as it was at one moment.

use std::sync::Arc;

use forerun_core::ProcessBound;

use super::Open;
use super::iter::Iter;
use super::snapshots::{SnapshotPoint, ViewId};
use super::view::View;
use crate::{Error, Keyspace, Result};

/// The store as it was when [`Db::snapshot`](crate::Db::snapshot) was called, whatever is written
/// later. While it lives, the store keeps everything that it sees, including files on disk.
///
/// ```
/// use forerun_db::{Db, Options};
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("store");
/// let db = Db::open(path, Options::default())?;
/// db.put(b"key", b"old")?;
/// let before = db.snapshot();
/// db.put(b"key", b"new")?;
/// assert_eq!(before.get(b"key")?.as_deref(), Some(&b"old"[..]));
/// # Ok::<(), forerun_db::Error>(())
/// ```
pub struct Snapshot {
    open: Arc<ProcessBound<Open>>,
    point: SnapshotPoint,
}

impl Snapshot {
    pub(super) fn new(open: Arc<ProcessBound<Open>>) -> Snapshot {
        let point = match open.get() {
            Ok(Open { inner, .. }) => inner.snapshots.add(|| {
                inner
                    .write_path
                    .snapshot_point(inner.keyspaces.load().iter())
            }),
            // Every read will return the error.
            Err(_) => SnapshotPoint::default(),
        };
        Snapshot { open, point }
    }

    /// Returns an error in any process but the one that opened the store. Every method that can
    /// fail makes the same check.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn check_process(&self) -> Result<()> {
        self.open.get()?;
        Ok(())
    }

    /// Returns the sequence number of the last operation that it sees.
    ///
    /// ```
    /// use forerun_db::{Db, Options};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("store");
    /// let db = Db::open(path, Options::default())?;
    /// db.put("paris", "48.85,2.35")?;
    /// db.put("oslo", "59.91,10.75")?;
    /// assert_eq!(db.snapshot().sequence(), 2); // two operations so far
    /// # Ok::<(), forerun_db::Error>(())
    /// ```
    pub fn sequence(&self) -> u64 {
        self.point.sequence
    }

    /// Identifies what it sees. If two snapshots of a store have the same identifier, they see the
    /// same entries in every keyspace: nothing was written between them, and nothing expired. So
    /// what was computed from one is valid for the other.
    ///
    /// ```
    /// use forerun_db::{Db, Options};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("store");
    /// let db = Db::open(path, Options::default())?;
    /// db.put(b"key", b"value")?;
    /// let first = db.snapshot().view_id();
    /// assert_eq!(first, db.snapshot().view_id());
    /// db.delete(b"key")?;
    /// assert_ne!(first, db.snapshot().view_id());
    /// # Ok::<(), forerun_db::Error>(())
    /// ```
    pub fn view_id(&self) -> ViewId {
        self.point.id()
    }

    fn view(&self) -> Result<View<'_>> {
        let inner = &self.open.get()?.inner;
        Ok(View::as_of(inner, &inner.keyspaces.own, &self.point))
    }

    fn begin(&self, begin: impl FnOnce(View<'_>) -> Iter) -> Iter {
        self.view().map_or_else(Iter::failed, begin)
    }

    /// Returns the same snapshot for a keyspace of the store. One snapshot sees all keyspaces at
    /// the same moment, so it sees all of a batch or none of it.
    ///
    /// ```
    /// use forerun_db::{Db, Options};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("store");
    /// let db = Db::open(path, Options::default())?;
    /// let users = db.keyspace("users")?;
    /// users.put(b"4711", b"Ada")?;
    /// let before = db.snapshot();
    /// users.delete(b"4711")?;
    /// assert_eq!(before.keyspace(&users).get(b"4711")?.as_deref(), Some(&b"Ada"[..]));
    /// # Ok::<(), forerun_db::Error>(())
    /// ```
    ///
    /// When a keyspace is dropped, snapshots can no longer read it.
    pub fn keyspace<'a>(&'a self, keyspace: &'a Keyspace) -> KeyspaceSnapshot<'a> {
        KeyspaceSnapshot {
            snapshot: self,
            keyspace,
        }
    }
}

/// A keyspace as a snapshot sees it. See [`Snapshot::keyspace`].
#[derive(Clone, Copy, Debug)]
pub struct KeyspaceSnapshot<'a> {
    snapshot: &'a Snapshot,
    keyspace: &'a Keyspace,
}

impl KeyspaceSnapshot<'_> {
    fn view(&self) -> Result<View<'_>> {
        self.unchecked_view()?.checked().and_then(|view| {
            self.check_store()?;
            Ok(view)
        })
    }

    fn begin(&self, begin: impl FnOnce(View<'_>) -> Iter) -> Iter {
        let iter = self.unchecked_view().map_or_else(Iter::failed, begin);
        match self.check_store() {
            Ok(()) => iter,
            Err(error) => iter.failing(error),
        }
    }

    fn unchecked_view(&self) -> Result<View<'_>> {
        let Snapshot { open, point } = self.snapshot;
        Ok(View::as_of(&open.get()?.inner, self.keyspace.data(), point))
    }

    fn check_store(&self) -> Result<()> {
        if self.keyspace.store() == self.snapshot.open.get()?.inner.keyspaces.store {
            Ok(())
        } else {
            Err(Error::ForeignKeyspace {
                name: self.keyspace.name().to_owned(),
            })
        }
    }
}

super::readable::readable!(
    Snapshot,
    "Reads the store's own keyspace as it was when the snapshot was taken.",
    ""
);

super::readable::readable!(
    KeyspaceSnapshot<'_>,
    "Reads the keyspace as it was when the snapshot was taken.",
    "[`Error::KeyspaceDropped`](crate::Error::KeyspaceDropped) if the keyspace was dropped; \
     [`Error::ForeignKeyspace`](crate::Error::ForeignKeyspace) if it belongs to another store."
);

impl Clone for Snapshot {
    fn clone(&self) -> Snapshot {
        if let Ok(open) = self.open.get() {
            open.inner.snapshots.add_again(&self.point);
        }
        Snapshot {
            open: Arc::clone(&self.open),
            point: self.point.clone(),
        }
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        if let Ok(open) = self.open.get() {
            open.inner.snapshots.remove(&self.point);
        }
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot")
            .field("sequence", &self.point.sequence)
            .finish_non_exhaustive()
    }
}
