//! The cache's clock, and the work that is done when it advances.

use crate::cache::Cache;
use crate::ticker::second_since;
use std::sync::atomic::Ordering::Relaxed;

impl Cache {
    /// Sets the clock to the time since the cache was created. The cache does this itself unless
    /// its clock is [manual](crate::Clock::Manual); then call it about once a second.
    pub fn tick(&self) {
        self.advance(second_since(self.started));
    }

    /// Advances the clock to `second`; an earlier second changes nothing. This also reclaims some
    /// expired items.
    ///
    /// ```
    /// use forerun_cache::{Cache, CacheOptions, Expiry, Store};
    ///
    /// let cache = Cache::new(CacheOptions::default())?;
    /// let expiry = Expiry::At(cache.now() + 5);
    /// let _ = cache.store(Store { expiry, ..Store::set("key", "value") });
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
        self.catch_up();
    }
}
