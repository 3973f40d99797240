//! Another memory limit while the cache is in use.
//!
//! ```text
//!   raise   set the limit: blocks behind the last one used are there to be touched
//!   lower   set the limit: nothing new is charged ── shrink, in steps: evict ▶ grace period ▶ give back to the system
//! ```

use crate::cache::Cache;
use crate::options::Error;
use crate::sync::unpoisoned;

/// Blocks that a cache needs beside its index and what is fixed.
const BLOCKS_MIN: usize = 8;

impl Cache {
    /// The limit of all memory, as it is set now.
    pub fn memory_limit_bytes(&self) -> usize {
        self.budget.limit_bytes()
    }

    /// Sets the limit of all memory. A higher one can be made use of at once. For a lower one, call [`Cache::shrink`] until
    /// it says that all is done; until then the memory is still held, and new items take the place of others.
    ///
    /// # Errors
    /// [`Error::MemoryLimitTooLarge`] above
    /// [`memory_limit_max_bytes`](crate::CacheOptions::memory_limit_max_bytes), [`Error::MemoryLimitTooSmall`] for one
    /// that the index, which never shrinks, would take most of, [`Error::ItemLimitTooLarge`] for one in which an item of
    /// the largest size would not fit.
    ///
    /// ```
    /// use forerun_cache::{Cache, CacheOptions};
    ///
    /// let options = CacheOptions { memory_limit_max_bytes: 1 << 30, ..CacheOptions::default() };
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
        let must_stay_bytes = (stats.index_bytes + stats.fixed_bytes) as usize;
        if limit_bytes < 2 * must_stay_bytes + BLOCKS_MIN * self.blocks.len_bytes() {
            return Err(Error::MemoryLimitTooSmall { limit_bytes });
        }
        self.budget.set_limit_bytes(limit_bytes);
        Ok(())
    }

    /// Goes through about `quantum_bytes` to give memory back to the system, if more is held than the limit allows. `true`:
    /// there is more to do; call again, after a while if you like. A cache that [refuses](crate::WhenFull::Refuse) evicts nothing: it gives
    /// back what is free.
    pub fn shrink(&self, quantum_bytes: usize) -> bool {
        if self.is_forked() {
            return false;
        }
        let mut done_bytes = 0;
        while self.budget.excess_bytes() > 0 && done_bytes < quantum_bytes {
            done_bytes += self.blocks.len_bytes();
            self.collect();
            if self.blocks.release_one() {
                continue;
            }
            if self.blocks.has_unreleasable() {
                // The system takes no memory back: evicting more is in vain.
                return false;
            }
            // What waits for readers is as good as given back; evicting more meanwhile would be too much.
            let waiting_bytes = self.limbo.waiting_bytes();
            if waiting_bytes >= self.budget.excess_bytes() {
                return true;
            }
            let mut evictor = unpoisoned(self.evictor.lock());
            if !self.evict(&mut evictor, self.blocks.len_bytes()) {
                return waiting_bytes > 0;
            }
        }
        self.budget.excess_bytes() > 0
    }
}
