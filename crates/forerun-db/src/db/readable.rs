//! The read methods that a store, a keyspace and the snapshots of both have in common, written
//! once.
//!
//! Each of the four types says how to get a [`View`](super::view::View) of what it reads;
//! everything else is here. The methods are inherent, so callers need no import. [`Readable`]
//! repeats them for code that is generic over the four types.

use std::ops::RangeBounds;

use super::iter::Iter;
use crate::{Result, Values};

/// A source of reads: [`Db`](crate::Db), [`Keyspace`](crate::Keyspace),
/// [`Snapshot`](crate::Snapshot) or [`KeyspaceSnapshot`](crate::KeyspaceSnapshot).
///
/// Each of them has these methods itself. Import this trait only to write code for all of them:
///
/// ```
/// use forerun_db::{Db, Options, Readable, Result};
///
/// fn has(source: &impl Readable, key: &[u8]) -> Result<bool> {
///     Ok(source.get(key)?.is_some())
/// }
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("store");
/// let db = Db::open(path, Options::default())?;
/// let before = db.snapshot();
/// db.put(b"paris", b"48.85,2.35")?;
/// assert!(has(&db, b"paris")?);
/// assert!(!has(&before, b"paris")?);
/// # Ok::<(), forerun_db::Error>(())
/// ```
pub trait Readable: sealed::Sealed {
    /// Returns the value of `key`. See [`Db::get`](crate::Db::get).
    ///
    /// # Errors
    /// See [`Db::get`](crate::Db::get).
    fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>>;

    /// Passes the value of `key` to `read` without copying it. See [`Db::read`](crate::Db::read).
    ///
    /// # Errors
    /// See [`Db::get`](crate::Db::get).
    fn read<T>(&self, key: impl AsRef<[u8]>, read: impl FnOnce(&[u8]) -> T) -> Result<Option<T>>;

    /// Looks up all `keys` at once. See [`Db::multi_get`](crate::Db::multi_get).
    ///
    /// # Errors
    /// See [`Db::multi_get`](crate::Db::multi_get).
    fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K], values: &mut Values) -> Result<()>;

    /// Iterates over all entries. See [`Db::iter`](crate::Db::iter).
    fn iter(&self) -> Iter;

    /// Iterates over the entries whose keys lie in `range`. See [`Db::range`](crate::Db::range).
    fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Iter;

    /// Iterates over the entries whose keys start with `prefix`. See
    /// [`Db::prefix`](crate::Db::prefix).
    fn prefix(&self, prefix: impl AsRef<[u8]>) -> Iter;

    /// Counts the entries. See [`Db::count`](crate::Db::count).
    ///
    /// # Errors
    /// See [`Db::get`](crate::Db::get).
    fn count(&self) -> Result<u64>;

    /// Counts the entries as long as `go_on` returns `true`. See
    /// [`Db::count_while`](crate::Db::count_while).
    ///
    /// # Errors
    /// See [`Db::count_while`](crate::Db::count_while).
    fn count_while(&self, go_on: impl FnMut() -> bool) -> Result<u64>;
}

pub(super) mod sealed {
    /// Keeps [`Readable`](super::Readable) to the types of this crate.
    pub trait Sealed {}
}

/// Gives a type the read methods. The type must have `view`, which returns the view to read, and
/// `begin`, which starts an iterator. `$moment` describes the moment that the type reads, and
/// `$errors` lists the errors that only this type returns.
macro_rules! readable {
    ($source:ty, $moment:literal, $errors:literal) => {
        impl $source {
            /// Returns the value of `key`, or `None` if the key is not there.
            #[doc = $moment]
            ///
            /// ```
            /// use forerun_db::{Db, Options};
            ///
            /// # let directory = tempfile::tempdir().unwrap();
            /// # let path = directory.path().join("store");
            /// let db = Db::open(path, Options::default())?;
            /// db.put("paris", "48.85,2.35")?;
            /// assert_eq!(db.get("paris")?.as_deref(), Some(&b"48.85,2.35"[..]));
            /// assert_eq!(db.get("atlantis")?, None);
            /// # Ok::<(), forerun_db::Error>(())
            /// ```
            ///
            /// # Errors
            /// [`Error::Io`](crate::Error::Io) and
            /// [`Error::CorruptFile`](crate::Error::CorruptFile) if a run cannot be read;
            /// [`Error::CorruptEntry`](crate::Error::CorruptEntry), with paranoid checks only;
            /// [`Error::Panicked`](crate::Error::Panicked) if a comparator of your own panicked;
            /// [`Error::Forked`](crate::Error::Forked) in a fork.
            #[doc = $errors]
            #[inline]
            pub fn get(&self, key: impl AsRef<[u8]>) -> $crate::Result<Option<Vec<u8>>> {
                self.get_slice(key.as_ref())
            }

            fn get_slice(&self, key: &[u8]) -> $crate::Result<Option<Vec<u8>>> {
                self.view()?.get(key)
            }

            /// Passes the value of `key` to `read`, which borrows it from the memory where it is,
            /// and returns the result of `read`, or `None` if the key is not there. Unlike
            /// [`get`](Self::get), this copies and allocates nothing.
            #[doc = $moment]
            ///
            /// Keep `read` short. While it runs, no store, table or hash table of this process
            /// reuses the memory of what it evicts or replaces, and this store frees no memtable.
            /// So do not block in it, and do not write to a store or a table: writes that need that
            /// memory fail after a time limit. With a comparator of your own, the value is copied
            /// first, so that a panic in `read` is not mistaken for one in the comparator.
            ///
            /// ```
            /// use forerun_db::{Db, Options};
            ///
            /// # let directory = tempfile::tempdir().unwrap();
            /// # let path = directory.path().join("store");
            /// let db = Db::open(path, Options::default())?;
            /// db.put("paris", "48.85,2.35")?;
            /// let comma = db.read("paris", |value| value.iter().position(|byte| *byte == b','))?;
            /// assert_eq!(comma, Some(Some(5)));
            /// # Ok::<(), forerun_db::Error>(())
            /// ```
            ///
            /// # Errors
            /// See [`get`](Self::get).
            #[inline]
            pub fn read<T>(
                &self,
                key: impl AsRef<[u8]>,
                read: impl FnOnce(&[u8]) -> T,
            ) -> $crate::Result<Option<T>> {
                let mut read = Some(read);
                let mut result = None;
                // The lookup itself is compiled once, for all closures.
                self.read_slice(key.as_ref(), &mut |value| {
                    result = read.take().map(|read| read(value));
                })?;
                Ok(result)
            }

            fn read_slice(&self, key: &[u8], read: &mut dyn FnMut(&[u8])) -> $crate::Result<()> {
                self.view()?.read(key, read)
            }

            /// Looks up all `keys` at once and puts the answers into `values`, in the order of the
            /// keys. Reuse `values` for the next batch: once it has grown, a batch allocates
            /// nothing.
            #[doc = $moment]
            ///
            /// ```
            /// use forerun_db::{Db, Options, Values};
            ///
            /// # let directory = tempfile::tempdir().unwrap();
            /// # let path = directory.path().join("store");
            /// let db = Db::open(path, Options::default())?;
            /// db.put("paris", "48.85,2.35")?;
            /// let mut values = Values::new();
            /// db.multi_get(&["atlantis", "paris"], &mut values)?;
            /// assert_eq!(values.get(0)?, None);
            /// assert_eq!(values.get(1)?, Some(&b"48.85,2.35"[..]));
            /// # Ok::<(), forerun_db::Error>(())
            /// ```
            ///
            /// # Errors
            /// [`Error::Forked`](crate::Error::Forked) in a fork;
            /// [`Error::Panicked`](crate::Error::Panicked) if a comparator of your own panicked. An
            /// error that concerns one key is in `values`, at the position of that key.
            #[doc = $errors]
            pub fn multi_get<K: AsRef<[u8]>>(
                &self,
                keys: &[K],
                values: &mut $crate::Values,
            ) -> $crate::Result<()> {
                self.view()?.multi_get(keys, values)
            }

            /// Iterates over all entries, in key order.
            #[doc = $moment]
            ///
            /// ```
            /// use forerun_db::{Db, Options};
            ///
            /// # let directory = tempfile::tempdir().unwrap();
            /// # let path = directory.path().join("store");
            /// let db = Db::open(path, Options::default())?;
            /// for town in ["paris", "bern", "oslo"] {
            ///     db.put(town, "")?;
            /// }
            /// let towns = db.iter().map(|entry| Ok(entry?.0));
            /// let towns = towns.collect::<forerun_db::Result<Vec<_>>>()?;
            /// assert_eq!(towns, [&b"bern"[..], b"oslo", b"paris"]);
            /// assert_eq!(db.iter().next_back().unwrap()?.0, b"paris");
            /// # Ok::<(), forerun_db::Error>(())
            /// ```
            ///
            /// If a read fails, the iterator returns one of the errors of [`get`](Self::get) and
            /// ends.
            #[doc = $errors]
            pub fn iter(&self) -> $crate::Iter {
                let all = std::ops::Bound::Unbounded;
                self.begin(|view| view.iter(all.clone(), all))
            }

            /// Iterates over the entries whose keys lie in `range`, in key order. A range that ends
            /// before it starts is empty.
            #[doc = $moment]
            ///
            /// ```
            /// use forerun_db::{Db, Options};
            ///
            /// # let directory = tempfile::tempdir().unwrap();
            /// # let path = directory.path().join("store");
            /// let db = Db::open(path, Options::default())?;
            /// for town in ["paris", "bern", "oslo"] {
            ///     db.put(town, "")?;
            /// }
            /// assert_eq!(db.range("bern".."paris").count(), 2);
            /// assert_eq!(db.range("c"..).next().unwrap()?.0, b"oslo");
            /// # Ok::<(), forerun_db::Error>(())
            /// ```
            ///
            /// If a read fails, the iterator returns one of the errors of [`get`](Self::get) and
            /// ends.
            #[doc = $errors]
            pub fn range<K: AsRef<[u8]>>(
                &self,
                range: impl std::ops::RangeBounds<K>,
            ) -> $crate::Iter {
                self.begin(|view| view.range(range))
            }

            /// Iterates over the entries whose keys start with `prefix`, in key order.
            #[doc = $moment]
            ///
            /// ```
            /// use forerun_db::{Db, Options};
            ///
            /// # let directory = tempfile::tempdir().unwrap();
            /// # let path = directory.path().join("store");
            /// let db = Db::open(path, Options::default())?;
            /// for key in ["CH/bern", "CH/biel", "FR/paris"] {
            ///     db.put(key, "")?;
            /// }
            /// assert_eq!(db.prefix("CH/").count(), 2);
            /// # Ok::<(), forerun_db::Error>(())
            /// ```
            ///
            /// The order must keep such keys together, as [`Bytewise`](crate::Bytewise) and
            /// [`ReverseBytewise`](crate::ReverseBytewise) do. With any other comparator the
            /// iterator returns [`Error::PrefixOrder`](crate::Error::PrefixOrder) and ends.
            #[doc = $errors]
            pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> $crate::Iter {
                self.begin(|view| view.prefix(prefix.as_ref()))
            }

            /// Counts the entries.
            #[doc = $moment]
            ///
            /// The count is exact. It reads only the entries above the deepest level, which are
            /// about a tenth of a large store. The runs of the deepest level hold the rest, and the
            /// number of their entries is in their metadata. All entries of a run are read if some
            /// of them may not be visible: if a range deletion covers a part of the run, if entries
            /// of it have expired, or if it has several versions of a key for a snapshot.
            ///
            /// ```
            /// use forerun_db::{Db, Options};
            ///
            /// # let directory = tempfile::tempdir().unwrap();
            /// # let path = directory.path().join("store");
            /// let db = Db::open(path, Options::default())?;
            /// db.put("paris", "48.85,2.35")?;
            /// db.put("oslo", "59.91,10.75")?;
            /// db.delete("paris")?;
            /// assert_eq!(db.count()?, 1);
            /// # Ok::<(), forerun_db::Error>(())
            /// ```
            ///
            /// # Errors
            /// See [`get`](Self::get).
            pub fn count(&self) -> $crate::Result<u64> {
                self.count_while(|| true)
            }

            /// [`count`](Self::count), but ends early if `go_on` returns `false`. `go_on` is called
            /// every few milliseconds.
            ///
            /// ```
            /// use forerun_db::{Db, Options};
            ///
            /// # let directory = tempfile::tempdir().unwrap();
            /// # let path = directory.path().join("store");
            /// let db = Db::open(path, Options::default())?;
            /// db.put("paris", "48.85,2.35")?;
            /// assert_eq!(db.count_while(|| true)?, 1);
            /// # Ok::<(), forerun_db::Error>(())
            /// ```
            ///
            /// # Errors
            /// See [`get`](Self::get), and [`Error::Interrupted`](crate::Error::Interrupted) if
            /// `go_on` returned `false`.
            pub fn count_while(&self, mut go_on: impl FnMut() -> bool) -> $crate::Result<u64> {
                self.view()?.count(&mut go_on)
            }
        }

        impl $crate::db::readable::sealed::Sealed for $source {}

        impl $crate::Readable for $source {
            fn get(&self, key: impl AsRef<[u8]>) -> $crate::Result<Option<Vec<u8>>> {
                self.get(key)
            }

            fn read<T>(
                &self,
                key: impl AsRef<[u8]>,
                read: impl FnOnce(&[u8]) -> T,
            ) -> $crate::Result<Option<T>> {
                self.read(key, read)
            }

            fn multi_get<K: AsRef<[u8]>>(
                &self,
                keys: &[K],
                values: &mut $crate::Values,
            ) -> $crate::Result<()> {
                self.multi_get(keys, values)
            }

            fn iter(&self) -> $crate::Iter {
                self.iter()
            }

            fn range<K: AsRef<[u8]>>(&self, range: impl std::ops::RangeBounds<K>) -> $crate::Iter {
                self.range(range)
            }

            fn prefix(&self, prefix: impl AsRef<[u8]>) -> $crate::Iter {
                self.prefix(prefix)
            }

            fn count(&self) -> $crate::Result<u64> {
                self.count()
            }

            fn count_while(&self, go_on: impl FnMut() -> bool) -> $crate::Result<u64> {
                self.count_while(go_on)
            }
        }

        /// Iterates over all entries, in key order, as `iter` does.
        impl IntoIterator for &$source {
            type Item = $crate::Result<(Vec<u8>, Vec<u8>)>;
            type IntoIter = $crate::Iter;

            fn into_iter(self) -> $crate::Iter {
                self.iter()
            }
        }
    };
}

pub(super) use readable;
