//! Options of a server.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::address::Listen;
use crate::error::Error;
use crate::net::TlsOptions;
use crate::settings::Settings;

/// Options of [`Server::start`](crate::Server::start).
///
/// ```
/// use forerun_server::{Listen, ServerOptions, SnapshotOptions};
/// use std::time::Duration;
///
/// let options = ServerOptions::new(Listen::parse("127.0.0.1:11211", 11211)?)
///     .threads(4)
///     .idle_timeout(Duration::from_secs(600))
///     .snapshot(SnapshotOptions::new("cache.snapshot"));
/// assert_eq!(options.connection_limit, 1024);
/// # Ok::<(), forerun_server::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerOptions {
    /// Listen addresses, at least one, each for clients of one protocol
    /// ([`Listen::with_protocol`]). [`ServerOptions::new`] sets them.
    pub listen: Vec<Listen>,
    /// Worker threads, 1 to 1,024. The server assigns connections to them in turn. Default: 1.
    pub threads: usize,
    /// Maximum number of connections, at least 1. A connection beyond it gets an error and is
    /// closed. Default: 1,024.
    pub connection_limit: usize,
    /// Maximum number of connections that wait to be accepted, per listener. The system may allow
    /// fewer (`net.core.somaxconn`). Default: 1,024.
    pub listen_backlog: u32,
    /// The server closes idle connections after this time; zero means never. Fractions of a second
    /// are ignored. Default: zero.
    pub idle_timeout: Duration,
    /// The server closes a connection that has not completed the handshake of TLS or UCX, or has
    /// not authenticated, this long after it was accepted; zero means never. Fractions of a second
    /// are ignored. Default: 60 seconds.
    pub handshake_timeout: Duration,
    /// The limit on the memory of all connections' own buffers, in addition to the cache's limit.
    /// Near the limit, the server does not read from connections whose readers are slow, and closes
    /// connections that hold memory and make no progress. At the limit, it closes a connection that
    /// needs more memory at once. Default: an eighth of the cache's memory limit, but at least 16
    /// MiB.
    pub buffer_limit_bytes: Option<usize>,
    /// TLS for the listeners that use it. Default: none; all listeners speak plain text.
    pub tls: Option<TlsOptions>,
    /// A file with lines `user:password`. Connections must authenticate as one of these users.
    /// Default: none; no connection authenticates.
    pub auth_file: Option<PathBuf>,
    /// The file that keeps the cache's content while the server is down. Default: none.
    pub snapshot: Option<SnapshotOptions>,
    /// How long the listeners stay open after a drain was requested, while `/health/ready` of the
    /// metrics server already answers 503. A load balancer needs this time to send clients
    /// elsewhere. Default: zero.
    pub drain_delay: Duration,
    /// How long a drain waits for clients to read their last answers. Default: 5 seconds.
    pub drain_timeout: Duration,
    /// The address where metrics are served over HTTP. Default: none.
    pub metrics: Option<SocketAddr>,
    /// The server calls this when a client sends the command `verbosity`. The method of the same
    /// name sets it. Default: none; the command then only changes what `stats settings` reports.
    pub on_verbosity: Option<OnVerbosity>,
    /// Settings of sessions.
    pub settings: Settings,
}

/// A function that a server calls with the level of `verbosity`.
#[derive(Clone)]
pub struct OnVerbosity(Arc<dyn Fn(u32) + Send + Sync>);

impl OnVerbosity {
    pub(crate) fn call(&self, level: u32) {
        (self.0)(level);
    }
}

impl fmt::Debug for OnVerbosity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnVerbosity")
    }
}

/// The file that a server loads at startup and writes at shutdown.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotOptions {
    /// The file. If it does not exist, the cache starts empty. The server removes the file before
    /// it serves clients and writes it again at shutdown, so a killed server never brings back
    /// deleted items. If the file cannot be written, the server does not start.
    /// [`Server::snapshot`](crate::Server::snapshot) writes a different file, whose name ends in
    /// `.live`.
    pub path: PathBuf,
    /// If the file cannot be used, start with an empty cache instead of failing. The server renames
    /// the file: it appends `.bad`. Default: `false`.
    pub ignore_bad: bool,
    /// If the file is older than this, the server logs so and starts with an empty cache. Clients
    /// cannot delete anything while the server is down, so an old file may hold values that were
    /// changed since. Default: any age.
    pub max_age: Option<Duration>,
    /// The maximum rate, in bytes per second, at which a running server writes a copy. The default
    /// `None` means as fast as possible without delaying the workers. The server always writes the
    /// file at shutdown at the speed of the disk.
    pub live_bytes_per_s: Option<NonZeroU64>,
    /// The interval at which a running server writes a copy. Fractions of a second are rounded up.
    /// Default: never.
    pub live_interval: Option<Duration>,
}

forerun_core::setters! {
    ServerOptions {
        listen: Vec<Listen>,
        threads: usize,
        connection_limit: usize,
        listen_backlog: u32,
        idle_timeout: Duration,
        handshake_timeout: Duration,
        drain_delay: Duration,
        drain_timeout: Duration,
        settings: Settings,
        buffer_limit_bytes: Option<usize>,
    } into {
        tls: Option<TlsOptions>,
        auth_file: Option<PathBuf>,
        snapshot: Option<SnapshotOptions>,
        metrics: Option<SocketAddr>,
    }
}

forerun_core::setters! {
    SnapshotOptions { ignore_bad: bool } into {
        path: PathBuf,
        max_age: Option<Duration>,
        live_bytes_per_s: Option<NonZeroU64>,
        live_interval: Option<Duration>,
    }
}

impl SnapshotOptions {
    /// Options for this file: a bad file is an error, the file may have any age, and the server
    /// writes copies at full speed.
    pub fn new(path: impl Into<PathBuf>) -> SnapshotOptions {
        SnapshotOptions {
            path: path.into(),
            ignore_bad: false,
            max_age: None,
            live_bytes_per_s: None,
            live_interval: None,
        }
    }
}

impl ServerOptions {
    /// Options for a server with these listeners, one thread, and memcached's defaults otherwise.
    pub fn new(listen: Vec<Listen>) -> ServerOptions {
        ServerOptions {
            listen,
            threads: 1,
            connection_limit: 1024,
            listen_backlog: 1024,
            idle_timeout: Duration::ZERO,
            handshake_timeout: Duration::from_secs(60),
            buffer_limit_bytes: None,
            tls: None,
            auth_file: None,
            snapshot: None,
            drain_delay: Duration::ZERO,
            drain_timeout: Duration::from_secs(5),
            metrics: None,
            on_verbosity: None,
            settings: Settings::default(),
        }
    }

    /// Calls `set` with the new level whenever a client sends the command `verbosity`. 0 is the
    /// level at which memcached is silent, and 4 the highest.
    pub fn on_verbosity(mut self, set: impl Fn(u32) + Send + Sync + 'static) -> ServerOptions {
        self.on_verbosity = Some(OnVerbosity(Arc::new(set)));
        self
    }

    /// The same options, with absolute paths of the files that a running server reads or writes: it
    /// finds them when the process changes its directory.
    pub(crate) fn with_absolute_paths(&self) -> ServerOptions {
        let mut options = self.clone();
        let tls = options.tls.iter_mut();
        let tls = tls.flat_map(|tls| {
            let authorities = tls.authorities.iter_mut();
            authorities.chain([&mut tls.certificates, &mut tls.key])
        });
        let snapshot = options.snapshot.iter_mut().map(|of| &mut of.path);
        for path in tls.chain(options.auth_file.iter_mut()).chain(snapshot) {
            // For an empty path, or without a current directory, opening the file fails.
            if let Ok(absolute) = std::path::absolute(&*path) {
                *path = absolute;
            }
        }
        options
    }

    /// Returns an error if an option is invalid.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let wrong = |option, reason: &str| {
            Err(Error::Option {
                option,
                reason: reason.to_owned(),
            })
        };
        if self.listen.is_empty() {
            return wrong("listen", "at least one address is required");
        }
        if self.threads == 0 || self.threads > 1024 {
            return wrong("threads", "must be between 1 and 1024");
        }
        let live_interval = self.snapshot.as_ref().and_then(|one| one.live_interval);
        if live_interval == Some(Duration::ZERO) {
            return wrong("snapshot interval", "must be longer than zero");
        }
        if self.connection_limit == 0 {
            return wrong("connection limit", "must be at least 1");
        }
        Ok(())
    }
}
