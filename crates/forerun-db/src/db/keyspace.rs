//! Keyspaces as users see them: handles, and how keyspaces are created and dropped.

use std::sync::Arc;
use std::time::Duration;

use forerun_core::ProcessBound;

use super::ingest::Ingestion;
use super::iter::Iter;
use super::keyspace_data::KeyspaceData;
use super::stats::KeyspaceStats;
use super::view::View;
use super::{Inner, Open};
use crate::clock::Expiry;
use crate::keyspace_options::check_keyspace_name;
use crate::{Db, Durability, Error, KeyspaceOptions, Op, Result, WriteBatch, panics};

/// A set of keys with its own order. A store can have several. (RocksDB calls this a column
/// family.)
///
/// All keyspaces of a store share one log, so a batch can span them and one snapshot sees them all.
/// They also share the memory for entries and for pages. Each keyspace has its own runs, its own
/// order, and optionally its own time to live.
///
/// This is a handle: clones are cheap, and any number of threads may use it at once. The store is
/// closed when the last handle of any kind is dropped. Keep the handle instead of calling
/// [`Db::keyspace`] for each read.
///
/// ```
/// use forerun_db::{Db, KeyspaceOptions, Options, ReverseBytewise};
/// use std::sync::Arc;
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("store");
/// let db = Db::open(path, Options::default())?;
/// let users = db.keyspace("users")?;
/// let newest_first = KeyspaceOptions::default().comparator(Arc::new(ReverseBytewise));
/// let events = db.keyspace_with("events", newest_first)?;
/// users.put(b"4711", b"Ada")?;
/// events.put(b"2026-01-01", b"hello")?;
/// events.put(b"2026-01-02", b"goodbye")?;
/// assert_eq!(events.iter().next().unwrap()?.0, b"2026-01-02");
/// assert_eq!(users.get(b"2026-01-01")?, None);
/// assert_eq!(db.keyspaces(), ["users", "events"]);
///
/// db.drop_keyspace("events")?;
/// assert!(events.get(b"2026-01-01").is_err());
/// # Ok::<(), forerun_db::Error>(())
/// ```
#[derive(Clone)]
pub struct Keyspace {
    open: Arc<ProcessBound<Open>>,
    data: Arc<KeyspaceData>,
}

impl Db {
    /// Returns the keyspace with this name and creates it if needed. A new keyspace gets the
    /// options listed for its name in [`Options::keyspaces`], or the defaults described there.
    ///
    /// [`Options::keyspaces`]: crate::Options::keyspaces
    ///
    /// ```
    /// use forerun_db::{Db, Options};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("store");
    /// let db = Db::open(path, Options::default())?;
    /// db.keyspace("users")?.put("4711", "Ada")?;
    /// assert_eq!(db.keyspace("users")?.get("4711")?.as_deref(), Some(&b"Ada"[..]));
    /// assert_eq!(db.get("4711")?, None); // another keyspace
    /// # Ok::<(), forerun_db::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::KeyspaceName`]; [`Error::TooManyKeyspaces`]; [`Error::Io`] or [`Error::Closed`] if
    /// it could not be created; [`Error::Panicked`] if its comparator panicked.
    pub fn keyspace(&self, name: &str) -> Result<Keyspace> {
        self.find_keyspace(name).map_or_else(
            || {
                let options = self.inner()?.options.of_keyspace(name);
                self.keyspace_with(name, options)
            },
            Ok,
        )
    }

    /// Returns the keyspace with this name and creates it if needed. The options apply until the
    /// store is closed.
    ///
    /// ```
    /// use forerun_db::{Db, KeyspaceOptions, Options};
    /// use std::time::Duration;
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("store");
    /// let db = Db::open(path, Options::default())?;
    /// let hour = Duration::from_secs(3600);
    /// let sessions = db.keyspace_with("sessions", KeyspaceOptions::default().ttl(hour))?;
    /// assert_eq!(sessions.ttl(), Some(hour));
    /// # Ok::<(), forerun_db::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`keyspace`](Self::keyspace), and [`Error::KeyspaceComparator`] if it exists
    /// and is ordered by another comparator, [`Error::KeyspaceTtl`] if its entries have another
    /// time to live; [`Error::BadOption`].
    pub fn keyspace_with(&self, name: &str, options: KeyspaceOptions) -> Result<Keyspace> {
        let keyspace = self.inner()?.open_keyspace(name, options)?;
        Ok(self.handle(keyspace))
    }

    /// Returns the keyspace with this name, if there is one. Takes no lock. Returns `None` in a
    /// fork.
    pub fn find_keyspace(&self, name: &str) -> Option<Keyspace> {
        let keyspaces = self.inner().ok()?.keyspaces.load();
        let keyspace = keyspaces
            .by_name(name)
            .filter(|keyspace| keyspace.id() > 0)?;
        Some(self.handle(Arc::clone(keyspace)))
    }

    /// Returns the default keyspace, which the methods of [`Db`] read and write.
    pub fn default_keyspace(&self) -> Keyspace {
        self.handle(Arc::clone(
            self.open.constant(|open| &open.inner.keyspaces.own),
        ))
    }

    /// Returns the names of all keyspaces except the default one, in the order of their creation.
    /// Empty in a fork.
    ///
    /// ```
    /// use forerun_db::{Db, Options};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("store");
    /// let db = Db::open(path, Options::default())?;
    /// db.keyspace("users")?.put("4711", "Ada")?;
    /// db.keyspace("sessions")?;
    /// assert_eq!(db.keyspaces(), ["users", "sessions"]);
    ///
    /// assert!(db.find_keyspace("user").is_none()); // unlike `keyspace`, it creates none
    /// db.drop_keyspace("sessions")?;
    /// assert_eq!(db.keyspaces(), ["users"]);
    /// # Ok::<(), forerun_db::Error>(())
    /// ```
    pub fn keyspaces(&self) -> Vec<String> {
        let Ok(inner) = self.inner() else {
            return Vec::new();
        };
        let keyspaces = inner.keyspaces.load();
        let names = keyspaces
            .iter()
            .skip(1)
            .map(|keyspace| keyspace.name().to_owned());
        names.collect()
    }

    /// Removes a keyspace and all its entries, durably. Its handles can no longer be used.
    /// Iterators that already exist continue, and the space on disk is freed when the last of them
    /// is dropped. The name can be used for a new keyspace at once.
    ///
    /// ```
    /// use forerun_db::{Db, Error, Options};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("store");
    /// let db = Db::open(path, Options::default())?;
    /// let users = db.keyspace("users")?;
    /// users.put("4711", "Ada")?;
    /// db.drop_keyspace("users")?;
    /// assert!(matches!(users.get("4711"), Err(Error::KeyspaceDropped { .. })));
    /// # Ok::<(), forerun_db::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnknownKeyspace`]; [`Error::Closed`]. [`Error::Io`]: the next opening may or may
    /// not find the keyspace. Until then it takes no writes, and it can be dropped again.
    pub fn drop_keyspace(&self, name: &str) -> Result<()> {
        self.inner()?.drop_keyspace(name)
    }

    fn handle(&self, data: Arc<KeyspaceData>) -> Keyspace {
        Keyspace {
            open: Arc::clone(&self.open),
            data,
        }
    }
}

impl Keyspace {
    /// Returns the name. The name of the store's own keyspace is empty.
    pub fn name(&self) -> &str {
        self.data.name()
    }

    /// Returns the number. No two keyspaces of a store ever have the same one; the store's own
    /// keyspace has 0.
    pub fn id(&self) -> u32 {
        self.data.id()
    }

    /// Returns how long entries live; `None` if they never expire.
    pub fn ttl(&self) -> Option<Duration> {
        let expiry = self.data.expiry.as_ref();
        expiry.map(|expiry| Duration::from_secs(expiry.ttl()))
    }

    /// Returns the name of the comparator that orders the keys.
    pub fn comparator_name(&self) -> &str {
        self.data.comparator_name()
    }

    /// Sets `key` to `value`. See [`Db::put`].
    ///
    /// # Errors
    /// The errors of [`Db::put`], and [`Error::KeyspaceDropped`].
    #[inline]
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        let (key, value) = (key.as_ref(), value.as_ref());
        self.write_one(Op::Put { key, value }, None)
    }

    /// [`put`](Self::put) with the given durability.
    ///
    /// # Errors
    /// The same as for [`put`](Self::put).
    #[inline]
    pub fn put_with(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        durability: Durability,
    ) -> Result<()> {
        let (key, value) = (key.as_ref(), value.as_ref());
        self.write_one(Op::Put { key, value }, Some(durability))
    }

    /// Removes `key`. See [`Db::delete`].
    ///
    /// # Errors
    /// The same as for [`put`](Self::put).
    #[inline]
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<()> {
        let key = key.as_ref();
        self.write_one(Op::Delete { key }, None)
    }

    /// [`delete`](Self::delete) with the given durability.
    ///
    /// # Errors
    /// The same as for [`put`](Self::put).
    #[inline]
    pub fn delete_with(&self, key: impl AsRef<[u8]>, durability: Durability) -> Result<()> {
        let key = key.as_ref();
        self.write_one(Op::Delete { key }, Some(durability))
    }

    /// Removes all keys from `start` (included) to `end` (excluded). See [`Db::delete_range`].
    ///
    /// # Errors
    /// The errors of [`put`](Self::put), and [`Error::EmptyRange`].
    pub fn delete_range(&self, start: impl AsRef<[u8]>, end: impl AsRef<[u8]>) -> Result<()> {
        let mut batch = WriteBatch::new();
        batch.keyspace(self).delete_range(start, end)?;
        let inner = self.inner()?;
        let written = inner.write_to(&self.data, &batch, inner.options.durability);
        written.map(drop)
    }

    /// Starts a bulk load of entries in ascending key order. See [`Db::ingest`].
    pub fn ingest(&self) -> Ingestion {
        Ingestion::new(Arc::clone(&self.open), Arc::clone(&self.data))
    }

    /// Flushes the memtables of all keyspaces, since they share a log. See [`Db::flush`].
    ///
    /// # Errors
    /// The same as for [`Db::flush`].
    pub fn flush(&self) -> Result<()> {
        self.inner()?.flush_all()
    }

    /// Flushes, then merges all runs of this keyspace into its last level. See [`Db::compact`].
    ///
    /// # Errors
    /// The same as for [`Db::compact`].
    pub fn compact(&self) -> Result<()> {
        let keyspace = std::slice::from_ref(&self.data);
        self.inner()?.compact_all(keyspace)
    }

    /// Returns statistics of the keyspace. In a fork, all metrics are zero.
    ///
    /// ```
    /// use forerun_db::{Db, Options};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("store");
    /// let db = Db::open(path, Options::default())?;
    /// let users = db.keyspace("users")?;
    /// users.put("4711", "Ada")?;
    /// assert_eq!(users.stats().memtable_entries, 1);
    /// users.flush()?;
    /// let stats = users.stats();
    /// assert_eq!((stats.memtable_entries, stats.levels[0].runs), (0, 1));
    /// # Ok::<(), forerun_db::Error>(())
    /// ```
    pub fn stats(&self) -> KeyspaceStats {
        let inner = self.inner();
        inner
            .map(|_| KeyspaceStats::of(&self.data))
            .unwrap_or_default()
    }

    /// The number of the open store that it belongs to.
    pub(crate) fn store(&self) -> u64 {
        self.data.store()
    }

    pub(super) fn data(&self) -> &Arc<KeyspaceData> {
        &self.data
    }

    fn write_one(&self, op: Op<'_>, durability: Option<Durability>) -> Result<()> {
        self.inner()?.write_one(&self.data, op, durability)
    }

    fn inner(&self) -> Result<&Arc<Inner>> {
        Ok(&self.open.get()?.inner)
    }

    /// A view of the keyspace, unless it was dropped.
    fn view(&self) -> Result<View<'_>> {
        self.unchecked_view()?.checked()
    }

    fn unchecked_view(&self) -> Result<View<'_>> {
        Ok(View::now(self.inner()?, &self.data))
    }

    fn begin(&self, begin: impl FnOnce(View<'_>) -> Iter) -> Iter {
        self.unchecked_view().map_or_else(Iter::failed, begin)
    }
}

super::readable::readable!(
    Keyspace,
    "Reads the keyspace as it is now.",
    "[`Error::KeyspaceDropped`](crate::Error::KeyspaceDropped) if the keyspace was dropped."
);

impl std::fmt::Debug for Keyspace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keyspace")
            .field("id", &self.id())
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}

impl Inner {
    fn open_keyspace(&self, name: &str, options: KeyspaceOptions) -> Result<Arc<KeyspaceData>> {
        check_keyspace_name(name)?;
        options.check()?;
        panics::catch("opening a keyspace", || {
            self.open_checked_keyspace(name, options)
        })
    }

    fn open_checked_keyspace(
        &self,
        name: &str,
        options: KeyspaceOptions,
    ) -> Result<Arc<KeyspaceData>> {
        // Closing the store waits for this guard.
        let _guard = self.directory.enter()?;
        // One caller at a time: the second finds the keyspace that the first has created.
        let mut catalog = self.tree.catalog();
        let keyspaces = self.keyspaces.load();
        // Copied, so that nothing calls the comparator once the keyspace is in the manifest. A
        // panic then would leave a keyspace that this process does not know.
        let given = options.comparator.name().to_owned();
        if let Some(keyspace) = keyspaces.by_name(name) {
            if keyspace.comparator_name() != given {
                return Err(Error::KeyspaceComparator {
                    keyspace: name.to_owned(),
                    stored: keyspace.comparator_name().to_owned(),
                    given: Some(given),
                });
            }
            let ttl = keyspace.expiry.as_ref().map_or(0, Expiry::ttl);
            keyspace.set_options(options.with_stored_ttl(name, ttl)?);
            drop(catalog);
            // The new options may change the limits of level 0, and which compactions are due.
            self.note_pressure();
            self.work.notify();
            return Ok(Arc::clone(keyspace));
        }
        let keyspace = self.keyspaces.create(&mut catalog, name, &given, options)?;
        // First, so that every write to it is dated.
        if let Some(expiry) = &keyspace.expiry {
            self.write_path.expect_ttl(expiry.ttl());
        }
        self.keyspaces.add(&mut catalog, &keyspace);
        Ok(keyspace)
    }

    fn drop_keyspace(&self, name: &str) -> Result<()> {
        let keyspace = self.keyspaces.load().by_name(name).cloned();
        let Some(keyspace) = keyspace.filter(|keyspace| keyspace.id() > 0) else {
            return Err(Error::UnknownKeyspace {
                name: name.to_owned(),
            });
        };
        // While the lock is held no write is in progress, and every later one sees the mark. So
        // everything logged for the keyspace was logged before the keyspace is gone.
        let active = self.memtables.write_active();
        keyspace.refuse_writes();
        drop(active);
        let _guard = self.directory.enter()?;
        let mut catalog = self.tree.catalog();
        if self.keyspaces.load().by_id(keyspace.id()).is_none() {
            // Another call has dropped it first.
            return Err(Error::UnknownKeyspace {
                name: name.to_owned(),
            });
        }
        self.keyspaces.remove(&mut catalog, &keyspace)?;
        drop(catalog);
        self.note_pressure();
        self.work.notify();
        Ok(())
    }
}
