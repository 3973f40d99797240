//! The handle of a cache, which other objects share with the `Cache` that made it.

use std::ops::Deref;
use std::sync::Arc;

use forerun::process::{Forked, ProcessBound};

/// A cache that only the process that made it may use or free.
pub(crate) type SharedCache = Arc<ProcessBound<forerun::cache::Cache>>;

/// A cache after the check of its process.
pub(crate) struct CacheInUse(SharedCache);

impl CacheInUse {
    /// Checks the process, and sets the cache's clock to the current second.
    pub(crate) fn new(cache: SharedCache) -> Result<CacheInUse, Forked> {
        cache.get()?.tick();
        Ok(CacheInUse(cache))
    }

    /// The handle, for an object that checks the process itself.
    pub(crate) fn into_shared(self) -> SharedCache {
        self.0
    }
}

impl Deref for CacheInUse {
    type Target = forerun::cache::Cache;

    fn deref(&self) -> &forerun::cache::Cache {
        // The process was checked when this was made, and a call stays in one process.
        self.0.constant(|cache| cache)
    }
}
