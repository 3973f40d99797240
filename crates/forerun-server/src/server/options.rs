//! What an operator decides about the server around the sessions.

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use crate::error::Error;
use crate::net::{Listen, TlsOptions};
use crate::settings::Settings;

/// Options of [`Server::start`](crate::Server::start).
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Where to listen; at least one place.
    pub listen: Vec<Listen>,
    /// Worker threads; connections are handed to them in turn.
    pub threads: usize,
    /// Connections at once, from 1. One more is told so and closed.
    pub connection_limit: usize,
    /// Connections that are made and wait to be accepted, a listener; the system may keep fewer (`net.core.somaxconn`).
    pub listen_backlog: u32,
    /// Connections silent for longer are closed; zero for never. Told in seconds.
    pub idle_timeout: Duration,
    /// TLS for the listeners that speak it.
    pub tls: Option<TlsOptions>,
    /// Users that connections must authenticate as: a file of lines `user:password`.
    pub auth_file: Option<PathBuf>,
    /// Where the cache's content is kept while the server is not running.
    pub snapshot: Option<SnapshotOptions>,
    /// How long connections may take to read their last answers when the server drains.
    pub drain_timeout: Duration,
    /// Where metrics are served over HTTP.
    pub metrics: Option<SocketAddr>,
    /// What concerns sessions. Of what `stats settings` reports, the server itself sets what stands here.
    pub settings: Settings,
}

/// The file that a server starts with and leaves behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotOptions {
    /// The file; where there is none, the cache starts empty. It is removed when the server serves and written again when
    /// it ends, so that a server that was killed never brings back what was deleted. Where it could not be written, the
    /// server does not start. [`Server::snapshot`](crate::Server::snapshot) writes another file, whose name ends in
    /// `.live`.
    pub path: PathBuf,
    /// Start empty where the file cannot be used, instead of not at all. The file is kept under a name that ends in
    /// `.bad`.
    pub ignore_bad: bool,
    /// Bytes a second at most that a copy of the running server is written with; as many as its workers leave time for where
    /// it is `None`. The file at the end is written as fast as the disk allows.
    pub live_bytes_per_s: Option<NonZeroU64>,
}

impl ServerOptions {
    /// Options for a server on these places, one thread, memcached's defaults otherwise.
    pub fn new(listen: Vec<Listen>) -> ServerOptions {
        ServerOptions {
            listen,
            threads: 1,
            connection_limit: 1024,
            listen_backlog: 1024,
            idle_timeout: Duration::ZERO,
            tls: None,
            auth_file: None,
            snapshot: None,
            drain_timeout: Duration::from_secs(5),
            metrics: None,
            settings: Settings::default(),
        }
    }

    /// Refuses what cannot be.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let wrong = |option, reason: &str| {
            Err(Error::Option {
                option,
                reason: reason.to_owned(),
            })
        };
        if self.listen.is_empty() {
            return wrong("listen", "there is no place to listen at");
        }
        if self.threads == 0 || self.threads > 1024 {
            return wrong("threads", "between 1 and 1024");
        }
        if self.connection_limit == 0 {
            return wrong("connection limit", "at least 1");
        }
        Ok(())
    }
}
