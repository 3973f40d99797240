//! Reading: what a guard keeps in place, it may hand out.

use crate::cache::{Cache, Entry};
use crate::item::Item;
use crate::request::Expiry;
use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

/// Keeps in place what is read through it, memory that the cache can use for nothing else meanwhile: hold it for a turn, and
/// drop it before you wait, and before you store something large.
///
/// Guards may be nested. A guard belongs to one thread at a time.
pub struct Guard<'c> {
    cache: &'c Cache,
    kept: RefCell<Vec<Arc<Entry>>>,
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
    pub(crate) fn new(cache: &'c Cache) -> Guard<'c> {
        Guard {
            cache,
            kept: RefCell::default(),
        }
    }

    /// The items of a batch of keys, in their order; `None` where there is none. Duplicates are welcome, and the batch may be
    /// of any length; one of some dozens is answered several times faster than its keys one by one.
    ///
    /// # Panics
    /// If `items` is not as long as `keys`.
    pub fn multi_get<'g>(&'g self, keys: &[&[u8]], items: &mut [Option<Item<'g>>]) {
        assert_eq!(keys.len(), items.len(), "a place for each key");
        for (key, item) in keys.iter().zip(items) {
            *item = self.get(key);
        }
    }

    /// The item of a key.
    pub fn get(&self, key: &[u8]) -> Option<Item<'_>> {
        let found = self.cache.lookup(key);
        self.cache.count_get(found.is_some());
        let entry = self.keep(found?);
        let (last_access, was_fetched) = entry.access(self.cache.now());
        Some(Item {
            entry,
            last_access,
            was_fetched,
        })
    }

    /// The item of a key, without a trace: neither the item nor the statistics know that it was asked for.
    pub fn peek(&self, key: &[u8]) -> Option<Item<'_>> {
        let entry = self.keep(self.cache.lookup(key)?);
        Some(self.untouched(entry))
    }

    /// The item of a key, whose expiry is a new one from now on.
    pub fn get_and_touch(&self, key: &[u8], expiry: Expiry) -> Option<Item<'_>> {
        self.cache.touch(key, expiry);
        self.get(key)
    }

    /// Visits items, in no order: all of some part of the cache. It gives where to go on, `None` when it was the last part.
    /// Begin with `Cursor::default()`, and drop the guard between the parts. An item that was stored before the first part and is
    /// still there at the last is visited, in some version, at least once.
    pub fn scan<'g>(&'g self, from: Cursor, mut each: impl FnMut(Item<'g>)) -> Option<Cursor> {
        debug_assert_eq!(from, Cursor(0));
        for entry in self.cache.entries() {
            each(self.untouched(self.keep(entry)));
        }
        None
    }

    fn untouched<'g>(&'g self, entry: &'g Entry) -> Item<'g> {
        let (last_access, was_fetched) = entry.history();
        Item {
            entry,
            last_access,
            was_fetched,
        }
    }

    #[allow(unsafe_code)]
    fn keep(&self, entry: Arc<Entry>) -> &Entry {
        let pointer = Arc::as_ptr(&entry);
        self.kept.borrow_mut().push(entry);
        // SAFETY: the guard owns a share, which it drops with itself only.
        unsafe { &*pointer }
    }
}
