//! Guards: they let readers use items in place.

use crate::cache::Cache;
use crate::epoch::Pinned;
use crate::expiry::Expiry;
use crate::item::Item;
use crate::lookup::{Batch, Counts, GROUP, Prefetch};
use crate::options::Error;
use forerun_core::arch::{self, dispatch};
use std::fmt;
use std::marker::PhantomData;

/// Keeps the items that are read through it in place. The cache cannot reuse their memory until the
/// guard is dropped, so hold it briefly and drop it before you wait or write.
///
/// Guards may be nested, and each stays on its thread. While a thread holds one, its own stores
/// never wait for memory: a store that would have to evict fails at once
/// ([`StoreResult::OutOfMemory`](crate::StoreResult::OutOfMemory)). A store on another thread waits
/// for the guard for up to a second before it fails.
pub struct CacheGuard<'c> {
    pub(crate) cache: &'c Cache,
    pub(crate) pinned: Pinned<'c>,
    /// A guard counts without a lock, and its pin names its thread, so it stays on one thread.
    not_send: PhantomData<*const ()>,
}

impl fmt::Debug for CacheGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheGuard").finish_non_exhaustive()
    }
}

impl Cache {
    /// How many keys of writes are worth [prefetching](CacheGuard::prefetch) together: more cache
    /// lines than memory fetches at a time, and few enough that none leaves the CPU's cache
    /// before its write.
    pub const PREFETCH_KEYS: usize = 32;

    /// Pins the calling thread for reading.
    ///
    /// ```
    /// use forerun_cache::{Cache, CacheOptions};
    ///
    /// let cache = Cache::new(CacheOptions::default())?;
    /// let _ = cache.set("CH/Bern", "46.948,7.447");
    /// let guard = cache.pin();
    /// let item = guard.get("CH/Bern").unwrap();
    /// assert_eq!(item.value(), b"46.948,7.447"); // in place: nothing is copied
    /// # Ok::<(), forerun_cache::Error>(())
    /// ```
    #[inline]
    pub fn pin(&self) -> CacheGuard<'_> {
        self.flush_if_due();
        CacheGuard::new(self)
    }

    /// Returns a copy of the value of a key. To read values in place or several keys at once, use
    /// [`Cache::pin`].
    ///
    /// ```
    /// use forerun_cache::{Cache, CacheOptions};
    ///
    /// let cache = Cache::new(CacheOptions::default())?;
    /// let _ = cache.set("CH/Bern", "46.948,7.447");
    /// assert_eq!(cache.get("CH/Bern").as_deref(), Some(&b"46.948,7.447"[..]));
    /// # Ok::<(), forerun_cache::Error>(())
    /// ```
    pub fn get(&self, key: impl AsRef<[u8]>) -> Option<Vec<u8>> {
        Some(self.pin().get(key)?.value().to_vec())
    }
}

fn check_lengths(keys: usize, items: usize) -> Result<(), Error> {
    if keys == items {
        Ok(())
    } else {
        Err(Error::Length { keys, items })
    }
}

impl<'c> CacheGuard<'c> {
    #[inline]
    fn new(cache: &'c Cache) -> CacheGuard<'c> {
        CacheGuard {
            cache,
            pinned: cache.epochs.pin(),
            not_send: PhantomData,
        }
    }

    /// Looks up a batch of keys and writes each key's item, or `None`, to the same position of
    /// `items`. A batch may be of any length and may repeat keys. Looking up a few dozen keys in
    /// one batch is several times faster than one by one.
    ///
    /// ```
    /// use forerun_cache::{Cache, CacheOptions};
    ///
    /// let cache = Cache::new(CacheOptions::default())?;
    /// let _ = cache.set("CH/Bern", "46.948,7.447");
    /// let (guard, mut items) = (cache.pin(), [None; 2]);
    /// guard.multi_get(&["CH/Bern", "FR/Lyon"], &mut items)?;
    /// assert_eq!(items[0].unwrap().value(), b"46.948,7.447");
    /// assert!(items[1].is_none());
    /// # Ok::<(), forerun_cache::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Length`] if `items` is not as long as `keys`.
    pub fn multi_get<'g, K: AsRef<[u8]>>(
        &'g self,
        keys: &[K],
        items: &mut [Option<Item<'g>>],
    ) -> Result<(), Error> {
        check_lengths(keys.len(), items.len())?;
        // A group of slices at a time, so that the lookup is compiled once for all types of keys.
        for (keys, items) in keys.chunks(GROUP).zip(items.chunks_mut(GROUP)) {
            let mut group: [&[u8]; GROUP] = [&[]; GROUP];
            for (slice, key) in group.iter_mut().zip(keys) {
                *slice = key.as_ref();
            }
            self.multi_get_slices(&group[..keys.len()], items)?;
        }
        Ok(())
    }

    /// [`multi_get`](CacheGuard::multi_get) of keys that are slices already. Nothing is copied.
    ///
    /// # Errors
    /// [`Error::Length`] if `items` is not as long as `keys`.
    pub fn multi_get_slices<'g>(
        &'g self,
        keys: &[&[u8]],
        items: &mut [Option<Item<'g>>],
    ) -> Result<(), Error> {
        check_lengths(keys.len(), items.len())?;
        if let ([key], [item]) = (keys, &mut *items) {
            *item = self.get_slice(key);
            return Ok(());
        }
        if self.cache.is_forked() {
            items.fill(None);
            return Ok(());
        }
        let batch = Batch {
            cache: self.cache,
            pinned: &self.pinned,
            keys,
            items,
        };
        let counts = dispatch(arch::isa(), batch);
        counts.add_to(self.pinned.counters(), keys.len());
        Ok(())
    }

    /// Fetches what writes of these keys will need, the parts of the index and the items, into the
    /// CPU's cache: the memory accesses of all keys overlap. This changes nothing, and is
    /// worth its time from two writes on, up to [`Cache::PREFETCH_KEYS`]. Drop the guard before you
    /// write.
    ///
    /// ```
    /// use forerun_cache::{Cache, CacheOptions};
    ///
    /// let cache = Cache::new(CacheOptions::default())?;
    /// let places = [("CH/Bern", "46.948,7.447"), ("FR/Lyon", "45.764,4.836")];
    /// cache.pin().prefetch(&places.map(|(key, _)| key.as_bytes()));
    /// for (key, value) in places {
    ///     let _ = cache.set(key, value);
    /// }
    /// assert_eq!(cache.len(), 2);
    /// # Ok::<(), forerun_cache::Error>(())
    /// ```
    pub fn prefetch(&self, keys: &[&[u8]]) {
        if self.cache.is_forked() {
            return;
        }
        let prefetch = Prefetch {
            cache: self.cache,
            pinned: &self.pinned,
            keys,
        };
        dispatch(arch::isa(), prefetch);
    }

    /// Looks up one key.
    #[inline]
    pub fn get(&self, key: impl AsRef<[u8]>) -> Option<Item<'_>> {
        self.get_slice(key.as_ref())
    }

    /// Looks up one key, also for a batch of one. With the arrays of a group of keys, that takes
    /// almost four times as many instructions.
    fn get_slice(&self, key: &[u8]) -> Option<Item<'_>> {
        if self.cache.is_forked() {
            return None;
        }
        let hash = self.cache.hasher.hash(key);
        let mut counts = Counts::default();
        let found = self.cache.find(&self.pinned, hash, key);
        let item = found.and_then(|(_, record)| counts.found(record, self.cache.moment()));
        counts.add_to(self.pinned.counters(), 1);
        item
    }

    /// Looks up one key without leaving a trace: neither the item nor the statistics record the
    /// access.
    ///
    /// ```
    /// use forerun_cache::{Cache, CacheOptions};
    ///
    /// let cache = Cache::new(CacheOptions::default())?;
    /// let _ = cache.set("town", "Oslo");
    /// let guard = cache.pin();
    /// assert_eq!(guard.peek("town").unwrap().value(), b"Oslo");
    /// assert!(!guard.peek("town").unwrap().was_fetched());
    /// assert_eq!(cache.stats().get_hits, 0);
    /// # Ok::<(), forerun_cache::Error>(())
    /// ```
    #[inline]
    pub fn peek(&self, key: impl AsRef<[u8]>) -> Option<Item<'_>> {
        self.peek_slice(key.as_ref())
    }

    fn peek_slice(&self, key: &[u8]) -> Option<Item<'_>> {
        if self.cache.is_forked() {
            return None;
        }
        let hash = self.cache.hasher.hash(key);
        let (_, record) = self.cache.find(&self.pinned, hash, key)?;
        (!record.is_gone(self.cache.moment())).then(|| Item::untouched(record))
    }

    /// Looks up one key and gives the item that it returns a new expiry. This never waits: if
    /// moving the item to others that expire at about the same time would need memory, the item
    /// stays where it is.
    ///
    /// ```
    /// use forerun_cache::{Cache, CacheOptions, Expiry};
    ///
    /// let cache = Cache::new(CacheOptions::default())?;
    /// let _ = cache.set("session", "Ada");
    /// let in_an_hour = Expiry::At(cache.now() + 3600);
    /// let guard = cache.pin();
    /// assert_eq!(guard.get_and_touch("session", in_an_hour).unwrap().expiry(), in_an_hour);
    /// # Ok::<(), forerun_cache::Error>(())
    /// ```
    pub fn get_and_touch(&self, key: impl AsRef<[u8]>, expiry: Expiry) -> Option<Item<'_>> {
        let key = key.as_ref();
        loop {
            let item = self.get(key)?;
            // Otherwise another thread has just replaced it.
            if self.cache.touch_item(&item, expiry) {
                return Some(item);
            }
        }
    }
}
