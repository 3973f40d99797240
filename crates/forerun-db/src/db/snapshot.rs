//! The store as it was at one moment.

use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use forerun_core::ProcessBound;

use super::Open;
use super::iter::Iter;
use super::snapshots::Seen;
use super::view::View;
use crate::memtable::Strategy;
use crate::{Error, Keyspace, Result, Values};

/// The store as it was when [`Db::snapshot`](crate::Db::snapshot) was called, whatever is written
/// since. As long as it lives, what it sees is kept, on disk too.
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
    seen: Seen,
}

impl Snapshot {
    pub(super) fn new(open: Arc<ProcessBound<Open>>) -> Snapshot {
        let seen = match open.get() {
            Ok(Open { inner, .. }) => inner.snapshots.add(|| inner.now()),
            // Every read will say why.
            Err(_) => Seen::default(),
        };
        Snapshot { open, seen }
    }

    /// Refuses every process but the one that opened the store, as all methods do that can fail.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn check_process(&self) -> Result<()> {
        self.open.get()?;
        Ok(())
    }

    /// Sequence number of the last operation it sees.
    pub fn sequence(&self) -> u64 {
        self.seen.sequence
    }

    /// As [`Db::get`](crate::Db::get), at this moment.
    ///
    /// # Errors
    /// As there.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.view()?.get(key)
    }

    /// As [`Db::multi_get`](crate::Db::multi_get), at this moment.
    ///
    /// # Errors
    /// As there.
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K], values: &mut Values) -> Result<()> {
        self.multi_get_with(keys, Strategy::Auto, values)
    }

    /// As [`Db::multi_get_with`](crate::Db::multi_get_with), at this moment.
    ///
    /// # Errors
    /// As there.
    pub fn multi_get_with<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        strategy: Strategy,
        values: &mut Values,
    ) -> Result<()> {
        self.view()?.multi_get(keys, strategy, values)
    }

    /// As [`Db::iter`](crate::Db::iter), at this moment.
    pub fn iter(&self) -> Iter {
        self.begin(|view| view.iter(Bound::Unbounded, Bound::Unbounded))
    }

    /// As [`Db::range`](crate::Db::range), at this moment.
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Iter {
        self.begin(|view| view.range(range))
    }

    /// As [`Db::prefix`](crate::Db::prefix), at this moment.
    pub fn prefix(&self, prefix: &[u8]) -> Iter {
        self.begin(|view| view.prefix(prefix))
    }

    fn view(&self) -> Result<View<'_>> {
        let inner = &self.open.get()?.inner;
        Ok(View::as_of(inner, &inner.own, &self.seen))
    }

    fn begin(&self, begin: impl FnOnce(View<'_>) -> Iter) -> Iter {
        self.view().map_or_else(Iter::failed, begin)
    }

    /// What it sees of a keyspace of the store. Keyspaces are seen as of the same moment: of a batch all or nothing.
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
    /// A keyspace that is dropped takes with it what snapshots see of it.
    pub fn keyspace<'a>(&'a self, keyspace: &'a Keyspace) -> KeyspaceSnapshot<'a> {
        KeyspaceSnapshot {
            snapshot: self,
            keyspace,
        }
    }
}

/// What a snapshot sees of a keyspace. See [`Snapshot::keyspace`].
#[derive(Clone, Copy, Debug)]
pub struct KeyspaceSnapshot<'a> {
    snapshot: &'a Snapshot,
    keyspace: &'a Keyspace,
}

impl KeyspaceSnapshot<'_> {
    /// As [`Keyspace::get`], at this moment.
    ///
    /// # Errors
    /// As there, and [`Error::ForeignKeyspace`] if the snapshot is of another store.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.view()?.get(key)
    }

    /// As [`Keyspace::multi_get`], at this moment.
    ///
    /// # Errors
    /// As [`get`](Self::get); what concerns one key is at its place in `values`.
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K], values: &mut Values) -> Result<()> {
        self.multi_get_with(keys, Strategy::Auto, values)
    }

    /// As [`Keyspace::multi_get_with`], at this moment.
    ///
    /// # Errors
    /// As [`multi_get`](Self::multi_get).
    pub fn multi_get_with<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        strategy: Strategy,
        values: &mut Values,
    ) -> Result<()> {
        self.view()?.multi_get(keys, strategy, values)
    }

    /// As [`Keyspace::iter`], at this moment. With a keyspace of another store, the iterator gives
    /// [`Error::ForeignKeyspace`] and ends.
    pub fn iter(&self) -> Iter {
        self.begin(|view| view.iter(Bound::Unbounded, Bound::Unbounded))
    }

    /// As [`Keyspace::range`], at this moment.
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Iter {
        self.begin(|view| view.range(range))
    }

    /// As [`Keyspace::prefix`], at this moment.
    pub fn prefix(&self, prefix: &[u8]) -> Iter {
        self.begin(|view| view.prefix(prefix))
    }

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
        let Snapshot { open, seen } = self.snapshot;
        Ok(View::as_of(&open.get()?.inner, self.keyspace.data(), seen))
    }

    fn check_store(&self) -> Result<()> {
        match self.keyspace.store() == self.snapshot.open.get()?.inner.number {
            true => Ok(()),
            false => Err(Error::ForeignKeyspace {
                name: self.keyspace.name().to_owned(),
            }),
        }
    }
}

impl Clone for Snapshot {
    fn clone(&self) -> Snapshot {
        if let Ok(open) = self.open.get() {
            open.inner.snapshots.add_again(&self.seen);
        }
        Snapshot {
            open: Arc::clone(&self.open),
            seen: self.seen.clone(),
        }
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        if let Ok(open) = self.open.get() {
            open.inner.snapshots.remove(&self.seen);
        }
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot")
            .field("sequence", &self.seen.sequence)
            .finish_non_exhaustive()
    }
}
