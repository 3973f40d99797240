//! Answers the questions that sessions ask the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forerun_cache::Cache;

use crate::auth::UserFile;
use crate::log_limit::log_within;
use crate::net::TlsFiles;
use crate::shared::{ConnectionStats, RefreshError, ServerControl};
use crate::system::System;

use super::connections::Connections;
use super::options::OnVerbosity;

/// The server as its sessions see it.
pub(crate) struct RunningServer<S> {
    system: S,
    connections: Arc<Connections>,
    tls: Option<Arc<TlsFiles>>,
    users: Option<Arc<UserFile>>,
    on_verbosity: Option<OnVerbosity>,
    /// Whether a thread is removing expired items.
    crawling: Arc<AtomicBool>,
}

impl<S: System> RunningServer<S> {
    pub(crate) fn new(
        system: S,
        connections: Arc<Connections>,
        tls: Option<Arc<TlsFiles>>,
        users: Option<Arc<UserFile>>,
        on_verbosity: Option<OnVerbosity>,
    ) -> RunningServer<S> {
        RunningServer {
            system,
            connections,
            tls,
            users,
            on_verbosity,
            crawling: Arc::default(),
        }
    }
}

impl<S: System> ServerControl for RunningServer<S> {
    fn connection_stats(&self) -> ConnectionStats {
        let age = |tls: &Arc<TlsFiles>| {
            let age = self.system.now().saturating_duration_since(tls.loaded_at());
            age.as_secs()
        };
        ConnectionStats {
            time_since_server_cert_refresh: self.tls.as_ref().map(age),
            server_cert_not_after_unix_s: self.tls.as_ref().and_then(|tls| tls.not_after_unix_s()),
            ..self.connections.stats()
        }
    }

    fn refresh_certificates(&self) -> Result<(), RefreshError> {
        let tls = self.tls.as_ref().ok_or(RefreshError::NoTls)?;
        let now = self.system.now();
        let now_s = self.connections.seconds(now);
        let limit = &self.connections.log_limits.certificates;
        tls.reload(now).map_err(|error| {
            // The error names files of the server, which clients need not know.
            log_within!(error, limit, now_s, %error, "cannot reload the certificates");
            RefreshError::Unusable
        })?;
        log_within!(info, limit, now_s, "reloaded the certificates");
        Ok(())
    }

    fn knows_user(&self, user: &[u8], password: &[u8]) -> bool {
        let users = self.users.as_ref();
        users.is_some_and(|users| users.knows(user, password))
    }

    fn describe_connections(&self, line: &mut dyn FnMut(u64, &str, &str)) {
        let now_s = self.connections.seconds(self.system.now());
        self.connections.describe(now_s, line);
    }

    /// Runs on its own thread: a crawl takes about a second for ten million items.
    fn crawl(&self, cache: &Arc<Cache>) -> bool {
        // Relaxed, here and below: the thread that finds the flag false may begin, and no data
        // depends on it.
        if self.crawling.swap(true, Ordering::Relaxed) {
            return false;
        }
        let over = ClearOnDrop(self.crawling.clone());
        let cache = cache.clone();
        let connections = self.connections.clone();
        let now_s = connections.seconds(self.system.now());
        let crawl = move || {
            let _over = over;
            let removed = cache.remove_expired();
            let limit = &connections.log_limits.crawl;
            log_within!(info, limit, now_s, removed, "removed expired items");
        };
        // If no thread can be started, the closure is dropped, and with it the marker that a crawl
        // is running.
        if let Err(error) = self.system.spawn("crawler", Box::new(crawl)) {
            tracing::error!(%error, "cannot start a thread to remove expired items");
            return false;
        }
        true
    }

    fn set_verbosity(&self, level: u32) {
        if let Some(on_verbosity) = &self.on_verbosity {
            on_verbosity.call(level);
        }
    }

    fn is_crawling(&self) -> bool {
        self.crawling.load(Ordering::Relaxed)
    }
}

/// Clears the flag when the work ends, also by a panic.
struct ClearOnDrop(Arc<AtomicBool>);

impl Drop for ClearOnDrop {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}
