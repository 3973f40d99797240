//! Removes items from the index, and accounts for the consequences: dead bytes, shares of large
//! values, counts.

use crate::blocks::item_word::FETCHED;
use crate::cache::Cache;
use crate::epoch::Pinned;
use crate::eviction_hook::Evicted;
use crate::expiry::{Deadline, Expiry};
use crate::index::item_bucket::ItemRef;
use crate::index::segment::{LockedSegment, SlotRef};
use crate::keyspace::number_of;
use crate::limbo::Garbage;
use crate::stats::Count;
use std::sync::atomic::Ordering::Relaxed;

/// Why an item leaves the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RemovalCause {
    /// A caller deleted or replaced it.
    Removed,
    /// It expired or was flushed.
    Expired,
    Evicted,
}

impl Cache {
    /// Removes an item from the index and retires it.
    pub(crate) fn unlink(
        &self,
        pinned: &Pinned<'_>,
        locked: &mut LockedSegment<'_>,
        slot_ref: SlotRef,
        item: ItemRef,
        cause: RemovalCause,
    ) {
        locked.remove(slot_ref);
        self.retire_item(pinned, item, cause);
    }

    /// Accounts for an item that the caller has just removed from the index or replaced there: its
    /// bytes are dead, its share of a large value goes to limbo.
    pub(crate) fn retire_item(&self, pinned: &Pinned<'_>, item: ItemRef, cause: RemovalCause) {
        let record = self.record(pinned, item);
        if cause == RemovalCause::Evicted {
            self.eviction_hook.call(|| Evicted {
                key: record.key(),
                value_len: record.value().len(),
                expiry: Expiry::from(record.deadline()),
                was_fetched: record.word().has_mark(FETCHED),
                last_access: record.accessed(),
                now: self.now(),
            });
        }
        // Measured while the item still has its share of a large value.
        let item_bytes = record.size_bytes() + record.large_len();
        self.blocks.mark_dead(item, record);
        if let Some(value) = self.blocks.take_large(record) {
            let garbage = Garbage::Large(value);
            self.limbo
                .push(&self.epochs, garbage, self.blocks.len_bytes());
        }
        let counters = pinned.counters();
        let moment = self.moment();
        let is_flushed = record.generation() != moment.generation();
        if !is_flushed {
            counters.remove_item(moment.flushes, item_bytes);
            self.count_in_keyspace(pinned, moment.flushes, record.key(), 1u64.wrapping_neg());
        }
        let unfetched = u64::from(!record.word().has_mark(FETCHED));
        match cause {
            RemovalCause::Removed => {}
            RemovalCause::Expired => {
                counters.add(Count::Expired, 1);
                counters.add(Count::Flushed, is_flushed.into());
                counters.add(Count::ExpiredUnfetched, unfetched);
            }
            RemovalCause::Evicted => {
                counters.add(Count::Evictions, 1);
                counters.add(Count::EvictedUnfetched, unfetched);
                let expires = record.deadline() != Deadline::NEVER;
                counters.add(Count::EvictedWithTtl, u64::from(expires));
                let idle_s = self.now().saturating_sub(record.accessed());
                // Relaxed: a statistic, which orders nothing.
                self.last_evicted_idle_s.store(idle_s, Relaxed);
            }
        }
    }

    /// Adds to the count of the keyspace of a key, if there are several.
    #[inline]
    pub(crate) fn count_in_keyspace(
        &self,
        pinned: &Pinned<'_>,
        flushes: u64,
        key: &[u8],
        more: u64,
    ) {
        let keyspaces = self.options().keyspaces;
        if keyspaces > 1
            && let Some(items) = pinned.counters().keyspace(number_of(key), keyspaces)
        {
            items.change(flushes, more, 0);
        }
    }
}
