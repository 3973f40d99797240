//! What a caller of [`Cache::compute`](crate::Cache::compute) decides about an item, and what came
//! of it.

use crate::expiry::Expiry;
use crate::item_kind::ItemKind;
use crate::value::SharedValue;
use std::ops::Range;

/// The decision about an item.
#[derive(Debug)]
pub enum ComputeOp<'a> {
    /// Leave everything as it is.
    Keep,
    /// Store a new item in place of the present one, if there is one.
    Put(ComputePut<'a>),
    /// Delete the item.
    Remove,
    /// Give the item a new expiry. Its CAS number does not change.
    Expire(Expiry),
}

/// A new item.
///
/// ```
/// use forerun_cache::{ComputePut, Expiry, ItemKind};
///
/// let put = ComputePut { expiry: Expiry::AtMs(5_000), ..ComputePut::new(b"value") };
/// assert_eq!((put.flags, put.kind), (0, ItemKind::String));
/// ```
#[derive(Debug)]
pub struct ComputePut<'a> {
    /// The value.
    pub value: ComputeValue<'a>,
    /// The client's flags, kept with the value.
    pub flags: u32,
    /// The kind of the value.
    pub kind: ItemKind,
    /// When the item expires. To keep the old expiry, copy it from the old item.
    pub expiry: Expiry,
}

impl<'a> ComputePut<'a> {
    /// A string without flags that never expires.
    pub fn new(value: impl Into<ComputeValue<'a>>) -> ComputePut<'a> {
        ComputePut {
            value: value.into(),
            flags: 0,
            kind: ItemKind::String,
            expiry: Expiry::Never,
        }
    }
}

/// The value of a new item.
#[derive(Clone, Debug)]
pub enum ComputeValue<'a> {
    /// A single piece.
    Bytes(&'a [u8]),
    /// A single piece that was made for this item.
    Owned(Vec<u8>),
    /// Pieces of the old value and others, which are stored one after another.
    Parts(Vec<ValuePart<'a>>),
    /// A large value, which is shared and not copied, unless it comes from another cache.
    Shared(SharedValue),
}

impl<'a, B: AsRef<[u8]> + ?Sized> From<&'a B> for ComputeValue<'a> {
    fn from(bytes: &'a B) -> ComputeValue<'a> {
        ComputeValue::Bytes(bytes.as_ref())
    }
}

impl From<Vec<u8>> for ComputeValue<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        ComputeValue::Owned(bytes)
    }
}

impl From<SharedValue> for ComputeValue<'_> {
    fn from(value: SharedValue) -> Self {
        ComputeValue::Shared(value)
    }
}

impl<'a> From<Vec<ValuePart<'a>>> for ComputeValue<'a> {
    fn from(parts: Vec<ValuePart<'a>>) -> Self {
        ComputeValue::Parts(parts)
    }
}

/// A piece of a new value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValuePart<'a> {
    /// These bytes.
    Bytes(&'a [u8]),
    /// This range of the old value. What is beyond its end, or all of it if there is no old value,
    /// is empty.
    Old(Range<usize>),
}

impl<'a> ValuePart<'a> {
    /// The bytes, given the old value.
    pub(crate) fn resolve<'x>(&self, old: &'x [u8]) -> &'x [u8]
    where
        'a: 'x,
    {
        match self {
            ValuePart::Bytes(bytes) => bytes,
            ValuePart::Old(range) => {
                let end = range.end.min(old.len());
                old.get(range.start..end).unwrap_or_default()
            }
        }
    }
}

/// The result of [`Cache::compute`](crate::Cache::compute). Whatever was not done has changed
/// nothing: the old item stays.
#[must_use = "a refused change changes nothing"]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ComputeResult {
    /// The decision was to keep the item as it is, or to remove or to expire an item that there is
    /// not.
    Kept,
    /// The new item is stored.
    Stored {
        /// Its CAS number.
        cas: u64,
    },
    /// The item was deleted.
    Removed,
    /// The item has its new expiry.
    Touched,
    /// The key is longer than [`Cache::key_bytes_max`](crate::Cache::key_bytes_max). Nothing was
    /// decided.
    InvalidKey,
    /// The new item is larger than
    /// [`CacheOptions::max_item_bytes`](crate::CacheOptions::max_item_bytes).
    TooLarge,
    /// No memory could be reclaimed, or the calling thread holds a
    /// [`CacheGuard`](crate::CacheGuard) and the new item would have to evict others.
    OutOfMemory,
    /// The calling process is a fork of the one that made the cache.
    Forked,
}
