//! Answers the questions that sessions ask the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forerun_cache::Cache;

use crate::shared::{ConnectionStats, ServerControl};
use crate::system::System;

use super::connections::Connections;

/// The server as its sessions see it.
pub(crate) struct ServerHost<S> {
    system: S,
    connections: Arc<Connections>,
    /// Whether a thread is removing expired items.
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

impl<S: System> ServerControl for ServerHost<S> {
    fn connection_stats(&self) -> ConnectionStats {
        self.connections.stats()
    }

    fn describe_connections(&self, line: &mut dyn FnMut(u64, &str, &str)) {
        let now_s = self.connections.seconds(self.system.now());
        self.connections.describe(now_s, line);
    }

    /// Runs on its own thread: a crawl takes about a second for ten million items.
    fn crawl(&self, cache: &Arc<Cache>) -> bool {
        // Relaxed, here and below: the thread that finds it false may begin, and no data depends on
        // it.
        if self.crawling.swap(true, Ordering::Relaxed) {
            return false;
        }
        let over = ClearOnDrop(self.crawling.clone());
        let cache = cache.clone();
        let crawl = move || {
            let _over = over;
            let removed = cache.remove_expired();
            tracing::info!(removed, "removed expired items");
        };
        // If no thread can be started, the closure is dropped, and with it the marker that a crawl
        // is running.
        if let Err(error) = self.system.spawn("crawler", Box::new(crawl)) {
            tracing::error!(%error, "cannot start a thread to remove expired items");
            return false;
        }
        true
    }

    fn is_crawling(&self) -> bool {
        self.crawling.load(Ordering::Relaxed)
    }
}

/// Clears the flag however the work ends.
struct ClearOnDrop(Arc<AtomicBool>);

impl Drop for ClearOnDrop {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}
