//! Removes items one by one, one segment of the index after another.

use crate::blocks::item_layout::Record;
use crate::budget::Purpose;
use crate::cache::Cache;
use crate::generation::Moment;
use crate::stats::Count;
use crate::unlink::RemovalCause;
use std::cell::Cell;

impl Cache {
    /// Removes all items that have expired or were flushed, and returns how many there were. Such
    /// items are never found and are reclaimed over time anyway. Call this to get an exact count of
    /// live items, or the memory, at once.
    ///
    /// ```
    /// use forerun_cache::{Cache, CacheOptions, Expiry, Store};
    ///
    /// let cache = Cache::new(CacheOptions::default())?;
    /// let expiry = Expiry::At(cache.now() + 60);
    /// let _ = cache.store(Store { expiry, ..Store::set("session", "Ada") });
    /// let _ = cache.set("town", "Oslo");
    ///
    /// cache.advance(cache.now() + 61);
    /// assert!(cache.get("session").is_none());
    /// cache.remove_expired();
    /// assert_eq!(cache.stats().items, 1);
    /// # Ok::<(), forerun_cache::Error>(())
    /// ```
    pub fn remove_expired(&self) -> u64 {
        if self.is_forked() {
            return 0;
        }
        let checked = Cell::new(0);
        let removed = self.sweep(|item, moment| {
            checked.set(checked.get() + 1);
            item.is_gone(moment)
        });
        let pinned = self.epochs.pin();
        let counters = pinned.counters();
        counters.add(Count::Sweeps, 1);
        counters.add(Count::SweptItems, checked.get());
        counters.add(Count::SweptExpired, removed);
        removed
    }

    /// Removes the items for which `should_remove` holds and counts them as expired.
    fn sweep(&self, should_remove: impl Fn(Record<'_>, Moment<'_>) -> bool) -> u64 {
        let mut removed = 0;
        let mut from = Some(0);
        while let Some(hash) = from {
            let (more, next) = self.sweep_segment(hash, RemovalCause::Expired, &should_remove);
            removed += more;
            from = next;
        }
        self.collect();
        removed
    }

    /// Removes those items of the segment of a hash for which `should_remove` holds. Returns their
    /// number and the first hash of the next segment. The segment stays locked while its roughly
    /// 1,500 items are checked.
    pub(crate) fn sweep_segment(
        &self,
        hash: u64,
        cause: RemovalCause,
        should_remove: impl Fn(Record<'_>, Moment<'_>) -> bool,
    ) -> (u64, Option<u64>) {
        let pinned = self.epochs.pin();
        let mut locked = self.index.lock(&pinned, hash);
        // Read under the lock, so that it is no earlier than the moment of any item's writer.
        let moment = self.moment();
        let entries: Vec<_> = locked.segment().entries().collect();
        entries
            .iter()
            .for_each(|(_, entry)| self.blocks.prefetch(entry.item));
        let mut removed = 0;
        for (slot_ref, entry) in entries {
            if should_remove(self.record(&pinned, entry.item), moment) {
                self.unlink(&pinned, &mut locked, slot_ref, entry.item, cause);
                removed += 1;
            }
        }
        (removed, locked.segment().next_after(hash))
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        if self.is_forked() {
            return;
        }
        // Large values are stored outside the blocks: each item releases its share.
        if self.budget.used_for(Purpose::Large) > 0 {
            self.sweep(|_, _| true);
        }
    }
}
