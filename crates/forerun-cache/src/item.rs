//! What a lookup found.

use crate::blocks::record::{CLAIMED, FETCHED, Record, STALE, Tags};
use crate::request::Expiry;
use crate::value::SharedValue;
use std::fmt;

/// An item as it was found, readable in place as long as the guard is borrowed. What others do meanwhile, overwriting and
/// deleting included, does not change its bytes.
#[derive(Clone, Copy)]
pub struct Item<'g> {
    record: Record<'g>,
    /// As of before this access.
    last_access: u32,
    was_fetched: bool,
}

impl<'g> Item<'g> {
    /// An item that was asked for now. Its tags were read to see that it is live.
    #[inline(always)]
    pub(crate) fn accessed(record: Record<'g>, tags: Tags, now: u32) -> Item<'g> {
        let before = record.access(tags, now);
        Item {
            record,
            last_access: before.accessed,
            was_fetched: before.marks & FETCHED != 0,
        }
    }

    #[inline(always)]
    pub(crate) fn untouched(record: Record<'g>) -> Item<'g> {
        Item {
            record,
            last_access: record.accessed(),
            was_fetched: record.marks() & FETCHED != 0,
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

    /// The client's own number.
    pub fn flags(&self) -> u32 {
        self.record.flags()
    }

    /// The CAS number: another one after each change of the value.
    pub fn cas(&self) -> u64 {
        self.record.cas()
    }

    /// When the item is gone.
    pub fn expiry(&self) -> Expiry {
        Expiry::from_word(self.record.expiry())
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
        self.record.marks() & STALE != 0
    }

    /// Whether somebody has claimed it to bring a new value ([`Cache::claim`](crate::Cache::claim)).
    pub fn is_claimed(&self) -> bool {
        self.record.marks() & CLAIMED != 0
    }

    /// Bytes that it takes: header, key and value.
    pub fn size_bytes(&self) -> usize {
        self.record.size_bytes() + self.record.large_len()
    }

    /// The value as a share that outlives the guard, if it is a large one, which is kept apart from others. `None` is a small
    /// value: copy it.
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
