//! The cache.

use crate::guard::Guard;
use crate::item::Item;
use crate::options::{CacheOptions, Error, ITEM_OVERHEAD_BYTES, MAX_KEY_BYTES, WhenFull};
use crate::request::{
    Arithmetic, Counted, Delete, Deleted, Direction, Expiry, Invalidate, Mode, Store, Stored, Value,
};
use crate::stats::CacheStats;
use crate::value::{SharedValue, ValueBuffer};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A bounded map from byte strings to byte strings, with expiry, flags and CAS numbers.
#[derive(Debug)]
pub struct Cache {
    options: CacheOptions,
    entries: Mutex<Entries>,
    now: AtomicU32,
    flush_at: AtomicU32,
    started: Instant,
    get_hits: AtomicU64,
    get_misses: AtomicU64,
}

#[derive(Debug, Default)]
struct Entries {
    map: HashMap<Box<[u8]>, Arc<Entry>>,
    bytes: usize,
    cas: u64,
    stored: u64,
    evictions: u64,
    out_of_memory: u64,
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) key: Box<[u8]>,
    pub(crate) value: Arc<[u8]>,
    pub(crate) flags: u32,
    pub(crate) cas: u64,
    expiry: AtomicU32,
    last_access: AtomicU32,
    fetched: AtomicBool,
    stale: bool,
    claimed: AtomicBool,
}

impl Entry {
    pub(crate) fn expiry(&self) -> u32 {
        self.expiry.load(Relaxed)
    }
    pub(crate) fn is_stale(&self) -> bool {
        self.stale
    }
    pub(crate) fn is_claimed(&self) -> bool {
        self.claimed.load(Relaxed)
    }
    pub(crate) fn size_bytes(&self) -> usize {
        self.key.len() + self.value.len() + ITEM_OVERHEAD_BYTES
    }
    pub(crate) fn to_shared(&self) -> Option<SharedValue> {
        (self.value.len() > 100_000).then(|| SharedValue(Arc::clone(&self.value)))
    }
    pub(crate) fn history(&self) -> (u32, bool) {
        (self.last_access.load(Relaxed), self.fetched.load(Relaxed))
    }
    pub(crate) fn access(&self, now: u32) -> (u32, bool) {
        (
            self.last_access.swap(now, Relaxed),
            self.fetched.swap(true, Relaxed),
        )
    }
    fn is_expired(&self, now: u32) -> bool {
        let expiry = self.expiry();
        expiry != 0 && expiry <= now
    }
}

impl Entries {
    fn live(&mut self, key: &[u8], now: u32) -> Option<Arc<Entry>> {
        let entry = self.map.get(key).cloned()?;
        if entry.is_expired(now) {
            self.remove(key);
            return None;
        }
        Some(entry)
    }
    fn remove(&mut self, key: &[u8]) {
        if let Some(entry) = self.map.remove(key) {
            self.bytes -= entry.size_bytes();
        }
    }
    fn put(
        &mut self,
        mut entry: Entry,
        new_cas: Option<u64>,
        options: &CacheOptions,
    ) -> Option<u64> {
        let size = entry.size_bytes();
        let old = self.map.get(&entry.key).map_or(0, |old| old.size_bytes());
        while self.bytes - old + size > options.memory_limit_bytes {
            if options.when_full == WhenFull::Refuse {
                self.out_of_memory += 1;
                return None;
            }
            let victim = self.map.keys().find(|key| **key != entry.key).cloned();
            self.remove(&victim?);
            self.evictions += 1;
        }
        self.cas += 1;
        let cas = new_cas.unwrap_or(self.cas);
        entry.cas = cas;
        let key = entry.key.clone();
        self.remove(&key);
        self.bytes += size;
        self.stored += 1;
        self.map.insert(key, Arc::new(entry));
        Some(cas)
    }
}

impl Cache {
    /// An empty cache.
    ///
    /// # Errors
    /// [`Error`] if the options make no cache, or the system gives no memory.
    pub fn new(options: CacheOptions) -> Result<Cache, Error> {
        options.check()?;
        Ok(Cache {
            options,
            entries: Mutex::default(),
            now: AtomicU32::new(1),
            flush_at: AtomicU32::new(0),
            started: Instant::now(),
            get_hits: AtomicU64::new(0),
            get_misses: AtomicU64::new(0),
        })
    }

    /// Begins to read.
    pub fn pin(&self) -> Guard<'_> {
        Guard::new(self)
    }

    /// What it was made with.
    pub fn options(&self) -> &CacheOptions {
        &self.options
    }

    /// A copy of the value of a key. For values in place, and for several keys at once, see [`Cache::pin`].
    pub fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        Some(self.pin().get(key)?.value().to_vec())
    }

    /// Stores an item, if its conditions hold.
    pub fn store(&self, store: Store<'_>) -> Stored {
        if self.is_too_large(store.key, store.value.len()) {
            return Stored::TooLarge;
        }
        let now = self.now();
        let mut entries = self.lock();
        let old = entries.live(store.key, now);
        let mut entry = Entry {
            key: store.key.into(),
            value: Arc::default(),
            flags: store.flags,
            cas: 0,
            expiry: store.expiry.to_word().into(),
            last_access: now.into(),
            fetched: false.into(),
            stale: false,
            claimed: store.claimed.into(),
        };
        let value = match &store.value {
            Value::Bytes(bytes) => bytes.to_vec(),
            Value::Parts(parts) => parts.concat(),
            Value::Buffer(buffer) => buffer.bytes.to_vec(),
        };
        match (&old, store.mode) {
            (None, _) if store.compare_cas.is_some() => return Stored::NotFound,
            (None, Mode::Replace) | (Some(_), Mode::Add) => return Stored::NotStored,
            (None, Mode::Append | Mode::Prepend) => match store.vivify {
                Some(expiry) => entry.expiry = expiry.to_word().into(),
                None => return Stored::NotStored,
            },
            _ => {}
        }
        if let (Some(old), Some(cas)) = (&old, store.compare_cas)
            && old.cas != cas
        {
            if !(store.stale_if_older && cas < old.cas) {
                return Stored::Exists;
            }
            entry.stale = true;
            entry.expiry = old.expiry().into();
            entry.claimed = old.is_claimed().into();
        }
        entry.value = match (&old, store.mode) {
            (Some(old), Mode::Append) => [&old.value[..], &value].concat().into(),
            (Some(old), Mode::Prepend) => [&value[..], &old.value].concat().into(),
            _ => value.into(),
        };
        if let (Some(old), Mode::Append | Mode::Prepend) = (&old, store.mode) {
            entry.flags = old.flags;
            entry.expiry = old.expiry().into();
        }
        if self.is_too_large(store.key, entry.value.len()) {
            return Stored::TooLarge;
        }
        match entries.put(entry, store.new_cas, &self.options) {
            Some(cas) => Stored::Stored { cas },
            None => Stored::OutOfMemory,
        }
    }

    /// Room for a value of `len_bytes`, to be filled piece by piece and then stored.
    ///
    /// # Errors
    /// [`Error::ValueTooLarge`] above [`CacheOptions::max_item_bytes`]; [`Error::Full`] if nothing makes room.
    pub fn value_buffer(&self, len_bytes: usize) -> Result<ValueBuffer, Error> {
        let max_item_bytes = self.options.max_item_bytes;
        if len_bytes > max_item_bytes {
            return Err(Error::ValueTooLarge {
                len_bytes,
                max_item_bytes,
            });
        }
        Ok(ValueBuffer::new(len_bytes))
    }

    /// Removes an item.
    pub fn delete(&self, delete: Delete<'_>) -> Deleted {
        let mut entries = self.lock();
        match entries.live(delete.key, self.now()) {
            None => Deleted::NotFound,
            Some(old) if delete.compare_cas.is_some_and(|cas| cas != old.cas) => Deleted::Exists,
            Some(_) => {
                entries.remove(delete.key);
                Deleted::Deleted
            }
        }
    }

    /// Marks an item as stale, or empties it, and keeps it.
    pub fn invalidate(&self, invalidate: Invalidate<'_>) -> Deleted {
        let mut entries = self.lock();
        let Some(old) = entries.live(invalidate.key, self.now()) else {
            return Deleted::NotFound;
        };
        if invalidate.compare_cas.is_some_and(|cas| cas != old.cas) {
            return Deleted::Exists;
        }
        let expiry = invalidate.expiry.map_or(old.expiry(), Expiry::to_word);
        let entry = Entry {
            key: old.key.clone(),
            value: if invalidate.drop_value {
                Arc::default()
            } else {
                old.value.clone()
            },
            flags: if invalidate.drop_value { 0 } else { old.flags },
            cas: 0,
            expiry: expiry.into(),
            last_access: old.last_access.load(Relaxed).into(),
            fetched: old.fetched.load(Relaxed).into(),
            stale: invalidate.mark_stale || old.stale,
            claimed: (old.is_claimed() && !invalidate.mark_stale).into(),
        };
        match entries.put(entry, invalidate.new_cas, &self.options) {
            Some(_) => Deleted::Deleted,
            None => Deleted::OutOfMemory,
        }
    }

    /// Gives an item a new expiry, and tells whether there is one.
    pub fn touch(&self, key: &[u8], expiry: Expiry) -> bool {
        let now = self.now();
        let old = self.lock().live(key, now);
        old.map(|old| old.expiry.store(expiry.to_word(), Relaxed))
            .is_some()
    }

    /// Adds to, or subtracts from, a value that is a number.
    pub fn arithmetic(&self, arithmetic: Arithmetic<'_>) -> Counted {
        let Arithmetic {
            key,
            delta,
            direction,
            compare_cas,
            new_cas,
            expiry,
            initial,
        } = arithmetic;
        let now = self.now();
        let mut entries = self.lock();
        let mut entry = Entry {
            key: key.into(),
            value: Arc::default(),
            flags: 0,
            cas: 0,
            expiry: 0.into(),
            last_access: now.into(),
            fetched: false.into(),
            stale: false,
            claimed: false.into(),
        };
        let (value, is_new) = match entries.live(key, now) {
            None => {
                let Some((value, expiry)) = initial else {
                    return Counted::NotFound;
                };
                entry.value = value.to_string().into_bytes().into();
                entry.expiry = expiry.to_word().into();
                (value, true)
            }
            Some(old) => {
                if compare_cas.is_some_and(|cas| cas != old.cas) {
                    return Counted::Exists;
                }
                let text = std::str::from_utf8(&old.value).ok();
                let number = text.and_then(|text| text.trim_end_matches(' ').parse::<u64>().ok());
                let Some(number) = number else {
                    return Counted::NotANumber;
                };
                let value = match direction {
                    Direction::Increment => number.wrapping_add(delta),
                    Direction::Decrement => number.saturating_sub(delta),
                };
                entry.value = format!("{value:<len$}", len = old.value.len())
                    .into_bytes()
                    .into();
                entry.flags = old.flags;
                entry.expiry = expiry.map_or(old.expiry(), Expiry::to_word).into();
                (value, false)
            }
        };
        let expiry = Expiry::from_word(entry.expiry());
        match entries.put(entry, new_cas, &self.options) {
            Some(cas) => Counted::Counted {
                value,
                cas,
                expiry,
                is_new,
            },
            None => Counted::OutOfMemory,
        }
    }

    /// Claims an item, to bring a new value: `true` for one caller only, until the item is stored or invalidated again. The
    /// others see it in [`Item::is_claimed`] and use what there is.
    pub fn claim(&self, item: &Item<'_>) -> bool {
        !item.entry.claimed.swap(true, Relaxed)
    }

    /// Removes all items there are at second `at` of the clock: at once if it has come, else when it comes. A later call
    /// replaces one that is still to come.
    pub fn flush_all(&self, at: u32) {
        if at <= self.now() {
            self.flush_at.store(0, Relaxed);
            let mut entries = self.lock();
            entries.map.clear();
            entries.bytes = 0;
        } else {
            self.flush_at.store(at, Relaxed);
        }
    }

    /// The second of the cache's clock.
    pub fn now(&self) -> u32 {
        self.now.load(Relaxed)
    }

    /// Sets the clock by the time since the cache was made. Call it about once a second.
    pub fn tick(&self) {
        let seconds = self.started.elapsed().as_secs();
        self.advance(u32::try_from(seconds + 1).unwrap_or(u32::MAX));
    }

    /// Sets the clock to a later second; an earlier one changes nothing. It also does some of the work of reclaiming what has
    /// expired.
    pub fn advance(&self, second: u32) {
        self.now.fetch_max(second, Relaxed);
        let flush_at = self.flush_at.load(Relaxed);
        if flush_at != 0 && flush_at <= self.now() {
            self.flush_all(flush_at);
        }
    }

    /// Counts, and memory.
    pub fn stats(&self) -> CacheStats {
        let entries = self.lock();
        CacheStats {
            items: entries.map.len() as u64,
            item_bytes: entries.bytes as u64,
            stored: entries.stored,
            get_hits: self.get_hits.load(Relaxed),
            get_misses: self.get_misses.load(Relaxed),
            evictions: entries.evictions,
            out_of_memory: entries.out_of_memory,
            limit_bytes: self.options.memory_limit_bytes as u64,
            memory_bytes: entries.bytes as u64,
            block_bytes: entries.bytes as u64,
            ..CacheStats::default()
        }
    }

    pub(crate) fn lookup(&self, key: &[u8]) -> Option<Arc<Entry>> {
        let now = self.now();
        self.lock().live(key, now)
    }

    pub(crate) fn count_get(&self, is_hit: bool) {
        let count = if is_hit {
            &self.get_hits
        } else {
            &self.get_misses
        };
        count.fetch_add(1, Relaxed);
    }

    pub(crate) fn entries(&self) -> Vec<Arc<Entry>> {
        let now = self.now();
        let entries = self.lock();
        let live = entries.map.values().filter(|entry| !entry.is_expired(now));
        live.cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_too_large(&self, key: &[u8], value_bytes: usize) -> bool {
        let item_bytes = key.len() + value_bytes + ITEM_OVERHEAD_BYTES;
        !(1..=MAX_KEY_BYTES).contains(&key.len()) || item_bytes > self.options.max_item_bytes
    }
}
