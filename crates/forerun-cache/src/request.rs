//! The requests of writers, and their results.

use crate::expiry::Expiry;
use crate::item_kind::ItemKind;
use crate::value_buffer::ValueBuffer;

/// The condition under which [`Cache::store`](crate::Cache::store) stores, and what happens to the
/// old value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum StoreMode {
    /// Stores in any case, and replaces the old value.
    #[default]
    Set,
    /// Stores only if the key has no item.
    Add,
    /// Stores only if the key has an item, and replaces its value.
    Replace,
    /// If the key has an item, appends to its value and keeps its flags and expiry.
    Append,
    /// If the key has an item, prepends to its value and keeps its flags and expiry.
    Prepend,
}

/// A value to store.
#[derive(Debug)]
pub enum StoreValue<'a> {
    /// A single piece.
    Bytes(&'a [u8]),
    /// Several pieces, which are stored one after another.
    Parts(&'a [&'a [u8]]),
    /// A buffer of the cache: see [`Cache::value_buffer`](crate::Cache::value_buffer). The value is
    /// the whole buffer, filled or not. A full buffer of another cache is copied; one that is not
    /// full gives [`StoreResult::OutOfMemory`].
    Buffer(ValueBuffer),
}

impl StoreValue<'_> {
    /// The length of the value, in bytes.
    pub fn len(&self) -> usize {
        match self {
            StoreValue::Bytes(bytes) => bytes.len(),
            StoreValue::Parts(parts) => parts.iter().map(|part| part.len()).sum(),
            StoreValue::Buffer(buffer) => buffer.len(),
        }
    }

    /// Whether the value is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<'a, B: AsRef<[u8]> + ?Sized> From<&'a B> for StoreValue<'a> {
    fn from(bytes: &'a B) -> StoreValue<'a> {
        StoreValue::Bytes(bytes.as_ref())
    }
}

impl From<ValueBuffer> for StoreValue<'_> {
    fn from(buffer: ValueBuffer) -> Self {
        StoreValue::Buffer(buffer)
    }
}

/// An item to store.
///
/// ```
/// use forerun_cache::{Cache, CacheOptions, Expiry, Store, StoreMode, StoreResult};
///
/// let cache = Cache::new(CacheOptions::default())?;
/// let ten_seconds = Expiry::At(cache.now() + 10);
/// let mode = StoreMode::Add;
/// let store = Store { flags: 7, expiry: ten_seconds, mode, ..Store::set(b"key", b"value") };
/// assert!(matches!(cache.store(store), StoreResult::Stored { .. }));
/// let again = Store { mode, ..Store::set(b"key", b"other") };
/// assert_eq!(cache.store(again), StoreResult::NotStored);
/// # Ok::<(), forerun_cache::Error>(())
/// ```
#[derive(Debug)]
pub struct Store<'a> {
    /// The key: up to [`Cache::key_bytes_max`](crate::Cache::key_bytes_max) arbitrary bytes.
    pub key: &'a [u8],
    /// The value, or the bytes to append or prepend.
    pub value: StoreValue<'a>,
    /// The client's flags, kept with the value.
    pub flags: u32,
    /// The kind of the value.
    pub kind: ItemKind,
    /// When the item expires.
    pub expiry: Expiry,
    /// When to store, and what happens to the old value. Default: [`StoreMode::Set`].
    pub mode: StoreMode,
    /// Store only over an item with this CAS number. Otherwise the result is
    /// [`StoreResult::Exists`], or [`StoreResult::NotFound`] if there is no item.
    /// [`StoreMode::Append`] and [`StoreMode::Prepend`] compare only if there is an item, as in
    /// memcached.
    pub compare_cas: Option<u64>,
    /// The item's new CAS number. `None`: a number that no item has had.
    pub new_cas: Option<u64>,
    /// If `compare_cas` is below the item's number, store the value nevertheless and mark it as
    /// stale; the item keeps its expiry and its claim. (`ms` with `I` in memcached's meta
    /// protocol.)
    pub stale_if_older: bool,
    /// If there is no item to append or prepend to, store a new one with this expiry.
    pub vivify: Option<Expiry>,
    /// Claim the new item from the start (see [`Cache::claim`](crate::Cache::claim)): it is a
    /// placeholder, and its creator stores the value later.
    pub claimed: bool,
}

impl<'a> Store<'a> {
    /// Stores a value unconditionally, without flags or expiry. Override fields as needed.
    ///
    /// ```
    /// use forerun_cache::{Cache, CacheOptions, Store, StoreResult};
    ///
    /// let cache = Cache::new(CacheOptions::default())?;
    /// let (key, value) = (String::from("key"), vec![1, 2, 3]);
    /// assert!(matches!(cache.store(Store::set(&key, &value)), StoreResult::Stored { .. }));
    /// # Ok::<(), forerun_cache::Error>(())
    /// ```
    pub fn set<K>(key: &'a K, value: impl Into<StoreValue<'a>>) -> Store<'a>
    where
        K: AsRef<[u8]> + ?Sized,
    {
        Store {
            key: key.as_ref(),
            value: value.into(),
            flags: 0,
            kind: ItemKind::String,
            expiry: Expiry::Never,
            mode: StoreMode::Set,
            compare_cas: None,
            new_cas: None,
            stale_if_older: false,
            vivify: None,
            claimed: false,
        }
    }
}

/// The result of a [`Store`].
#[must_use = "a refused store changes nothing"]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoreResult {
    /// The item is stored.
    Stored {
        /// The item's CAS number.
        cas: u64,
    },
    /// The condition of the [`StoreMode`] did not hold.
    NotStored,
    /// The item has another CAS number.
    Exists,
    /// `compare_cas` was given, but there is no item.
    NotFound,
    /// The key is longer than [`Cache::key_bytes_max`](crate::Cache::key_bytes_max). Nothing was
    /// done.
    InvalidKey,
    /// The item is larger than
    /// [`CacheOptions::max_item_bytes`](crate::CacheOptions::max_item_bytes). The old item stays.
    TooLarge,
    /// No memory could be reclaimed, or the calling thread holds a
    /// [`CacheGuard`](crate::CacheGuard) and the store would have to evict. The old item stays.
    OutOfMemory,
    /// The calling process is a fork of the one that made the cache. Nothing was done.
    Forked,
}

/// A deletion.
#[derive(Clone, Copy, Debug)]
pub struct Delete<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Delete the item only if it has this CAS number.
    pub compare_cas: Option<u64>,
}

impl<'a> Delete<'a> {
    /// Deletes a key unconditionally.
    pub fn key<K: AsRef<[u8]> + ?Sized>(key: &'a K) -> Delete<'a> {
        Delete {
            key: key.as_ref(),
            compare_cas: None,
        }
    }
}

/// A change of an item that keeps the item: `md` with `I` or `x` in memcached's meta protocol.
#[derive(Clone, Copy, Debug)]
pub struct Invalidate<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Change the item only if it has this CAS number.
    pub compare_cas: Option<u64>,
    /// The item's new CAS number. `None`: a number that no item has had.
    pub new_cas: Option<u64>,
    /// The item's new expiry. `None` keeps the old one.
    pub expiry: Option<Expiry>,
    /// Mark the item as stale and unclaimed, so that the next reader may claim it.
    pub mark_stale: bool,
    /// Empty the value and set the client's flags to 0.
    pub drop_value: bool,
}

impl<'a> Invalidate<'a> {
    /// Marks a key's item as stale.
    pub fn key<K: AsRef<[u8]> + ?Sized>(key: &'a K) -> Invalidate<'a> {
        Invalidate {
            key: key.as_ref(),
            compare_cas: None,
            new_cas: None,
            expiry: None,
            mark_stale: true,
            drop_value: false,
        }
    }
}

impl<'a, K: AsRef<[u8]> + ?Sized> From<&'a K> for Delete<'a> {
    fn from(key: &'a K) -> Delete<'a> {
        Delete::key(key)
    }
}

/// The result of a [`Delete`] or an [`Invalidate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeleteResult {
    /// The item was deleted or changed.
    Deleted,
    /// The key has no item.
    NotFound,
    /// The item has another CAS number.
    Exists,
    /// [`Invalidate`] only: there was no memory for the changed item.
    OutOfMemory,
    /// The calling process is a fork of the one that made the cache. Nothing was done.
    Forked,
}

/// The two operations of [`Arithmetic`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ArithmeticOp {
    /// Adds; wraps around at 2^64.
    Increment,
    /// Subtracts; stops at 0.
    Decrement,
}

/// Adds to or subtracts from a value that is a decimal number below 2^64.
///
/// As in memcached, a value never gets shorter: 10 minus 1 is `9` followed by a space.
#[derive(Clone, Copy, Debug)]
pub struct Arithmetic<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The amount.
    pub delta: u64,
    /// Whether to add or subtract.
    pub op: ArithmeticOp,
    /// Change the item only if it has this CAS number.
    pub compare_cas: Option<u64>,
    /// The item's new CAS number. `None`: a number that no item has had.
    pub new_cas: Option<u64>,
    /// The item's new expiry. `None` keeps the old one.
    pub expiry: Option<Expiry>,
    /// If there is no item, store one with this number and this expiry.
    pub initial: Option<(u64, Expiry)>,
}

impl<'a> Arithmetic<'a> {
    /// Adds to an existing number.
    pub fn increment<K: AsRef<[u8]> + ?Sized>(key: &'a K, delta: u64) -> Arithmetic<'a> {
        Arithmetic {
            key: key.as_ref(),
            delta,
            op: ArithmeticOp::Increment,
            compare_cas: None,
            new_cas: None,
            expiry: None,
            initial: None,
        }
    }

    /// Subtracts from an existing number.
    pub fn decrement<K: AsRef<[u8]> + ?Sized>(key: &'a K, delta: u64) -> Arithmetic<'a> {
        Arithmetic {
            op: ArithmeticOp::Decrement,
            ..Arithmetic::increment(key, delta)
        }
    }
}

/// The result of an [`Arithmetic`].
#[must_use = "a refused change changes nothing"]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ArithmeticResult {
    /// The number was changed, or the initial number stored.
    Changed {
        /// The new number.
        value: u64,
        /// The item's CAS number.
        cas: u64,
        /// When the item expires.
        expiry: Expiry,
        /// Whether the item is new.
        is_new: bool,
    },
    /// The key has no item, and no initial number was given.
    NotFound,
    /// The key is longer than [`Cache::key_bytes_max`](crate::Cache::key_bytes_max). Nothing was
    /// done.
    InvalidKey,
    /// The value is not a decimal number below 2^64, or it is longer than 512 KiB.
    NotANumber,
    /// The item has another CAS number.
    Exists,
    /// There was no memory for the changed item.
    OutOfMemory,
    /// The calling process is a fork of the one that made the cache. Nothing was done.
    Forked,
}
