//! What tests of runs need.

use std::sync::Arc;

use crate::cache::PageCache;

/// A small cache.
pub(crate) fn cache() -> Arc<PageCache> {
    Arc::new(PageCache)
}
