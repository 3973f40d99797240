//! A page cache for tests.

use std::sync::Arc;

use forerun_core::Pages;

use crate::cache::{CacheOptions, PageCache};

/// A cache of 1 MiB.
pub(crate) fn small_cache() -> Arc<PageCache> {
    let options = CacheOptions {
        capacity_bytes: 1 << 20,
        page_bytes: 16 << 10,
        pages: Pages::Small,
    };
    PageCache::new(options).unwrap()
}
