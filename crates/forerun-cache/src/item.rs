//! The result of a lookup.

use crate::blocks::item_layout::{Record, Tags};
use crate::blocks::item_word::{CLAIMED, FETCHED, STALE};
use crate::expiry::Expiry;
use crate::item_kind::ItemKind;
use crate::value::SharedValue;
use std::fmt;

/// An item that was found, readable in place while the guard is borrowed. Its bytes do not change,
/// even if other threads overwrite or delete the item concurrently.
#[derive(Clone, Copy)]
pub struct Item<'g> {
    record: Record<'g>,
    /// The time of the last access before this one.
    last_access: u32,
    was_fetched: bool,
}

impl<'g> Item<'g> {
    /// Creates the item of a lookup. The caller has read its tags to check that it is live.
    #[inline(always)]
    pub(crate) fn accessed(record: Record<'g>, tags: Tags, now: u32) -> Item<'g> {
        let before = record.access(tags, now);
        Item {
            record,
            last_access: before.accessed,
            was_fetched: before.was_fetched,
        }
    }

    #[inline(always)]
    pub(crate) fn untouched(record: Record<'g>) -> Item<'g> {
        Item {
            record,
            last_access: record.accessed(),
            was_fetched: record.word().has_mark(FETCHED),
        }
    }

    /// The key.
    #[inline]
    pub fn key(&self) -> &'g [u8] {
        self.record.key()
    }

    /// The value.
    #[inline]
    pub fn value(&self) -> &'g [u8] {
        self.record.value()
    }

    /// The client's flags.
    pub fn flags(&self) -> u32 {
        self.record.flags()
    }

    /// The CAS number. It changes whenever the value changes.
    pub fn cas(&self) -> u64 {
        self.record.cas()
    }

    /// The kind of the value.
    pub fn kind(&self) -> ItemKind {
        self.record.kind()
    }

    /// When the item expires: [`Expiry::Never`], [`Expiry::At`] or [`Expiry::AtMs`].
    pub fn expiry(&self) -> Expiry {
        self.record.deadline().into()
    }

    /// The millisecond of the cache's clock at which the item expires; `None` means never.
    ///
    /// ```
    /// use forerun_cache::{Cache, CacheOptions, Expiry, Store};
    ///
    /// let cache = Cache::new(CacheOptions::default())?;
    /// let at_ms = cache.now_ms() + 2500;
    /// let _ = cache.store(Store { expiry: Expiry::AtMs(at_ms), ..Store::set("lock", "Ada") });
    /// assert_eq!(cache.pin().get("lock").unwrap().expiry_ms(), Some(at_ms));
    /// # Ok::<(), forerun_cache::Error>(())
    /// ```
    pub fn expiry_ms(&self) -> Option<u64> {
        // Nothing that is stored is relative to a second.
        self.expiry().ms(0)
    }

    /// The second of the last access before this one, or of the store if there was none.
    pub fn last_access(&self) -> u32 {
        self.last_access
    }

    /// Whether the item had been read since it was stored, before this access.
    pub fn was_fetched(&self) -> bool {
        self.was_fetched
    }

    /// Whether the item is marked as stale ([`Cache::invalidate`](crate::Cache::invalidate), or a
    /// store of an older version).
    pub fn is_stale(&self) -> bool {
        self.record.word().has_mark(STALE)
    }

    /// Whether a reader has claimed the item in order to store a new value
    /// ([`Cache::claim`](crate::Cache::claim)).
    pub fn is_claimed(&self) -> bool {
        self.record.word().has_mark(CLAIMED)
    }

    /// Bytes of its header, key and value.
    pub fn size_bytes(&self) -> usize {
        self.record.size_bytes() + self.record.large_len()
    }

    /// A share of the value that outlives the guard, if the value is a large one with memory of its
    /// own. `None` for small values, which have to be copied.
    ///
    /// ```
    /// use forerun_cache::{Cache, CacheOptions};
    ///
    /// let cache = Cache::new(CacheOptions::default())?;
    /// let _ = cache.set("picture", &vec![7; 512 << 10]);
    /// let shared = cache.pin().get("picture").and_then(|item| item.to_shared());
    /// cache.flush_all(cache.now());
    /// // The guard is gone, and so is the item. The bytes are still there, for a slow client.
    /// assert_eq!(shared.unwrap().len(), 512 << 10);
    /// # Ok::<(), forerun_cache::Error>(())
    /// ```
    pub fn to_shared(&self) -> Option<SharedValue> {
        self.record.large().map(SharedValue)
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
