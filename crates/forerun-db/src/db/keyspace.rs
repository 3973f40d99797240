//! Keyspaces, for their users: handles, and how they come and go.

use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use forerun_core::ProcessBound;
use forerun_core::sync::PoisonError;

use super::ingest::Ingestion;
use super::iter::Iter;
use super::keyspace_data::KeyspaceData;
use super::stats::KeyspaceStats;
use super::view::View;
use super::{Inner, Open};
use crate::clock::Expiry;
use crate::memtable::Strategy;
use crate::options::check_keyspace_name;
use crate::{Db, Durability, Error, KeyspaceOptions, Op, Result, Values, WriteBatch};

/// Keys of their own in an order of their own, in a store with others.
///
/// All keyspaces of a store are written to one log, so that a batch may go across them, and are seen by one snapshot.
/// Memory for entries and for pages is shared. Each has runs of its own, an order, and perhaps a time to live.
///
/// A handle: clones are cheap, and may be used from many threads at once. The store is closed with the last handle of
/// any kind. Keep a handle rather than ask [`Db::keyspace`] for each read.
///
/// ```
/// use forerun_db::{Db, KeyspaceOptions, Options, ReverseBytewise};
/// use std::sync::Arc;
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("store");
/// let db = Db::open(path, Options::default())?;
/// let users = db.keyspace("users")?;
/// let newest_first = KeyspaceOptions { comparator: Arc::new(ReverseBytewise), ..KeyspaceOptions::default() };
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
    /// The keyspace of a name. It is created if there is none, with the options that [`Options::keyspaces`] lists for the
    /// name, or the ones that it says there.
    ///
    /// [`Options::keyspaces`]: crate::Options::keyspaces
    ///
    /// # Errors
    /// [`Error::KeyspaceName`]; [`Error::TooManyKeyspaces`]; [`Error::Io`], [`Error::Closed`]: it could not be created.
    pub fn keyspace(&self, name: &str) -> Result<Keyspace> {
        self.find_keyspace(name).map_or_else(
            || {
                let options = self.inner()?.options.of_keyspace(name);
                self.keyspace_with(name, options)
            },
            Ok,
        )
    }

    /// The keyspace of a name, created if there is none. It has these options from now on, until the store is closed.
    ///
    /// # Errors
    /// As [`keyspace`](Self::keyspace), and [`Error::KeyspaceComparator`] if it is there and ordered by another
    /// comparator, [`Error::KeyspaceTtl`] if its entries have another time to live; [`Error::BadOption`].
    pub fn keyspace_with(&self, name: &str, options: KeyspaceOptions) -> Result<Keyspace> {
        let keyspace = self.inner()?.open_keyspace(name, options)?;
        Ok(self.handle(keyspace))
    }

    /// The keyspace of a name, if there is one. It takes no lock. In a fork there is none.
    pub fn find_keyspace(&self, name: &str) -> Option<Keyspace> {
        let keyspaces = self.inner().ok()?.keyspaces.load();
        let keyspace = keyspaces
            .by_name(name)
            .filter(|keyspace| keyspace.id() > 0)?;
        Some(self.handle(Arc::clone(keyspace)))
    }

    /// The store's own keyspace, which all methods of the store itself read and write.
    pub fn own_keyspace(&self) -> Keyspace {
        self.handle(Arc::clone(self.open.constant(|open| &open.inner.own)))
    }

    /// Names of the keyspaces beside the store's own, in the order of their creation. None in a fork.
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

    /// Removes a keyspace with all that is in it, durably. Its handles are of no use from then on; iterators that were
    /// begun before go on, and the space on disk is given back with the last of them. Another keyspace may be created
    /// under the name at once.
    ///
    /// # Errors
    /// [`Error::UnknownKeyspace`]; [`Error::Closed`]. [`Error::Io`]: whether it is there after the next opening is open,
    /// and until then it takes no writes; it may be dropped again.
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
    /// Its name; that of the store's own is empty.
    pub fn name(&self) -> &str {
        self.data.name()
    }

    /// Its number, which no other keyspace of the store ever had; that of the store's own is 0.
    pub fn id(&self) -> u32 {
        self.data.id()
    }

    /// Name of the comparator that orders its keys.
    pub fn comparator_name(&self) -> &str {
        self.data.comparator().name()
    }

    /// Sets `key` to `value`, as [`Db::put`].
    ///
    /// # Errors
    /// As there, and [`Error::KeyspaceDropped`].
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let durability = self.inner()?.options.durability;
        self.put_with(key, value, durability)
    }

    /// [`put`](Self::put) with a durability of its own.
    ///
    /// # Errors
    /// As there.
    pub fn put_with(&self, key: &[u8], value: &[u8], durability: Durability) -> Result<()> {
        self.write_one(Op::Put { key, value }, durability)
    }

    /// Removes `key`, as [`Db::delete`].
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn delete(&self, key: &[u8]) -> Result<()> {
        let durability = self.inner()?.options.durability;
        self.delete_with(key, durability)
    }

    /// [`delete`](Self::delete) with a durability of its own.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn delete_with(&self, key: &[u8], durability: Durability) -> Result<()> {
        self.write_one(Op::Delete { key }, durability)
    }

    /// Removes all keys from `start` up to, not including, `end`, as [`Db::delete_range`].
    ///
    /// # Errors
    /// As [`put`](Self::put), and [`Error::EmptyRange`].
    pub fn delete_range(&self, start: &[u8], end: &[u8]) -> Result<()> {
        let mut batch = WriteBatch::new();
        batch.keyspace(self).delete_range(start, end)?;
        let inner = self.inner()?;
        let written = inner.write_to(&self.data, &batch, inner.options.durability);
        written.map(drop)
    }

    /// The value of `key`, as [`Db::get`].
    ///
    /// # Errors
    /// As there, and [`Error::KeyspaceDropped`].
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.view()?.get(key)
    }

    /// The values of `keys`, by position, as [`Db::multi_get`].
    ///
    /// # Errors
    /// [`Error::KeyspaceDropped`]; what concerns one key is at its place in `values`.
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K], values: &mut Values) -> Result<()> {
        self.multi_get_with(keys, Strategy::Auto, values)
    }

    /// [`multi_get`](Self::multi_get) by a chosen strategy; the answers are the same.
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

    /// All entries, as of now. Of a keyspace that was dropped, the iterator gives [`Error::KeyspaceDropped`] and ends.
    pub fn iter(&self) -> Iter {
        self.begin(|view| view.iter(Bound::Unbounded, Bound::Unbounded))
    }

    /// The entries whose keys lie in `range`, in the keyspace's order, as of now. See [`Db::range`].
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Iter {
        self.begin(|view| view.range(range))
    }

    /// The entries whose keys begin with these bytes, as of now. See [`Db::prefix`].
    pub fn prefix(&self, prefix: &[u8]) -> Iter {
        self.begin(|view| view.prefix(prefix))
    }

    /// Begins to take in many entries at once, in ascending order of their keys, as [`Db::ingest`].
    pub fn ingest(&self) -> Ingestion {
        Ingestion::new(Arc::clone(&self.open), Arc::clone(&self.data))
    }

    /// Puts all that was written before into runs, as [`Db::flush`]: that of all keyspaces, since they share a log.
    ///
    /// # Errors
    /// As there.
    pub fn flush(&self) -> Result<()> {
        self.inner()?.flush_all()
    }

    /// Flushes, and merges all runs of this keyspace into its last level. See [`Db::compact`].
    ///
    /// # Errors
    /// As there.
    pub fn compact(&self) -> Result<()> {
        let keyspace = std::slice::from_ref(&self.data);
        self.inner()?.compact_all(keyspace)
    }

    /// What it holds. All zeros in a fork, where nothing can be asked.
    pub fn stats(&self) -> KeyspaceStats {
        let inner = self.inner();
        inner
            .map(|_| KeyspaceStats::of(&self.data))
            .unwrap_or_default()
    }

    /// The open store that it is of.
    pub(crate) fn store(&self) -> u64 {
        self.data.store()
    }

    pub(super) fn data(&self) -> &Arc<KeyspaceData> {
        &self.data
    }

    fn write_one(&self, op: Op<'_>, durability: Durability) -> Result<()> {
        self.inner()?.write_one(&self.data, op, durability)
    }

    fn inner(&self) -> Result<&Arc<Inner>> {
        Ok(&self.open.get()?.inner)
    }

    /// Of a keyspace that was not dropped.
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
        // Closing waits for this.
        let _guard = self.directory.enter()?;
        // One at a time: who comes second finds what the first has made.
        let mut catalog = self.tree.catalog();
        let keyspaces = self.keyspaces.load_full();
        let given = options.comparator.name();
        if let Some(keyspace) = keyspaces.by_name(name) {
            if keyspace.comparator().name() != given {
                return Err(Error::KeyspaceComparator {
                    keyspace: name.to_owned(),
                    stored: keyspace.comparator().name().to_owned(),
                    given: Some(given.to_owned()),
                });
            }
            let ttl = keyspace.expiry.as_ref().map_or(0, Expiry::ttl);
            keyspace.set_options(options.with_stored_ttl(name, ttl)?);
            drop(catalog);
            // Other limits of level 0 may be met, or not any more, and other compactions due.
            self.note_pressure();
            self.work.nudge();
            return Ok(Arc::clone(keyspace));
        }
        let order = crate::comparator::KeyOrder::new(Arc::clone(&options.comparator));
        let id = catalog.create(name, given, &order, options.ttl_s())?;
        let Some(runs) = catalog.runs_of(id) else {
            return Err(Error::Closed);
        };
        let keyspace =
            KeyspaceData::new(self.number, id, name, options, runs, self.reading.clone());
        let keyspace = Arc::new(keyspace);
        if let Some(expiry) = &keyspace.expiry {
            self.clock.expect(expiry.ttl());
        }
        self.keyspaces.store(Arc::new(keyspaces.with(&keyspace)));
        Ok(keyspace)
    }

    fn drop_keyspace(&self, name: &str) -> Result<()> {
        let keyspace = self.keyspaces.load().by_name(name).cloned();
        let Some(keyspace) = keyspace.filter(|keyspace| keyspace.id() > 0) else {
            return Err(Error::UnknownKeyspace {
                name: name.to_owned(),
            });
        };
        // Under the lock no write is under way, and those that come see the mark: so what is logged for the keyspace was
        // logged before it is gone.
        let active = self.active.write().unwrap_or_else(PoisonError::into_inner);
        keyspace.refuse_writes();
        drop(active);
        let _guard = self.directory.enter()?;
        let mut catalog = self.tree.catalog();
        let keyspaces = self.keyspaces.load_full();
        if keyspaces.by_id(keyspace.id()).is_none() {
            // Another call was faster.
            return Err(Error::UnknownKeyspace {
                name: name.to_owned(),
            });
        }
        catalog.drop_keyspace(keyspace.id())?;
        self.keyspaces
            .store(Arc::new(keyspaces.without(keyspace.id())));
        keyspace.show_dropped();
        drop(catalog);
        self.work.nudge();
        Ok(())
    }
}
