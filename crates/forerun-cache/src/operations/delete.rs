//! Deleting, invalidating and claiming items.

use super::{compares_unequal, rewritten};
use crate::blocks::item_layout::Record;
use crate::blocks::item_word::{CLAIMED, FETCHED, STALE};
use crate::cache::Cache;
use crate::expiry::Deadline;
use crate::index::key_buckets::KeyBuckets;
use crate::item::Item;
use crate::item_kind::ItemKind;
use crate::request::{Delete, DeleteResult, Invalidate};
use crate::unlink::RemovalCause;
use crate::write::{Decision, NewBody, Operation, Outcome};

impl Cache {
    /// Deletes the item of a key, or carries out a [`Delete`].
    ///
    /// ```
    /// use forerun_cache::{Cache, CacheOptions, Delete, DeleteResult};
    ///
    /// let cache = Cache::new(CacheOptions::default())?;
    /// let _ = cache.set("CH/Bern", "46.948,7.447");
    /// assert_eq!(cache.delete("CH/Bern"), DeleteResult::Deleted);
    /// let delete = Delete { compare_cas: Some(7), ..Delete::key("CH/Bern") };
    /// assert_eq!(cache.delete(delete), DeleteResult::NotFound);
    /// # Ok::<(), forerun_cache::Error>(())
    /// ```
    pub fn delete<'a>(&self, delete: impl Into<Delete<'a>>) -> DeleteResult {
        self.delete_item(delete.into())
    }

    fn delete_item(&self, delete: Delete<'_>) -> DeleteResult {
        if self.is_forked() {
            return DeleteResult::Forked;
        }
        self.catch_up();
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
        self.collect_waiting();
        if deleted {
            DeleteResult::Deleted
        } else {
            DeleteResult::NotFound
        }
    }

    /// Marks an item as stale or empties it, without removing it.
    #[must_use = "in a full cache the item may be unchanged"]
    pub fn invalidate(&self, invalidate: Invalidate<'_>) -> DeleteResult {
        if self.is_forked() {
            return DeleteResult::Forked;
        }
        let deadline = invalidate.expiry;
        let deadline = deadline.map(|expiry| Deadline::of(expiry, self.now()));
        let operation = InvalidateOperation {
            invalidate,
            deadline,
        };
        match self.update(invalidate.key, &operation) {
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
    /// use forerun_cache::{Cache, CacheOptions, Invalidate};
    ///
    /// let cache = Cache::new(CacheOptions::default())?;
    /// let _ = cache.set("page", "old");
    /// let _ = cache.invalidate(Invalidate::key("page"));
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

/// [`Cache::invalidate`].
struct InvalidateOperation<'a> {
    invalidate: Invalidate<'a>,
    /// The new deadline, if there is one.
    deadline: Option<Deadline>,
}

impl Operation for InvalidateOperation<'_> {
    type Answer = DeleteResult;

    fn decide<'x>(&'x self, found: Option<Record<'x>>) -> Decision<'x, DeleteResult> {
        let Some(old) = found else {
            return Decision::Answer(DeleteResult::NotFound);
        };
        let invalidate = &self.invalidate;
        if compares_unequal(invalidate.compare_cas, old) {
            return Decision::Answer(DeleteResult::Exists);
        }
        let mut new = rewritten(old);
        if invalidate.drop_value {
            new.value = NewBody::Bytes(&[]);
            new.flags = 0;
            new.kind = ItemKind::String;
        }
        if invalidate.mark_stale {
            // The next reader may claim it.
            new.marks = STALE | old.marks() & FETCHED;
        }
        new.deadline = self.deadline.unwrap_or(new.deadline);
        new.cas = invalidate.new_cas;
        Decision::Write(new)
    }
}
