//! Changes the memory limit while the cache is in use.
//!
//! ```text
//!   raise   set the limit: more blocks may be charged
//!   lower   set the limit: nothing new is charged ── shrink, in steps: evict ▶ grace period ▶ return to the system
//! ```

use crate::cache::Cache;
use crate::options::Error;
use crate::sync::unpoisoned;

/// Blocks that a cache needs in addition to its index and fixed memory.
const BLOCKS_MIN: usize = 8;

impl Cache {
    /// The current memory limit.
    pub fn memory_limit_bytes(&self) -> usize {
        self.budget.limit_bytes()
    }

    /// Sets the memory limit. A higher limit takes effect at once. After lowering the limit, call
    /// [`Cache::shrink`] until it returns `false`. Until then the memory is still held, and new
    /// items replace others.
    ///
    /// # Errors
    /// [`Error::MemoryLimitTooLarge`] above
    /// [`memory_limit_max_bytes`](crate::CacheOptions::memory_limit_max_bytes),
    /// [`Error::MemoryLimitTooSmall`] if the index, which never shrinks, would take most of it,
    /// [`Error::ItemLimitTooLarge`] if an item of the largest size would not fit.
    ///
    /// ```
    /// use forerun_cache::{Cache, CacheOptions};
    ///
    /// let options = CacheOptions::default().memory_limit_max_bytes(1 << 30);
    /// let cache = Cache::new(options)?;
    /// cache.set_memory_limit(256 << 20)?;
    /// cache.set_memory_limit(16 << 20)?;
    /// while cache.shrink(1 << 20) {}
    /// assert!(cache.stats().memory_bytes <= 16 << 20);
    /// # Ok::<(), forerun_cache::Error>(())
    /// ```
    pub fn set_memory_limit(&self, limit_bytes: usize) -> Result<(), Error> {
        self.check_process()?;
        let max_bytes = self.options().memory_limit_max_bytes;
        if limit_bytes > max_bytes {
            return Err(Error::MemoryLimitTooLarge {
                limit_bytes,
                max_bytes,
            });
        }
        self.options().check_limit(limit_bytes)?;
        let stats = self.stats();
        let unshrinkable_bytes = (stats.index_bytes + stats.fixed_bytes) as usize;
        if limit_bytes < 2 * unshrinkable_bytes + BLOCKS_MIN * self.blocks.len_bytes() {
            return Err(Error::MemoryLimitTooSmall { limit_bytes });
        }
        self.budget.set_limit_bytes(limit_bytes);
        Ok(())
    }

    /// Goes through about `quantum_bytes` to return memory to the system, if more is held than the
    /// limit allows. `true`: there is more to do, now or later. A cache that
    /// [refuses](crate::WhenFull::Refuse) new items when full evicts nothing here; it only returns
    /// free memory.
    ///
    /// ```
    /// use forerun_cache::{Cache, CacheOptions};
    ///
    /// let cache = Cache::new(CacheOptions::default().memory_limit_bytes(64 << 20))?;
    /// cache.set_memory_limit(32 << 20)?;
    /// while cache.shrink(1 << 20) {} // in a background thread, with pauses
    /// assert!(cache.stats().memory_bytes <= 32 << 20);
    /// # Ok::<(), forerun_cache::Error>(())
    /// ```
    pub fn shrink(&self, quantum_bytes: usize) -> bool {
        if self.is_forked() {
            return false;
        }
        let mut visited_bytes = 0;
        while self.budget.excess_bytes() > 0 && visited_bytes < quantum_bytes {
            visited_bytes += self.blocks.len_bytes();
            self.collect();
            if self.blocks.release_one() {
                continue;
            }
            if self.blocks.has_unreleasable() {
                // The system takes no memory back, so evicting more would not help.
                return false;
            }
            // Garbage that waits for readers will be returned soon. Evicting more before that would
            // overshoot.
            let waiting_bytes = self.limbo.waiting_bytes();
            if waiting_bytes >= self.budget.excess_bytes() {
                return true;
            }
            let mut current = unpoisoned(self.evacuation.lock());
            if !self.evict(&mut current, self.blocks.len_bytes()) {
                return waiting_bytes > 0;
            }
        }
        self.budget.excess_bytes() > 0
    }
}
