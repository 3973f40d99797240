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

use crate::blocks::item_layout::Record;
use crate::generation::Moment;
use crate::guard::CacheGuard;
use crate::index::item_bucket::ItemRef;
use crate::index::key_buckets::POSITION_BITS;
use crate::item::Item;
use forerun_core::sync::random_seed;

/// Where a [`CacheGuard::scan`] continues. It stays valid after its guard is dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor(u64);

const POSITIONS: u64 = (1 << POSITION_BITS) - 1;

/// How many slots [`CacheGuard::random`] draws before it takes the next item that it finds.
const DRAWS: usize = 32;

/// Items of one segment.
pub(crate) struct Page {
    /// The items and their positions, in no particular order.
    pub(crate) items: Vec<(u64, ItemRef)>,
    /// The segment's first hash.
    pub(crate) start: u64,
    /// The first hash after the segment; 0 after the last one.
    pub(crate) next_segment: u64,
}

impl Page {
    /// The cursor that continues after a position.
    pub(crate) fn after(&self, position: u64) -> u64 {
        match position {
            POSITIONS => self.next_segment,
            _ => self.start | (position + 1),
        }
    }
}

impl CacheGuard<'_> {
    /// The `count` items that follow a cursor, or those that are left of its segment, and where to
    /// continue, or 0 at the end. Items of one position are never apart.
    pub(crate) fn page(&self, cursor: u64, count: usize) -> (Page, u64) {
        if self.cache.is_forked() {
            let items = Vec::new();
            return (
                Page {
                    items,
                    start: 0,
                    next_segment: 0,
                },
                0,
            );
        }
        let mut page = {
            // The entries are read under the lock, because an item that moves from a later bucket
            // to one already read would be missed. The items themselves are visited without it.
            let locked = self.cache.index.lock(&self.pinned, cursor);
            let segment = locked.segment();
            let from = cursor & POSITIONS;
            let items = segment
                .positions()
                .filter(|(position, _)| *position >= from);
            Page {
                items: items.collect(),
                start: segment.first(cursor),
                next_segment: segment.next_after(cursor).unwrap_or(0),
            }
        };
        let items = &mut page.items;
        let count = count.max(1);
        if items.len() <= count {
            let next = page.next_segment;
            return (page, next);
        }
        let (_, &mut (last, _), _) = items.select_nth_unstable_by_key(count - 1, |item| item.0);
        items.retain(|(position, _)| *position <= last);
        let next = page.after(last);
        (page, next)
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
    /// at the end. Begin with 0. Any number is a valid cursor, at any time and in any thread, and a
    /// page may be empty.
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
        let (page, next) = self.page(cursor, count);
        for (_, item) in self.live(&page.items, self.cache.moment()) {
            each(item);
        }
        next
    }

    /// An item drawn at random, each about as likely as any other; `None` if there is none. It
    /// leaves no trace of a read.
    ///
    /// ```
    /// use forerun_cache::{Cache, CacheOptions};
    ///
    /// let cache = Cache::new(CacheOptions::default())?;
    /// assert!(cache.pin().random().is_none());
    /// let _ = cache.set("town", "Oslo");
    /// assert_eq!(cache.pin().random().unwrap().key(), b"town");
    /// # Ok::<(), forerun_cache::Error>(())
    /// ```
    pub fn random(&self) -> Option<Item<'_>> {
        if self.cache.is_forked() {
            return None;
        }
        let moment = self.cache.moment();
        let live = |item: ItemRef| -> Option<Record<'_>> {
            let record = self.cache.record(&self.pinned, item);
            (!record.is_gone(moment)).then_some(record)
        };
        let directory = self.cache.index.directory(&self.pinned);
        // Slots are drawn until one has an item, so that the neighbours of empty slots are not more
        // likely than others.
        let drawn = (0..DRAWS).find_map(|_| {
            let hash = random_seed();
            live(directory.segment(hash).item_in_slot(hash)?)
        });
        if let Some(record) = drawn {
            return Some(Item::untouched(record));
        }
        // There are few. Every segment once, from a random one on.
        let from = random_seed();
        let (mut at, mut wrapped) = (from, false);
        loop {
            let segment = directory.segment(at);
            let found = segment.entries().find_map(|(_, entry)| live(entry.item));
            if let Some(record) = found {
                return Some(Item::untouched(record));
            }
            at = match segment.next_after(at) {
                Some(next) => next,
                None if wrapped => return None,
                None => {
                    wrapped = true;
                    0
                }
            };
            if wrapped && at > from {
                return None;
            }
        }
    }
}
