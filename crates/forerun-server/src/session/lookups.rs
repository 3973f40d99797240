//! The lookups of a batch, one chunk of keys at a time.
//!
//! ```text
//!   keys    │ returned │ chunk: looked up together            │ not looked up yet
//!   items              │ returned │ next  … FETCH_AHEAD …     │
//!                                   └ values are prefetched this far ahead
//! ```

use forerun_cache::{CacheGuard, Item, names_keyspace};
use forerun_core::arch::prefetch_bytes;

/// Values are prefetched this many answers ahead.
const FETCH_AHEAD: usize = 8;

/// At most this much of a value is prefetched. The CPU's own prefetcher fetches the rest once it
/// detects sequential cache lines.
const FETCH_BYTES_MAX: usize = 512;

/// Maximum number of keys that are looked up together.
const CHUNK_KEYS_MAX: usize = 128;

/// Minimum number of keys that are looked up together, when large values fill the output quickly.
const CHUNK_KEYS_MIN: usize = 8;

/// Number of keys to look up together. It shrinks while values are so large that a few fill the
/// output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkSize(usize);

impl Default for ChunkSize {
    fn default() -> Self {
        Self(CHUNK_KEYS_MAX)
    }
}

impl ChunkSize {
    pub(crate) fn keys(self) -> usize {
        self.0
    }

    /// Adapts to a batch, whose last chunk had so many items, of which some were wasted.
    pub(crate) fn adapt(&mut self, items: usize, wasted: usize) {
        self.0 = if wasted > 0 {
            (items - wasted).max(CHUNK_KEYS_MIN)
        } else {
            (self.0 * 2).min(CHUNK_KEYS_MAX)
        };
    }
}

/// The position of a key in `bytes`. All keys are slices of `bytes`.
pub(super) fn position_of(key: &[u8], bytes: &[u8]) -> usize {
    key.as_ptr().addr() - bytes.as_ptr().addr()
}

/// Iterates over the items of a batch's keys. Looks up one chunk of keys at a time.
pub(crate) struct Lookups<'b, 'g> {
    guard: &'g CacheGuard<'g>,
    keys: &'b [&'b [u8]],
    /// The items of the keys from `first` on.
    items: Vec<Option<Item<'g>>>,
    first: usize,
    next: usize,
    chunk: usize,
    /// Whether keys that name a keyspace have no items.
    hides_keyspaces: bool,
}

impl<'b, 'g> Lookups<'b, 'g> {
    /// Looks up `keys` in chunks of this size. `items` is reused memory.
    pub(crate) fn new(
        guard: &'g CacheGuard<'g>,
        keys: &'b [&'b [u8]],
        items: Vec<Option<Item<'g>>>,
        chunk: usize,
    ) -> Self {
        Self {
            guard,
            keys,
            items,
            first: 0,
            next: 0,
            chunk,
            hides_keyspaces: false,
        }
    }

    /// The same for a client that must not see other keyspaces than the first one.
    pub(crate) fn hiding_keyspaces(self, hides_keyspaces: bool) -> Self {
        Self {
            hides_keyspaces,
            ..self
        }
    }

    /// Number of keys that were returned.
    pub(crate) fn asked(&self) -> u64 {
        self.next as u64
    }

    /// Number of keys that were looked up and not returned.
    pub(crate) fn unused(&self) -> usize {
        self.first + self.items.len() - self.next
    }

    /// The items of the last chunk.
    pub(crate) fn into_items(self) -> Vec<Option<Item<'g>>> {
        self.items
    }

    /// Returns the next key and its item.
    #[inline]
    pub(crate) fn next(&mut self) -> (&'b [u8], Option<Item<'g>>) {
        let key = self.keys[self.next];
        if self.next == self.first + self.items.len() {
            self.load();
        }
        let position = self.next - self.first;
        self.fetch(position + FETCH_AHEAD);
        let item = self.items[position];
        self.next += 1;
        (key, item)
    }

    /// Prefetches the value at `position` of the chunk, because the lookup has read only the key.
    #[inline]
    fn fetch(&self, position: usize) {
        let Some(Some(item)) = self.items.get(position) else {
            return;
        };
        prefetch_bytes(item.value(), FETCH_BYTES_MAX);
    }

    #[inline(never)]
    fn load(&mut self) {
        let count = self.chunk.min(self.keys.len() - self.next);
        self.first = self.next;
        self.items.clear();
        self.items.resize(count, None);
        let keys = &self.keys[self.next..self.next + count];
        let looked_up = self.guard.multi_get_slices(keys, &mut self.items);
        debug_assert!(looked_up.is_ok(), "there are as many items as keys");
        if self.hides_keyspaces {
            for (key, item) in keys.iter().zip(&mut self.items) {
                *item = item.take().filter(|_| !names_keyspace(key));
            }
        }
        for position in 0..FETCH_AHEAD {
            self.fetch(position);
        }
    }

    /// The position of the next key in `bytes`. All keys are slices of `bytes`.
    pub(crate) fn position(&self, bytes: &[u8]) -> usize {
        position_of(self.keys[self.next], bytes)
    }
}
