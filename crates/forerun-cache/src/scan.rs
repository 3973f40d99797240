//! Visits items in pages.
//!
//! ```text
//!   index      │ segment 00 │ segment 01 │ segment 1 │        in the order of the hash's top bits
//!   segment    │ position 0 … 2^24 - 1 │                     a position: home bucket, then tag
//!   cursor     63 … the segment's first hash … 24 │ 23 … position … 0
//! ```
//!
//! An item's position does not change when it is displaced to its second bucket or when its segment
//! is split: all items before the position of a cursor have been visited, in whichever segment they
//! are now. Those of a second half are visited again. A page reads the index lines of one segment,
//! and only the items that it visits.

use crate::generation::Moment;
use crate::guard::CacheGuard;
use crate::index::item_bucket::{ItemRef, SLOTS};
use crate::index::key_buckets::{BUCKETS, POSITION_BITS};
use crate::item::Item;

/// Where a [`CacheGuard::scan`] continues. It stays valid after its guard is dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor(u64);

const POSITIONS: u64 = (1 << POSITION_BITS) - 1;

/// Items of one segment.
#[derive(Default)]
pub(crate) struct Page {
    /// The items and their positions, in no particular order.
    pub(crate) items: Vec<(u64, ItemRef)>,
    /// The segment's first hash.
    pub(crate) start: u64,
    /// The first hash after the segment; 0 after the last one.
    pub(crate) next_segment: u64,
}

impl Page {
    /// Moves the items of the next `count` positions to index `at`, and returns the index behind
    /// them. Items of one position are never apart.
    fn arrange(&mut self, at: usize, count: usize) -> usize {
        let rest = &mut self.items[at..];
        if rest.len() <= count {
            return self.items.len();
        }
        let (_, &mut (last, _), _) = rest.select_nth_unstable_by_key(count - 1, |item| item.0);
        let mut end = count;
        for later in count..rest.len() {
            if rest[later].0 == last {
                rest.swap(end, later);
                end += 1;
            }
        }
        at + end
    }

    /// The cursor that continues after a position.
    pub(crate) fn after(&self, position: u64) -> u64 {
        match position {
            POSITIONS => self.next_segment,
            _ => self.start | (position + 1),
        }
    }
}

impl CacheGuard<'_> {
    /// The items of a cursor's segment that follow it.
    pub(crate) fn page(&self, cursor: u64) -> Page {
        if self.cache.is_forked() {
            return Page::default();
        }
        let mut items = Vec::with_capacity(BUCKETS * SLOTS);
        // The entries are read under the lock, because an item that moves from a later bucket to
        // one already read would be missed. The items themselves are visited without it.
        let locked = self.cache.index.lock(&self.pinned, cursor);
        let segment = locked.segment();
        let from = cursor & POSITIONS;
        items.extend(
            segment
                .positions()
                .filter(|(position, _)| *position >= from),
        );
        Page {
            items,
            start: segment.first(cursor),
            next_segment: segment.next_after(cursor).unwrap_or(0),
        }
    }

    /// The items of these that are there.
    pub(crate) fn live<'g>(
        &'g self,
        items: &[(u64, ItemRef)],
        moment: Moment<'_>,
    ) -> impl Iterator<Item = (u64, Item<'g>)> {
        items
            .iter()
            .for_each(|&(_, item)| self.cache.blocks.prefetch(item));
        items.iter().filter_map(move |&(position, item)| {
            let record = self.cache.record(&self.pinned, item);
            (!record.is_gone(moment)).then(|| (position, Item::untouched(record)))
        })
    }

    /// Visits all items of one part of the cache, in no particular order, and returns where to
    /// continue, or `None` after the last part. Start with `Cursor::default()`, and drop the guard
    /// between parts. An item that is in the cache during the whole scan is visited at least once,
    /// in some version.
    ///
    /// ```
    /// use forerun_cache::{Cache, CacheOptions, Cursor};
    ///
    /// let cache = Cache::new(CacheOptions::default())?;
    /// let _ = cache.set("CH/Bern", "46.948,7.447");
    /// let (mut next, mut keys) = (Some(Cursor::default()), Vec::new());
    /// while let Some(from) = next {
    ///     next = cache.pin().scan(from, |item| keys.push(item.key().to_vec()));
    /// }
    /// assert_eq!(keys, [b"CH/Bern"]);
    /// # Ok::<(), forerun_cache::Error>(())
    /// ```
    pub fn scan<'g>(&'g self, from: Cursor, each: impl FnMut(Item<'g>)) -> Option<Cursor> {
        match self.scan_keys(from.0, usize::MAX, each) {
            0 => None,
            next => Some(Cursor(next)),
        }
    }

    /// Visits about `count` items from `cursor` on, and returns the cursor of the next page, or 0
    /// at the end. Begin with 0. Any number is a valid cursor, at any time and in any thread. A
    /// page is empty only if its whole part of the index has no live items.
    ///
    /// An item that is in the cache from the first page to the last is visited at least once, in
    /// some version, whatever else is stored and deleted in the meantime. It may be visited twice
    /// if the index grows.
    ///
    /// ```
    /// use forerun_cache::{Cache, CacheOptions};
    ///
    /// let cache = Cache::new(CacheOptions::default())?;
    /// for town in ["Bern", "Biel", "Thun"] {
    ///     let _ = cache.set(town, "CH");
    /// }
    /// let (mut cursor, mut keys) = (0, Vec::new());
    /// loop {
    ///     cursor = cache.pin().scan_keys(cursor, 2, |item| keys.push(item.key().to_vec()));
    ///     if cursor == 0 {
    ///         break;
    ///     }
    /// }
    /// assert_eq!(keys.len(), 3);
    /// # Ok::<(), forerun_cache::Error>(())
    /// ```
    pub fn scan_keys<'g>(
        &'g self,
        cursor: u64,
        count: usize,
        mut each: impl FnMut(Item<'g>),
    ) -> u64 {
        let mut page = self.page(cursor);
        let moment = self.cache.moment();
        let mut at = 0;
        loop {
            let end = page.arrange(at, count.max(1));
            let chosen = &page.items[at..end];
            let last = chosen.iter().map(|(position, _)| *position).max();
            let mut is_empty = true;
            for (_, item) in self.live(chosen, moment) {
                is_empty = false;
                each(item);
            }
            match last {
                Some(last) if end < page.items.len() => {
                    // If all of these are dead, the next ones are at hand.
                    if !is_empty {
                        return page.after(last);
                    }
                }
                _ => return page.next_segment,
            }
            at = end;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_page_ends_between_two_positions() {
        let item = |n: usize| ItemRef::from_offset((n + 1) * ItemRef::UNIT_BYTES);
        let positions = [7, 2, 9, 2, POSITIONS, 2, 9, 1, POSITIONS];
        let items = positions.into_iter().enumerate();
        for count in 1..=positions.len() {
            let mut page = Page {
                items: items.clone().map(|(n, at)| (at, item(n))).collect(),
                start: 1 << 60,
                next_segment: 2 << 60,
            };
            let (mut at, mut last) = (0, None);
            while at < positions.len() {
                let end = page.arrange(at, count);
                let of_page = || page.items[at..end].iter().map(|item| Some(item.0));
                assert!(end - at >= count.min(positions.len() - at));
                assert!(of_page().min() > Some(last), "a position is on two pages");
                last = of_page().max().unwrap();
                at = end;
            }
            page.items
                .sort_unstable_by_key(|item| item.1.offset_bytes());
            assert!(page.items.iter().map(|item| item.0).eq(positions));
            assert_eq!(
                (page.after(7), page.after(POSITIONS)),
                (1 << 60 | 8, 2 << 60)
            );
        }
    }
}
