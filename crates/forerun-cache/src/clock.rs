//! The cache's clock, and the work that is done when it advances.

use crate::cache::Cache;
use forerun_core::sync::time;
use std::sync::atomic::Ordering::Relaxed;

/// Maximum number of blocks of expired items that one call of [`Cache::advance`] empties.
const EXPIRED_BLOCKS_MAX: usize = 4;

impl Cache {
    /// Sets the clock to the time since the cache was created. Call it about once a second, for
    /// example in a thread of its own:
    ///
    /// ```
    /// use forerun_cache::{Cache, CacheOptions};
    /// use std::sync::Arc;
    /// use std::time::Duration;
    ///
    /// let cache = Arc::new(Cache::new(CacheOptions::default())?);
    /// let clock = Arc::downgrade(&cache);
    /// std::thread::spawn(move || {
    ///     while let Some(cache) = clock.upgrade() {
    ///         cache.tick();
    ///         drop(cache);
    ///         std::thread::sleep(Duration::from_secs(1));
    ///     }
    /// });
    /// # Ok::<(), forerun_cache::Error>(())
    /// ```
    pub fn tick(&self) {
        let seconds = time::elapsed(self.started).as_secs();
        self.advance(u32::try_from(seconds + 1).unwrap_or(u32::MAX));
    }

    /// Advances the clock to `second`; an earlier second changes nothing. This also reclaims some
    /// expired items.
    ///
    /// ```
    /// use forerun_cache::{Cache, CacheOptions, Expiry, Store};
    ///
    /// let cache = Cache::new(CacheOptions::default())?;
    /// cache.store(Store { expiry: Expiry::At(cache.now() + 5), ..Store::set("key", "value") });
    /// cache.advance(cache.now() + 5);
    /// assert!(cache.get("key").is_none());
    /// # Ok::<(), forerun_cache::Error>(())
    /// ```
    pub fn advance(&self, second: u32) {
        if self.is_forked() {
            return;
        }
        // Relaxed: this publishes nothing but the number itself.
        self.now.fetch_max(second, Relaxed);
        self.flush_if_due();
        self.reclaim_expired(EXPIRED_BLOCKS_MAX);
        self.collect();
    }
}
