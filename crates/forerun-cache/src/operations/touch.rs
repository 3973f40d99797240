//! Gives items a new expiry.

use super::{compares_unequal, rewritten};
use crate::blocks::item_layout::Record;
use crate::cache::Cache;
use crate::expiry::{Deadline, Expiry};
use crate::index::key_buckets::KeyBuckets;
use crate::item::Item;
use crate::write::{Decision, OnShortage, Operation, Touched};

impl Cache {
    /// Gives an item a new expiry. Returns whether the item exists.
    ///
    /// ```
    /// use forerun_cache::{Cache, CacheOptions, Expiry};
    ///
    /// let cache = Cache::new(CacheOptions::default())?;
    /// let _ = cache.set("session", "Ada");
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
        self.touch_version(key, None, expiry)
    }

    /// Gives an item that was found a new expiry, unless it has been replaced or deleted since.
    /// Returns whether it has the new expiry. Like a lookup, this never waits.
    ///
    /// ```
    /// use forerun_cache::{Cache, CacheOptions, Expiry};
    ///
    /// let cache = Cache::new(CacheOptions::default())?;
    /// let _ = cache.set("session", "Ada");
    /// let guard = cache.pin();
    /// let item = guard.get("session").unwrap();
    /// assert!(cache.touch_item(&item, Expiry::At(cache.now() + 60)));
    /// let _ = cache.set("session", "Grace");
    /// assert!(!cache.touch_item(&item, Expiry::At(cache.now() + 3600)));
    /// # Ok::<(), forerun_cache::Error>(())
    /// ```
    pub fn touch_item(&self, item: &Item<'_>, expiry: Expiry) -> bool {
        self.touch_version(item.key(), Some(item.cas()), expiry)
    }

    /// Touches the item of a key if it has this CAS number, or any number.
    fn touch_version(&self, key: &[u8], cas: Option<u64>, expiry: Expiry) -> bool {
        if self.is_forked() {
            return false;
        }
        let deadline = Deadline::of(expiry, self.now());
        let Some(touched) = self.touch_in_place(key, cas, deadline) else {
            return false;
        };
        self.finish_touch(key, touched);
        true
    }

    /// Changes the deadline in place. `None`: there is no such item.
    fn touch_in_place(&self, key: &[u8], cas: Option<u64>, deadline: Deadline) -> Option<Touched> {
        let hash = self.hasher.hash(key);
        let pinned = self.epochs.pin();
        // Under the lock, so that no thread copies the item at the same time.
        let locked = self.index.lock(&pinned, hash);
        let matches = |item| self.record(&pinned, item).key() == key;
        let (_, item) = locked.segment().find(KeyBuckets::new(hash), matches)?;
        let record = self.record(&pinned, item);
        if record.is_gone(self.moment()) || compares_unequal(cas, record) {
            return None;
        }
        Some(self.set_deadline(&pinned, &locked, item, deadline))
    }

    /// Moves an item that was touched to a block of its new TTL class, if it is not in one.
    pub(super) fn finish_touch(&self, key: &[u8], touched: Touched) {
        if !touched.is_at_home {
            // If there is no memory for it, the item stays among items that expire at another time.
            let _ = self.update(key, &MoveOperation(touched));
        }
    }
}

/// Moves an item that was touched to a block of its new TTL class.
struct MoveOperation(Touched);

/// The item was replaced, touched again or deleted.
struct Changed;

impl Operation for MoveOperation {
    type Answer = Changed;

    /// The item stays where it is, instead of being evicted for its own copy.
    const ON_SHORTAGE: OnShortage = OnShortage::GiveUp;

    fn decide<'x>(&'x self, found: Option<Record<'x>>) -> Decision<'x, Changed> {
        let Touched { cas, deadline, .. } = self.0;
        match found {
            Some(old) if (old.cas(), old.deadline()) == (cas, deadline) => {
                Decision::Write(rewritten(old))
            }
            _ => Decision::Answer(Changed),
        }
    }
}
