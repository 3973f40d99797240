//! Ranges of keys in which scans have found nothing alive, so that later scans skip them.
//!
//! ```text
//!   keys     a  ✕  ✕  ✕  ✕  ✕  ✕  ✕  ✕  ✕  ✕  k          ✕: deleted, by key or by range, or expired
//!                  └─ found ───────────┘                 by one scan, which stepped over it
//!                  └─ skippable ─┘                       confirmed by another, as of its read point
//! ```
//!
//! A queue deletes at one end what it has read there. Without these ranges, each scan would step
//! over everything that was ever taken, until a compaction drops it.
//!
//! What is dead stays dead for every later read point, unless it is put again. So each put looks
//! whether its key is in one of the ranges, after its entry is linked and before it becomes
//! visible, and revokes the range. A range belongs to one memtable and everything older, which no
//! longer changes: a put goes to the same memtable, or readers that see it see another memtable
//! first. Flushes and compactions change nothing for the readers at its read point or later.
//!
//! A new memtable takes over the ranges of the one before it that are not revoked, unless no scan
//! has used them for long. At that moment no write is in progress: whatever was put into the older
//! memtable has revoked its range, or is linked, and the scan that is still to confirm the range
//! meets it. What is put into the new one finds the ranges there. Ingested runs come with a
//! memtable that takes over nothing, because their keys revoke nothing.
//!
//! A put that is in progress while a scan finds a range may have looked too early, and its entry
//! may be linked too late for the scan. So a range that was found is only shown to the puts. A
//! later scan confirms it by stepping over it once more, having first synchronized with all puts
//! ([`MemTable::synchronize`](crate::memtable::MemTable::synchronize)): an entry that it does not
//! meet then belongs to a put that sees the range. The confirming scan must not meet entries that
//! are newer than its read point.

use forerun_core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;

use arc_swap::ArcSwap;
use forerun_core::sync::{Mutex, PoisonError, SIMULATED};

use crate::comparator::KeyOrder;
use crate::versions::{ReadPoint, SeekSide};

/// The ranges that a memtable keeps. Another one replaces the one that was found first.
const RANGES_MAX: usize = if SIMULATED { 3 } else { 64 };

/// A range that no scan has used since so many memtables took it over is forgotten. Meanwhile,
/// scans may do without because a range deletion covers its keys, until that is in one run with
/// them.
const UNUSED_MAX: u32 = if SIMULATED { 1 } else { 8 };

/// Ranges with longer bounds are not kept.
const BOUND_BYTES_MAX: usize = 1 << 10;

/// The keys between two keys, both excluded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) low: Arc<[u8]>,
    pub(super) high: Arc<[u8]>,
}

impl Span {
    /// The bound that a scan meets first if it comes from `side`.
    pub(super) fn near(&self, side: SeekSide) -> &Arc<[u8]> {
        match side {
            SeekSide::AtOrAfter => &self.low,
            SeekSide::Before => &self.high,
        }
    }

    /// The bound that it meets last.
    pub(super) fn far(&self, side: SeekSide) -> &Arc<[u8]> {
        match side {
            SeekSide::AtOrAfter => &self.high,
            SeekSide::Before => &self.low,
        }
    }

    /// From `near` to `far`, as a scan meets them.
    pub(super) fn met(side: SeekSide, near: Arc<[u8]>, far: Arc<[u8]>) -> Span {
        match side {
            SeekSide::AtOrAfter => Span {
                low: near,
                high: far,
            },
            SeekSide::Before => Span {
                low: far,
                high: near,
            },
        }
    }

    pub(super) fn contains(&self, order: &KeyOrder, key: &[u8]) -> bool {
        order.compare(&self.low, key).is_lt() && order.compare(key, &self.high).is_lt()
    }
}

/// A range without live keys.
#[derive(Clone, Debug)]
pub(super) struct DeadRange {
    /// Where a scan has found nothing alive.
    pub(super) found: Span,
    /// The read point of that scan.
    found_at: ReadPoint,
    /// The part that readers at or after a read point may skip.
    pub(super) skippable: Option<(Span, ReadPoint)>,
    /// Whether a key in it was put. Shared with the ranges that this one was extended from, which a
    /// put may still see.
    is_revoked: Arc<AtomicBool>,
    /// How many memtables have taken it over since a scan found, confirmed or skipped it. Shared as
    /// the flag above is.
    unused: Arc<AtomicU32>,
    /// Which of all ranges it is, from 1; of a range that was not added yet, which one it extends,
    /// or 0.
    number: u64,
}

impl DeadRange {
    /// A range that was just found. It contains `extended`, if that is given.
    pub(super) fn found(
        found: Span,
        found_at: ReadPoint,
        extended: Option<&DeadRange>,
    ) -> DeadRange {
        DeadRange {
            found,
            found_at,
            skippable: extended.and_then(|of| of.skippable.clone()),
            is_revoked: extended.map_or_else(Arc::default, |of| Arc::clone(&of.is_revoked)),
            unused: extended.map_or_else(Arc::default, |of| Arc::clone(&of.unused)),
            number: extended.map_or(0, |of| of.number),
        }
    }

    /// Whether no key in it was put. A reader asks after it has got its read point.
    pub(super) fn is_valid(&self) -> bool {
        // Acquire: whoever sees a key's sequence number sees that the range was revoked, because
        // the put published the number afterwards.
        !self.is_revoked.load(Ordering::Acquire)
    }

    /// Whether a reader at `read_point` sees all that the scan saw which found it.
    pub(super) fn is_found_before(&self, read_point: ReadPoint) -> bool {
        is_later(read_point, self.found_at)
    }

    /// What a reader at `read_point` may skip.
    pub(super) fn skippable_at(&self, read_point: ReadPoint) -> Option<&Span> {
        let (span, from) = self.skippable.as_ref()?;
        (is_later(read_point, *from) && self.is_valid()).then_some(span)
    }

    /// Notes that a scan skips a part of it.
    pub(super) fn note_used(&self) {
        // Relaxed, also below: it only says what is worth keeping, and orders nothing. Scans by
        // several threads mostly find it so, and write nothing.
        if self.unused.load(Ordering::Relaxed) != 0 {
            self.unused.store(0, Ordering::Relaxed);
        }
    }

    /// Whether another memtable is to take it over.
    fn is_worth_keeping(&self) -> bool {
        let unused = self.unused.fetch_add(1, Ordering::Relaxed);
        self.is_valid() && unused < UNUSED_MAX
    }

    /// The same range, of which readers from `read_point` on may skip a part.
    pub(super) fn confirmed(self, span: Span, read_point: ReadPoint) -> DeadRange {
        self.note_used();
        DeadRange {
            skippable: Some((span, read_point)),
            ..self
        }
    }
}

/// Whether everything that was dead at one read point is so at another, if it was not put again.
fn is_later(read_point: ReadPoint, than: ReadPoint) -> bool {
    read_point.sequence >= than.sequence && read_point.expired_sequence >= than.expired_sequence
}

/// The ranges of a memtable and everything older.
#[derive(Debug, Default)]
pub(super) struct DeadRanges {
    has_any: AtomicBool,
    /// In the order in which they were found; no two overlap.
    list: ArcSwap<Vec<DeadRange>>,
    /// Held for a change: how many ranges were added.
    added: Mutex<u64>,
}

impl DeadRanges {
    /// Takes over the ranges of the memtable before this one, which is not shown yet. No write is
    /// in progress.
    pub(super) fn take_over(&self, before: &DeadRanges) {
        let mut old = before.list.load().to_vec();
        old.retain(DeadRange::is_worth_keeping);
        self.change(|list, added| {
            // A scan of the older memtable may still change what it has.
            *added = *before.added.lock().unwrap_or_else(PoisonError::into_inner);
            *list = old;
        });
    }

    /// The range that a key is in.
    pub(super) fn find(&self, order: &KeyOrder, key: &[u8]) -> Option<DeadRange> {
        // Relaxed: a range that is missed is only a step more.
        if !self.has_any.load(Ordering::Relaxed) {
            return None;
        }
        let list = self.list.load();
        let mut ranges = list.iter();
        let range = ranges.find(|range| range.found.contains(order, key))?;
        range.is_valid().then(|| range.clone())
    }

    /// Shows a range to the puts that follow. It replaces those that it overlaps.
    ///
    /// A range that extends another is only added while that one is there: puts that came after it
    /// was replaced have not revoked it.
    pub(super) fn add(&self, order: &KeyOrder, range: DeadRange) {
        let Span { low, high } = &range.found;
        if low.len().max(high.len()) > BOUND_BYTES_MAX {
            return;
        }
        let is_apart = |other: &DeadRange| {
            order.compare(&other.found.high, low).is_le()
                || order.compare(high, &other.found.low).is_le()
        };
        self.change(|list, added| {
            if range.number > 0 && !list.iter().any(|other| other.number == range.number) {
                return;
            }
            list.retain(|other| other.is_valid() && is_apart(other));
            if list.len() == RANGES_MAX {
                list.remove(0);
            }
            *added += 1;
            list.push(DeadRange {
                number: *added,
                ..range.clone()
            });
        });
    }

    /// Shows readers a range with a confirmed part, if the range is still there.
    pub(super) fn confirm(&self, range: &DeadRange) {
        self.change(|list, _| {
            let mut ranges = list.iter_mut();
            if let Some(found) = ranges.find(|of| of.number == range.number) {
                *found = range.clone();
            }
        });
    }

    /// Removes a range that was not confirmed.
    pub(super) fn remove(&self, range: &DeadRange) {
        self.change(|list, _| list.retain(|of| of.number != range.number));
    }

    fn change(&self, change: impl FnOnce(&mut Vec<DeadRange>, &mut u64)) {
        // The list is replaced as a whole, so it is sound even if a comparator has panicked.
        let mut added = self.added.lock().unwrap_or_else(PoisonError::into_inner);
        let mut list = Vec::clone(&self.list.load());
        change(&mut list, &mut added);
        let is_empty = list.is_empty();
        // Relaxed: storing the list releases it to a scan that finds a range there, and
        // `MemTable::synchronize` orders both for the puts. So it is raised before the list is
        // shown, and lowered after it.
        if !is_empty {
            self.has_any.store(true, Ordering::Relaxed);
        }
        self.list.store(Arc::new(list));
        if is_empty {
            self.has_any.store(false, Ordering::Relaxed);
        }
    }

    /// Revokes the ranges that contain one of these keys. They were put: their entries are linked
    /// and counted, but not yet visible.
    pub(super) fn revoke<'k>(&self, order: &KeyOrder, keys: impl Iterator<Item = &'k [u8]>) {
        // Relaxed, and the list as it is: the memtable's count of entries orders both. A put that
        // counted its entries after a scan had synchronized sees what the scan saw; the entries of
        // one that counted them before are seen by the scan.
        if !self.has_any.load(Ordering::Relaxed) {
            return;
        }
        let list = self.list.load();
        for key in keys {
            let mut ranges = list.iter();
            if let Some(range) = ranges.find(|range| range.found.contains(order, key)) {
                // Release: see `is_valid`.
                range.is_revoked.store(true, Ordering::Release);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_taken_over_until_no_scan_has_used_it_for_long() {
        let order = KeyOrder::Bytewise;
        let span = Span {
            low: Arc::from(&b"a"[..]),
            high: Arc::from(&b"z"[..]),
        };
        let find = |ranges: &DeadRanges| ranges.find(&order, b"key");
        let after_memtables = |mut ranges: DeadRanges, memtables: u32| {
            for _ in 0..memtables {
                let next = DeadRanges::default();
                next.take_over(&ranges);
                ranges = next;
            }
            ranges
        };
        let ranges = DeadRanges::default();
        ranges.add(
            &order,
            DeadRange::found(span.clone(), ReadPoint::at(1), None),
        );
        let ranges = after_memtables(ranges, UNUSED_MAX);
        let found = find(&ranges).expect("it was just found");
        ranges.confirm(&found.confirmed(span, ReadPoint::at(2)));
        let ranges = after_memtables(ranges, UNUSED_MAX);
        find(&ranges).expect("it was confirmed").note_used();
        let ranges = after_memtables(ranges, UNUSED_MAX);
        assert!(find(&ranges).is_some(), "it was skipped");
        let ranges = after_memtables(ranges, 1);
        assert!(find(&ranges).is_none());
    }
}
