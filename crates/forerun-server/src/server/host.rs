//! What sessions ask the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forerun_cache::Cache;

use crate::shared::{ConnectionStats, Host};
use crate::system::System;

use super::connections::Connections;

/// The server, as its sessions see it.
pub(crate) struct ServerHost<S> {
    system: S,
    connections: Arc<Connections>,
    /// A thread removes what has expired.
    crawling: Arc<AtomicBool>,
}

impl<S: System> ServerHost<S> {
    pub(crate) fn new(system: S, connections: Arc<Connections>) -> ServerHost<S> {
        ServerHost {
            system,
            connections,
            crawling: Arc::default(),
        }
    }
}

impl<S: System> Host for ServerHost<S> {
    fn connection_stats(&self) -> ConnectionStats {
        self.connections.stats()
    }

    fn describe_connections(&self, line: &mut dyn FnMut(u64, &str, &str)) {
        let now_s = self.connections.seconds(self.system.now());
        self.connections.describe(now_s, line);
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
        // Where there is no thread the closure is dropped, and with it what says that one is at
        // work.
        if let Err(error) = self.system.spawn("crawler", Box::new(crawl)) {
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
