//! What writers ask of a cache, and what they are told.

use crate::value::ValueBuffer;

/// When an item is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Expiry {
    /// When it is deleted or evicted.
    #[default]
    Never,
    /// From this second of the cache's clock on ([`Cache::now`](crate::Cache::now)). A second that has come already makes
    /// an item that is gone at once.
    At(u32),
}

impl Expiry {
    /// As items keep it: the second, or 0 for never.
    pub(crate) fn to_word(self) -> u32 {
        match self {
            Expiry::Never => 0,
            // The clock begins at 1, so that 1 has always come.
            Expiry::At(second) => second.max(1),
        }
    }

    pub(crate) fn from_word(word: u32) -> Expiry {
        match word {
            0 => Expiry::Never,
            second => Expiry::At(second),
        }
    }
}

/// Under which condition [`Cache::store`](crate::Cache::store) stores, and what becomes of an older value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Always; the older value is replaced.
    #[default]
    Set,
    /// Only where there is no item of the key.
    Add,
    /// Only where there is one.
    Replace,
    /// Behind the older value, whose flags and expiry stay; only where there is one.
    Append,
    /// Before the older value, whose flags and expiry stay; only where there is one.
    Prepend,
}

/// A value to store.
#[derive(Debug)]
pub enum Value<'a> {
    /// In one piece.
    Bytes(&'a [u8]),
    /// In pieces, stored one behind the other.
    Parts(&'a [&'a [u8]]),
    /// Already within the cache's memory: see [`Cache::value_buffer`](crate::Cache::value_buffer). Its whole length is
    /// the value.
    Buffer(ValueBuffer),
}

impl Value<'_> {
    /// Bytes of the value.
    pub fn len(&self) -> usize {
        match self {
            Value::Bytes(bytes) => bytes.len(),
            Value::Parts(parts) => parts.iter().map(|part| part.len()).sum(),
            Value::Buffer(buffer) => buffer.len(),
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<'a> From<&'a [u8]> for Value<'a> {
    fn from(bytes: &'a [u8]) -> Value<'a> {
        Value::Bytes(bytes)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Value<'a> {
    fn from(bytes: &'a [u8; N]) -> Value<'a> {
        Value::Bytes(bytes)
    }
}

impl From<ValueBuffer> for Value<'_> {
    fn from(buffer: ValueBuffer) -> Self {
        Value::Buffer(buffer)
    }
}

/// An item to store.
///
/// ```
/// use forerun_cache::{Cache, CacheOptions, Expiry, Mode, Store, Stored};
///
/// let cache = Cache::new(CacheOptions::default())?;
/// let ten_seconds = Expiry::At(cache.now() + 10);
/// let store = Store { flags: 7, expiry: ten_seconds, mode: Mode::Add, ..Store::set(b"key", b"value") };
/// assert!(matches!(cache.store(store), Stored::Stored { .. }));
/// assert_eq!(cache.store(Store { mode: Mode::Add, ..Store::set(b"key", b"other") }), Stored::NotStored);
/// # Ok::<(), forerun_cache::Error>(())
/// ```
#[derive(Debug)]
pub struct Store<'a> {
    /// 1 to [`MAX_KEY_BYTES`](crate::MAX_KEY_BYTES) bytes, any of them.
    pub key: &'a [u8],
    /// The value, or what is put before or behind one.
    pub value: Value<'a>,
    /// The client's own number, kept with the value.
    pub flags: u32,
    /// When the item is gone.
    pub expiry: Expiry,
    /// The condition.
    pub mode: Mode,
    /// Store only over an item with this CAS number: else [`Stored::Exists`], or [`Stored::NotFound`] where there is none.
    pub compare_cas: Option<u64>,
    /// The item's new CAS number; where it is `None`, one that no item had before.
    pub new_cas: Option<u64>,
    /// If `compare_cas` is below the item's number, the value is stored nevertheless, but stale: the item keeps its expiry
    /// and whether it is claimed (the meta protocol's invalidation, `ms` with `I`).
    pub stale_if_older: bool,
    /// Appending or prepending to nothing makes an item that expires then.
    pub vivify: Option<Expiry>,
    /// The new item is claimed from the start: see [`Cache::claim`](crate::Cache::claim). For a placeholder whose maker is
    /// to bring the value.
    pub claimed: bool,
}

impl<'a> Store<'a> {
    /// A value under a key, unconditionally, without flags or expiry; change what is to be different.
    pub fn set(key: &'a [u8], value: impl Into<Value<'a>>) -> Store<'a> {
        Store {
            key,
            value: value.into(),
            flags: 0,
            expiry: Expiry::Never,
            mode: Mode::Set,
            compare_cas: None,
            new_cas: None,
            stale_if_older: false,
            vivify: None,
            claimed: false,
        }
    }
}

/// What became of a [`Store`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stored {
    /// It is stored.
    Stored {
        /// The item's CAS number.
        cas: u64,
    },
    /// The condition of the [`Mode`] did not hold.
    NotStored,
    /// The item has another CAS number.
    Exists,
    /// `compare_cas` was given, and there is no item.
    NotFound,
    /// The key is empty or longer than [`MAX_KEY_BYTES`](crate::MAX_KEY_BYTES), or the item is larger than
    /// [`CacheOptions::max_item_bytes`](crate::CacheOptions::max_item_bytes). An older item stays.
    TooLarge,
    /// Nothing made room, or the calling thread holds a [`Guard`](crate::Guard) and something would have to be evicted first.
    /// An older item stays.
    OutOfMemory,
    /// The cache belongs to another process, of which this one is a fork. Nothing was done.
    Forked,
}

/// A removal, if it is allowed.
#[derive(Clone, Copy, Debug)]
pub struct Delete<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Remove only an item with this CAS number.
    pub compare_cas: Option<u64>,
}

impl<'a> Delete<'a> {
    /// Unconditionally.
    pub fn key(key: &'a [u8]) -> Delete<'a> {
        Delete {
            key,
            compare_cas: None,
        }
    }
}

/// A change of an item that stays: the meta protocol's `md` with `I` or `x`.
#[derive(Clone, Copy, Debug)]
pub struct Invalidate<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Change only an item with this CAS number.
    pub compare_cas: Option<u64>,
    /// The item's new CAS number; where it is `None`, one that no item had before.
    pub new_cas: Option<u64>,
    /// When the item is gone; where it is `None`, as before.
    pub expiry: Option<Expiry>,
    /// The item is stale and nobody has claimed it: the next one who asks may.
    pub mark_stale: bool,
    /// The value becomes empty and the client's flags 0.
    pub drop_value: bool,
}

impl<'a> Invalidate<'a> {
    /// Marks an item as stale.
    pub fn key(key: &'a [u8]) -> Invalidate<'a> {
        Invalidate {
            key,
            compare_cas: None,
            new_cas: None,
            expiry: None,
            mark_stale: true,
            drop_value: false,
        }
    }
}

/// What became of a [`Delete`] or an [`Invalidate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Deleted {
    /// It was done.
    Deleted,
    /// There is no item of the key.
    NotFound,
    /// The item has another CAS number.
    Exists,
    /// [`Invalidate`] only: nothing made room for the changed item.
    OutOfMemory,
    /// The cache belongs to another process, of which this one is a fork. Nothing was done.
    Forked,
}

/// The two ways of [`Arithmetic`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Adds, and wraps at 2^64.
    Increment,
    /// Subtracts, and stops at 0.
    Decrement,
}

/// A change of a value that is a decimal number below 2^64.
///
/// As in memcached, a value never gets shorter: 10 minus 1 is `9` with a space behind it.
#[derive(Clone, Copy, Debug)]
pub struct Arithmetic<'a> {
    /// The key.
    pub key: &'a [u8],
    /// By how much.
    pub delta: u64,
    /// Up or down.
    pub direction: Direction,
    /// Change only an item with this CAS number.
    pub compare_cas: Option<u64>,
    /// The item's new CAS number; where it is `None`, one that no item had before.
    pub new_cas: Option<u64>,
    /// When the item is gone; where it is `None`, as before.
    pub expiry: Option<Expiry>,
    /// Where there is no item, one with this number and this expiry is made.
    pub initial: Option<(u64, Expiry)>,
}

impl<'a> Arithmetic<'a> {
    /// Adds to a number that is there.
    pub fn increment(key: &'a [u8], delta: u64) -> Arithmetic<'a> {
        Arithmetic {
            key,
            delta,
            direction: Direction::Increment,
            compare_cas: None,
            new_cas: None,
            expiry: None,
            initial: None,
        }
    }

    /// Subtracts from a number that is there.
    pub fn decrement(key: &'a [u8], delta: u64) -> Arithmetic<'a> {
        Arithmetic {
            direction: Direction::Decrement,
            ..Arithmetic::increment(key, delta)
        }
    }
}

/// What became of an [`Arithmetic`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Counted {
    /// It was done, or the initial number was stored.
    Counted {
        /// The number now.
        value: u64,
        /// The item's CAS number.
        cas: u64,
        /// When the item is gone.
        expiry: Expiry,
        /// Whether there was no item before.
        is_new: bool,
    },
    /// There is no item of the key, and no initial number was given.
    NotFound,
    /// The value is no decimal number below 2^64.
    NotANumber,
    /// The item has another CAS number.
    Exists,
    /// Nothing made room for the changed item.
    OutOfMemory,
    /// The cache belongs to another process, of which this one is a fork. Nothing was done.
    Forked,
}
