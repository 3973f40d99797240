//! Removing item by item what is over, one segment of the index after the other.

use crate::blocks::record::Record;
use crate::cache::Cache;
use crate::evict::RemovalCause;
use crate::flush::Moment;

impl Cache {
    /// Removes all items that have expired or were flushed. They are never found, and leave by and by without this: it is for
    /// who wants to see the count of those that live, or their memory. The number of items removed.
    pub fn remove_expired(&self) -> u64 {
        if self.is_forked() {
            return 0;
        }
        self.sweep(|item, moment| item.is_gone(moment))
    }

    /// Removes the items that `should_remove` takes, as expired.
    pub(crate) fn sweep(&self, should_remove: impl Fn(Record<'_>, Moment) -> bool) -> u64 {
        let mut removed = 0;
        let mut part = Some(0);
        while let Some(hash) = part {
            let (more, next) = self.sweep_segment(hash, &should_remove);
            removed += more;
            part = next;
        }
        self.collect();
        removed
    }

    /// The same in the segment of a hash, which is locked for as long as its 1,500 items take; and the hash that comes next.
    pub(crate) fn sweep_segment(
        &self,
        hash: u64,
        should_remove: impl Fn(Record<'_>, Moment) -> bool,
    ) -> (u64, Option<u64>) {
        let pinned = self.epochs.pin();
        let mut locked = self.index.lock(&pinned, hash);
        // Under the lock, so that it is no earlier than that of any item's writer.
        let moment = self.moment();
        let entries: Vec<_> = locked.segment().entries().collect();
        entries
            .iter()
            .for_each(|(_, entry)| self.blocks.prefetch(entry.item));
        let mut removed = 0;
        for (slot_ref, entry) in entries {
            if should_remove(self.record(&pinned, entry.item), moment) {
                self.unlink(
                    &pinned,
                    &mut locked,
                    slot_ref,
                    entry.item,
                    RemovalCause::Expired,
                );
                removed += 1;
            }
        }
        (removed, locked.segment().next_after(hash))
    }
}
