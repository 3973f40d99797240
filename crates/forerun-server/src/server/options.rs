//! What an operator decides about the server as a whole.

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
    /// Worker threads. Connections are assigned to them in turn.
    pub threads: usize,
    /// The limit of connections, at least 1. A connection beyond it gets an error and is closed.
    pub connection_limit: usize,
    /// Connections that may wait to be accepted, for each listener. The system may keep fewer
    /// (`net.core.somaxconn`).
    pub listen_backlog: u32,
    /// Connections that are silent for longer are closed; zero for never. Whole seconds count.
    pub idle_timeout: Duration,
    /// TLS for the listeners that speak it.
    pub tls: Option<TlsOptions>,
    /// A file of lines `user:password`. Connections must authenticate as one of these users.
    pub auth_file: Option<PathBuf>,
    /// The file that holds the cache's content while the server is not running.
    pub snapshot: Option<SnapshotOptions>,
    /// How long a drain waits for connections to read their last answers.
    pub drain_timeout: Duration,
    /// Where metrics are served over HTTP.
    pub metrics: Option<SocketAddr>,
    /// What concerns sessions. The server overrides the reported settings that these options
    /// decide.
    pub settings: Settings,
}

/// The file that a server starts with and leaves behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotOptions {
    /// The file. Without one, the cache starts empty. The server removes it before it serves, and
    /// writes it again when it ends, so a server that was killed never brings back what was
    /// deleted. If the file cannot be written, the server does not start.
    /// [`Server::snapshot`](crate::Server::snapshot) writes another file, whose name ends in
    /// `.live`.
    pub path: PathBuf,
    /// If the file cannot be used, start with an empty cache instead of failing. The file is kept
    /// under a name that ends in `.bad`.
    pub ignore_bad: bool,
    /// The maximum rate, in bytes per second, at which a copy of the running server is written.
    /// `None`: as fast as the workers leave time for. The file at the end is written as fast as the
    /// disk allows.
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

    /// Refuses invalid options.
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
