//! Reading: what a guard keeps in place, it may hand out.

use crate::blocks::record::State;
use crate::cache::Cache;
use crate::epoch::Pinned;
use crate::item::Item;
use crate::lookup::Batch;
use crate::request::Expiry;
use crate::stats::Count;
use forerun_core::arch::{self, dispatch};
use std::fmt;
use std::marker::PhantomData;

/// Keeps in place what is read through it, memory that the cache can use for nothing else meanwhile: hold it for a turn, and
/// drop it before you wait and before you write.
///
/// Guards may be nested. A guard stays in its thread. While a thread holds one, its own stores never wait for memory: where they
/// would have to evict, they are refused at once ([`Stored::OutOfMemory`](crate::Stored::OutOfMemory)). Other threads' stores
/// wait for the guard up to a second before they are refused.
pub struct Guard<'c> {
    cache: &'c Cache,
    pinned: Pinned<'c>,
    /// It counts without a lock, and its pin says whose it is: it stays in one thread.
    not_send: PhantomData<*const ()>,
}

impl fmt::Debug for Guard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").finish_non_exhaustive()
    }
}

/// Where a [`Guard::scan`] goes on. It stays valid when its guard is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor(u64);

impl<'c> Guard<'c> {
    #[inline]
    pub(crate) fn new(cache: &'c Cache) -> Guard<'c> {
        Guard {
            cache,
            pinned: cache.epochs.pin(),
            not_send: PhantomData,
        }
    }

    /// The items of a batch of keys, in their order; `None` where there is none. Duplicates are welcome, and the batch may be
    /// of any length; one of some dozens is answered several times faster than its keys one by one.
    ///
    /// # Panics
    /// If `items` is not as long as `keys`.
    pub fn multi_get<'g>(&'g self, keys: &[&[u8]], items: &mut [Option<Item<'g>>]) {
        assert_eq!(keys.len(), items.len(), "a place for each key");
        if self.cache.is_forked() {
            return items.fill(None);
        }
        let batch = Batch {
            cache: self.cache,
            pinned: &self.pinned,
            keys,
            items,
        };
        let counts = dispatch(arch::isa(), batch);
        let counters = self.pinned.counters();
        counters.add(Count::GetHits, counts.hits);
        counters.add(Count::GetMisses, keys.len() as u64 - counts.hits);
        counters.add(Count::GetExpired, counts.expired);
    }

    /// The item of a key.
    pub fn get(&self, key: &[u8]) -> Option<Item<'_>> {
        if self.cache.is_forked() {
            return None;
        }
        let hash = self.cache.hasher.hash(key);
        let counters = self.pinned.counters();
        if let Some((_, record)) = self.cache.find(&self.pinned, hash, key) {
            let moment = self.cache.moment();
            match record.state(moment) {
                State::Live(tags) => {
                    counters.add(Count::GetHits, 1);
                    return Some(Item::accessed(record, tags, moment.now));
                }
                State::Expired => counters.add(Count::GetExpired, 1),
                State::Flushed => {}
            }
        }
        counters.add(Count::GetMisses, 1);
        None
    }

    /// The item of a key, without a trace: neither the item nor the statistics know that it was asked for.
    pub fn peek(&self, key: &[u8]) -> Option<Item<'_>> {
        if self.cache.is_forked() {
            return None;
        }
        let hash = self.cache.hasher.hash(key);
        let (_, record) = self.cache.find(&self.pinned, hash, key)?;
        (!record.is_gone(self.cache.moment())).then(|| Item::untouched(record))
    }

    /// The item of a key, whose expiry is a new one from now on. Where moving the item to others that expire at about the same
    /// time would need memory, it stays where it is: this never waits.
    pub fn get_and_touch(&self, key: &[u8], expiry: Expiry) -> Option<Item<'_>> {
        self.cache.touch(key, expiry);
        self.get(key)
    }

    /// Visits items, in no order: all of some part of the cache. It gives where to go on, `None` when it was the last part.
    /// Begin with `Cursor::default()`, and drop the guard between the parts. An item that was stored before the first part and is
    /// still there at the last is visited, in some version, at least once.
    pub fn scan<'g>(&'g self, from: Cursor, mut each: impl FnMut(Item<'g>)) -> Option<Cursor> {
        if self.cache.is_forked() {
            return None;
        }
        let (items, next, moment) = {
            // Under the lock, since an item that moves from a bucket still to come to one already read would be missed. The items
            // themselves are visited without it.
            let locked = self.cache.index.lock(&self.pinned, from.0);
            let segment = locked.segment();
            let items: Vec<_> = segment.entries().map(|(_, entry)| entry.item).collect();
            (items, segment.next_after(from.0), self.cache.moment())
        };
        items
            .iter()
            .for_each(|&item| self.cache.blocks.prefetch(item));
        for item in items {
            let record = self.cache.record(&self.pinned, item);
            if !record.is_gone(moment) {
                each(Item::untouched(record));
            }
        }
        next.map(Cursor)
    }
}
