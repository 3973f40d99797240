//! Deleting, invalidating and claiming items.

use super::{compares_unequal, rewritten};
use crate::blocks::item_layout::{CLAIMED, FETCHED, Record, STALE};
use crate::cache::Cache;
use crate::index::key_buckets::KeyBuckets;
use crate::item::Item;
use crate::request::{Delete, DeleteResult, Expiry, Invalidate};
use crate::unlink::RemovalCause;
use crate::write::{Decision, NewBody, Operation, Outcome};
use std::borrow::Cow;

impl Cache {
    /// Deletes an item.
    ///
    /// ```
    /// use forerun_cache::{Cache, CacheOptions, Delete, DeleteResult, Store};
    ///
    /// let cache = Cache::new(CacheOptions::default())?;
    /// cache.store(Store::set("CH/Bern", "46.948,7.447"));
    /// assert_eq!(cache.delete(Delete::key("CH/Bern")), DeleteResult::Deleted);
    /// assert_eq!(cache.delete(Delete::key("CH/Bern")), DeleteResult::NotFound);
    /// # Ok::<(), forerun_cache::Error>(())
    /// ```
    pub fn delete(&self, delete: Delete<'_>) -> DeleteResult {
        if self.is_forked() {
            return DeleteResult::Forked;
        }
        let hash = self.hasher.hash(delete.key);
        let deleted = {
            let pinned = self.epochs.pin();
            let mut locked = self.index.lock(&pinned, hash);
            let matches = |item| self.record(&pinned, item).key() == delete.key;
            let Some((slot_ref, item)) = locked.segment().find(KeyBuckets::new(hash), matches)
            else {
                return DeleteResult::NotFound;
            };
            let record = self.record(&pinned, item);
            // Read under the lock, so that it is no earlier than the moment of the item's writer.
            let is_gone = record.is_gone(self.moment());
            if !is_gone && compares_unequal(delete.compare_cas, record) {
                return DeleteResult::Exists;
            }
            let cause = if is_gone {
                RemovalCause::Expired
            } else {
                RemovalCause::Removed
            };
            self.unlink(&pinned, &mut locked, slot_ref, item, cause);
            !is_gone
        };
        if self.limbo.waiting_bytes() > 0 {
            self.collect();
        }
        if deleted {
            DeleteResult::Deleted
        } else {
            DeleteResult::NotFound
        }
    }

    /// Marks an item as stale or empties it, without removing it.
    pub fn invalidate(&self, invalidate: Invalidate<'_>) -> DeleteResult {
        if self.is_forked() {
            return DeleteResult::Forked;
        }
        match self.update(invalidate.key, &invalidate) {
            Outcome::Answer(answer) => answer,
            Outcome::Written { .. } => DeleteResult::Deleted,
            Outcome::OutOfMemory => DeleteResult::OutOfMemory,
        }
    }

    /// Claims an item in order to store a new value. Returns `true` to one caller only, until the
    /// item is stored or invalidated again. The other callers see the claim in [`Item::is_claimed`]
    /// and use the old value.
    ///
    /// ```
    /// use forerun_cache::{Cache, CacheOptions, Invalidate, Store};
    ///
    /// let cache = Cache::new(CacheOptions::default())?;
    /// cache.store(Store::set("page", "old"));
    /// cache.invalidate(Invalidate::key("page"));
    /// let guard = cache.pin();
    /// let item = guard.get("page").unwrap();
    /// assert!(item.is_stale());
    /// assert!(cache.claim(&item)); // this caller renders the page again
    /// assert!(!cache.claim(&item)); // all others still serve the old page
    /// # Ok::<(), forerun_cache::Error>(())
    /// ```
    pub fn claim(&self, item: &Item<'_>) -> bool {
        if self.is_forked() {
            return false;
        }
        let hash = self.hasher.hash(item.key());
        let pinned = self.epochs.pin();
        // Under the lock, so that no thread copies the item at the same time.
        let locked = self.index.lock(&pinned, hash);
        let matches = |at| self.record(&pinned, at).key() == item.key();
        let found = locked.segment().find(KeyBuckets::new(hash), matches);
        found.is_some_and(|(_, at)| {
            let record = self.record(&pinned, at);
            record.cas() == item.cas() && record.mark(CLAIMED) & CLAIMED == 0
        })
    }
}

impl Operation for Invalidate<'_> {
    type Answer = DeleteResult;

    fn decide<'x>(&'x self, found: Option<Record<'x>>) -> Decision<'x, DeleteResult> {
        let Some(old) = found else {
            return Decision::Answer(DeleteResult::NotFound);
        };
        if compares_unequal(self.compare_cas, old) {
            return Decision::Answer(DeleteResult::Exists);
        }
        let mut new = rewritten(old);
        if self.drop_value {
            new.value = NewBody::Parts(Cow::Borrowed(&[]));
            new.flags = 0;
        }
        if self.mark_stale {
            // The next reader may claim it.
            new.marks = STALE | old.marks() & FETCHED;
        }
        new.expiry = self.expiry.map_or(new.expiry, Expiry::to_word);
        new.cas = self.new_cas;
        Decision::Write(new)
    }
}
