//! Gives items a new expiry.

use super::rewritten;
use crate::blocks::item_layout::Record;
use crate::cache::Cache;
use crate::index::key_buckets::KeyBuckets;
use crate::request::Expiry;
use crate::write::{Decision, NewItem, OnShortage, Operation, Outcome};

impl Cache {
    /// Gives an item a new expiry. Returns whether the item exists.
    ///
    /// ```
    /// use forerun_cache::{Cache, CacheOptions, Expiry, Store};
    ///
    /// let cache = Cache::new(CacheOptions::default())?;
    /// cache.store(Store::set("session", "Ada"));
    /// assert!(cache.touch("session", Expiry::At(cache.now() + 60)));
    /// cache.advance(cache.now() + 60);
    /// assert!(cache.get("session").is_none());
    /// # Ok::<(), forerun_cache::Error>(())
    /// ```
    #[inline]
    pub fn touch(&self, key: impl AsRef<[u8]>, expiry: Expiry) -> bool {
        self.touch_slice(key.as_ref(), expiry)
    }

    fn touch_slice(&self, key: &[u8], expiry: Expiry) -> bool {
        if self.is_forked() {
            return false;
        }
        let expiry = expiry.to_word();
        match self.touch_in_place(key, expiry, false) {
            Some(is_there) => is_there,
            None => match self.update(key, &TouchOperation { expiry }) {
                Outcome::Answer(Missing) => false,
                Outcome::Written { .. } => true,
                // The item stays among items that expire at another time.
                Outcome::OutOfMemory => self.touch_in_place(key, expiry, true).unwrap_or(false),
            },
        }
    }

    /// Changes the expiry in place. `None`: the item's new TTL class differs from its block's, and
    /// it may not stay `anywhere`.
    fn touch_in_place(&self, key: &[u8], expiry: u32, anywhere: bool) -> Option<bool> {
        let hash = self.hasher.hash(key);
        let pinned = self.epochs.pin();
        let locked = self.index.lock(&pinned, hash);
        let matches = |item| self.record(&pinned, item).key() == key;
        let Some((_, item)) = locked.segment().find(KeyBuckets::new(hash), matches) else {
            return Some(false);
        };
        let record = self.record(&pinned, item);
        if record.is_gone(self.moment()) {
            return Some(false);
        }
        let (class, _) = self.blocks.class_and_queue(item);
        // An item that expires at once may stay anywhere: its memory is reclaimed either way.
        let stays = anywhere
            || class == self.blocks.ttl_class(expiry, self.now())
            || (expiry != 0 && expiry <= self.now());
        stays.then(|| {
            self.blocks.extend(item, expiry);
            record.set_expiry(expiry);
            true
        })
    }
}

/// [`Cache::touch`] that moves the item to a block of its new TTL class.
struct TouchOperation {
    expiry: u32,
}

/// The key has no item.
struct Missing;

impl Operation for TouchOperation {
    type Answer = Missing;

    /// The item stays where it is, instead of being evicted for its own copy.
    const ON_SHORTAGE: OnShortage = OnShortage::GiveUp;

    fn decide<'x>(&'x self, found: Option<Record<'x>>) -> Decision<'x, Missing> {
        match found {
            None => Decision::Answer(Missing),
            Some(old) => Decision::Write(NewItem {
                expiry: self.expiry,
                ..rewritten(old)
            }),
        }
    }
}
