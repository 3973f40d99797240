//! Removing by the whole: everything, or all that has expired, one segment of the index after the other.

use crate::blocks::record::Record;
use crate::cache::Cache;
use crate::evict::Leaves;
use std::sync::atomic::Ordering::Relaxed;

impl Cache {
    /// Removes all items there are at second `at` of the clock: at once if it has come, else when it comes. A later call
    /// replaces one that is still to come.
    pub fn flush_all(&self, at: u32) {
        // Relaxed: a number that the next tick reads.
        if at > self.now() {
            self.flush_at.store(at, Relaxed);
            return;
        }
        self.flush_at.store(0, Relaxed);
        self.sweep(|_| true);
    }

    /// Removes all items that have expired. They are never found, and leave by and by without this: it is for who wants to
    /// see the count of those that live. The number of items removed.
    pub fn remove_expired(&self) -> u64 {
        let now = self.now();
        self.sweep(|record| record.is_expired(now))
    }

    /// Flushes, if the time has come for which somebody asked.
    pub(crate) fn flush_if_due(&self) {
        let at = self.flush_at.load(Relaxed);
        if at != 0 && at <= self.now() {
            self.flush_all(at);
        }
    }

    /// Removes the items that `is_over` takes, as expired. A segment is locked for as long as its 1,500 items take.
    fn sweep(&self, is_over: impl Fn(Record<'_>) -> bool) -> u64 {
        let mut removed = 0;
        let mut part = Some(0);
        while let Some(hash) = part {
            let pinned = self.epochs.pin();
            let mut locked = self.index.lock(&pinned, hash);
            let entries: Vec<_> = locked.segment().entries().collect();
            entries
                .iter()
                .for_each(|(_, entry)| self.blocks.prefetch(entry.item));
            for (spot, entry) in entries {
                if is_over(self.record(&pinned, entry.item)) {
                    self.bury(&pinned, &mut locked, spot, entry.item, Leaves::Expired);
                    removed += 1;
                }
            }
            part = locked.segment().next_after(hash);
        }
        self.collect();
        removed
    }
}
