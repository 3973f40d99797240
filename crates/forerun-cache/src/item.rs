//! What a lookup found.

use crate::cache::Entry;
use crate::request::Expiry;
use crate::value::SharedValue;
use std::fmt;

/// An item as it was found, readable in place as long as the guard is borrowed. What others do meanwhile, overwriting and
/// deleting included, does not change its bytes.
#[derive(Clone, Copy)]
pub struct Item<'g> {
    pub(crate) entry: &'g Entry,
    /// As of before this access.
    pub(crate) last_access: u32,
    pub(crate) was_fetched: bool,
}

impl<'g> Item<'g> {
    /// The key.
    pub fn key(&self) -> &'g [u8] {
        &self.entry.key
    }

    /// The value.
    pub fn value(&self) -> &'g [u8] {
        &self.entry.value
    }

    /// The client's own number.
    pub fn flags(&self) -> u32 {
        self.entry.flags
    }

    /// The CAS number: another one after each change of the value.
    pub fn cas(&self) -> u64 {
        self.entry.cas
    }

    /// When the item is gone.
    pub fn expiry(&self) -> Expiry {
        Expiry::from_word(self.entry.expiry())
    }

    /// The second in which it was last asked for, before this time, or else stored.
    pub fn last_access(&self) -> u32 {
        self.last_access
    }

    /// Whether anybody had asked for it before, since it was stored.
    pub fn was_fetched(&self) -> bool {
        self.was_fetched
    }

    /// Whether it was marked as stale ([`Cache::invalidate`](crate::Cache::invalidate), or a store of an older version).
    pub fn is_stale(&self) -> bool {
        self.entry.is_stale()
    }

    /// Whether somebody has claimed it to bring a new value ([`Cache::claim`](crate::Cache::claim)).
    pub fn is_claimed(&self) -> bool {
        self.entry.is_claimed()
    }

    /// Bytes that it takes: header, key and value.
    pub fn size_bytes(&self) -> usize {
        self.entry.size_bytes()
    }

    /// The value as a share that outlives the guard, if it is a large one, which is kept apart from others. `None` is a small
    /// value: copy it.
    pub fn to_shared(&self) -> Option<SharedValue> {
        self.entry.to_shared()
    }
}

impl fmt::Debug for Item<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Item")
            .field("key", &self.key().escape_ascii().to_string())
            .field("value_bytes", &self.value().len())
            .field("flags", &self.flags())
            .field("cas", &self.cas())
            .field("expiry", &self.expiry())
            .finish_non_exhaustive()
    }
}
