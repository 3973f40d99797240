//! Visits all items in bounded steps, so that a caller who copies them to a slow device holds no
//! guard in the meantime.
//!
//! ```text
//!   part of the index (about 1,500 items)   │ visited in place, up to the step's bytes │ keys of the next, copied │ later
//!   later steps                                                                          └▶ looked up again by key
//! ```

use crate::cache::Cache;
use crate::item::Item;

/// No more keys are copied than fit here, and one of any length.
const KEYS_BYTES: usize = 256 << 10;

/// Iterates over the items of a cache in bounded steps. It holds no guard between steps.
///
/// An item that is in the cache during the whole crawl is visited at least once, in some version.
///
/// ```
/// use forerun_cache::{Cache, CacheOptions, Crawler};
///
/// let cache = Cache::new(CacheOptions::default())?;
/// let _ = cache.set(b"CH/Bern", b"46.948,7.447");
/// let mut crawler = Crawler::default();
/// let mut copied = Vec::new();
/// while crawler.step(&cache, 256 << 10, |item| copied.push(item.value().to_vec())) {
///     // No guard is held here: write the copies to a slow disk.
/// }
/// assert_eq!(copied, [b"46.948,7.447"]);
/// # Ok::<(), forerun_cache::Error>(())
/// ```
#[derive(Debug)]
pub struct Crawler {
    /// The cursor of the next part of the index.
    next: Option<u64>,
    /// Keys of the current part whose items are still to be visited, each preceded by its length in
    /// two bytes.
    keys: Vec<u8>,
    /// Where the next key begins.
    at: usize,
}

impl Default for Crawler {
    fn default() -> Crawler {
        Crawler {
            next: Some(0),
            keys: Vec::new(),
            at: 0,
        }
    }
}

impl Crawler {
    /// Visits items until they add up to `step_bytes` or a part of the index is finished. The last
    /// item may exceed the limit. Returns whether more steps follow.
    pub fn step(
        &mut self,
        cache: &Cache,
        step_bytes: usize,
        mut each: impl FnMut(Item<'_>),
    ) -> bool {
        let mut bytes = 0;
        let guard = cache.pin();
        if self.at == self.keys.len() {
            self.keys.clear();
            self.at = 0;
            let Some(cursor) = self.next else {
                return false;
            };
            let (mut page, next) = guard.page(cursor, usize::MAX);
            self.next = (next != 0).then_some(next);
            page.items.sort_unstable_by_key(|(position, _)| *position);
            let mut last = None;
            for (position, item) in guard.live(&page.items, cache.moment()) {
                if let Some(last) = last.filter(|last| *last != position)
                    && self.keys.len() >= KEYS_BYTES
                {
                    self.next = Some(page.after(last));
                    break;
                }
                last = Some(position);
                if bytes < step_bytes {
                    bytes += item.size_bytes();
                    each(item);
                } else {
                    // A key has at most 65,535 bytes.
                    let len = item.key().len() as u16;
                    self.keys.extend_from_slice(&len.to_le_bytes());
                    self.keys.extend_from_slice(item.key());
                }
            }
        } else {
            while bytes < step_bytes
                && let Some(key) = self.next_key()
            {
                let Some(item) = guard.peek(key) else {
                    continue;
                };
                bytes += item.size_bytes();
                each(item);
            }
        }
        self.at < self.keys.len() || self.next.is_some()
    }

    fn next_key(&mut self) -> Option<&[u8]> {
        let (len, rest) = self.keys.get(self.at..)?.split_first_chunk()?;
        let key = rest.get(..usize::from(u16::from_le_bytes(*len)))?;
        self.at += len.len() + key.len();
        Some(key)
    }
}
