//! What sessions ask of the server around them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forerun_cache::Cache;
use forerun_core::sync::thread;

use crate::shared::{ConnectionStats, Host};

use super::connections::Connections;

/// The server, as its sessions see it.
pub(crate) struct Around {
    connections: Arc<Connections>,
    /// A thread removes what has expired.
    crawling: Arc<AtomicBool>,
}

impl Around {
    pub(crate) fn new(connections: Arc<Connections>) -> Around {
        Around {
            connections,
            crawling: Arc::default(),
        }
    }
}

impl Host for Around {
    fn connection_stats(&self) -> ConnectionStats {
        self.connections.stats()
    }

    fn describe_connections(&self, line: &mut dyn FnMut(u64, &str, &str)) {
        self.connections.describe(line);
    }

    /// In a thread of its own: it takes about a second for ten million items.
    fn crawl(&self, cache: &Arc<Cache>) -> bool {
        // Relaxed, here and below: whoever finds it false may begin, and no data goes with it.
        if self.crawling.swap(true, Ordering::Relaxed) {
            return false;
        }
        let over = ClearOnDrop(self.crawling.clone());
        let cache = cache.clone();
        let crawl = move || {
            let _over = over;
            let removed = cache.remove_expired();
            tracing::info!(removed, "expired items removed");
        };
        // Where there is no thread the closure is dropped, and with it what says that one is at work.
        let spawned = thread::Builder::new()
            .name("crawler".to_owned())
            .spawn(crawl);
        if let Err(error) = spawned {
            tracing::error!(%error, "no thread to remove expired items");
            return false;
        }
        true
    }

    fn is_crawling(&self) -> bool {
        self.crawling.load(Ordering::Relaxed)
    }
}

/// However the work ends, it is over.
struct ClearOnDrop(Arc<AtomicBool>);

impl Drop for ClearOnDrop {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}
