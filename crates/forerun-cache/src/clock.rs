//! The cache's clock, and the work that is done when it advances.

use crate::cache::Cache;

impl Cache {
    /// Sets the clock to the time since the cache was created. The cache does this itself if its
    /// clock is [automatic](crate::Clock::Automatic); otherwise call it about once a second.
    pub fn tick(&self) {
        if self.is_forked() {
            return;
        }
        self.clock.advance_to_elapsed();
        self.catch_up();
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
        self.clock.advance_to_second(second);
        self.catch_up();
    }

    /// Advances the clock to a millisecond; an earlier one changes nothing.
    ///
    /// ```
    /// use forerun_cache::{Cache, CacheOptions, Clock, Expiry, Store};
    ///
    /// let cache = Cache::new(CacheOptions::default().clock(Clock::Manual))?;
    /// let expiry = Expiry::AtMs(cache.now_ms() + 250);
    /// let _ = cache.store(Store { expiry, ..Store::set("key", "value") });
    /// cache.advance_ms(cache.now_ms() + 249);
    /// assert!(cache.get("key").is_some());
    /// cache.advance_ms(cache.now_ms() + 1);
    /// assert!(cache.get("key").is_none());
    /// # Ok::<(), forerun_cache::Error>(())
    /// ```
    pub fn advance_ms(&self, ms: u64) {
        if self.is_forked() {
            return;
        }
        self.clock.advance_to_ms(ms);
        self.catch_up();
    }

    /// The current millisecond of the cache's clock, which begins at 1000. A
    /// [manual](crate::Clock::Manual) clock stands still until the caller advances it; any other
    /// reads the system's clock, and may be in a later second than [`Cache::now`], whose second
    /// begins when the clock ticks.
    pub fn now_ms(&self) -> u64 {
        self.clock.ms()
    }
}
