//! Options of a server's sessions.

use crate::address::UNIX_MODE;
use crate::net::TlsOptions;

/// Settings of sessions, some of which are only reported in `stats settings`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// The answer to `version`. Clients read the first three numbers as memcached's version.
    /// Default: `1.6.18-forerun-` and the version of this crate.
    pub version: String,
    /// Maximum size of an item (key and value), in bytes. Default: 1 MiB.
    pub item_size_max_bytes: usize,
    /// Whether `flush_all` is allowed. Default: yes.
    pub flush_enabled: bool,
    /// Whether `shutdown` is allowed. Default: no.
    pub shutdown_command: bool,
    /// Whether clients may list keys with `lru_crawler metadump`, `lru_crawler mgdump` and `stats
    /// cachedump`. Default: yes.
    pub dump_enabled: bool,
    /// Whether `lru_crawler` is enabled at the start. The command `lru_crawler enable` enables it
    /// later. Default: yes.
    pub crawler_enabled: bool,
    /// Whether `watch` is allowed in a server's sessions. A session without a server never allows
    /// it. Default: yes.
    pub watch_enabled: bool,
    /// The byte that ends a key's prefix for `stats detail`. If it is set, prefixes are counted
    /// from the start. Default: none; a colon then ends a prefix, and `stats detail on` starts
    /// counting.
    pub prefix_delimiter: Option<u8>,
    /// Whether `debugtime` is allowed, as in memcached's debug builds. Test suites use it. Default:
    /// no.
    pub debug_commands: bool,
    /// The initial log level, on memcached's scale. The command `verbosity` changes it. Default: 0.
    pub verbosity: u32,
    /// Reported: whether clients must authenticate.
    pub auth_enabled: bool,
    /// Reported: the maximum number of connections.
    pub max_connections: u32,
    /// Reported: the maximum number of connections that wait to be accepted.
    pub listen_backlog: u32,
    /// Reported: the TCP port; 0 if there is none.
    pub tcp_port: u16,
    /// Reported: the listen addresses.
    pub interfaces: String,
    /// Reported: the path of the Unix socket.
    pub unix_socket: Option<String>,
    /// Reported: the permission bits of the Unix socket.
    pub unix_mode: u32,
    /// Reported: the number of worker threads.
    pub threads: u32,
    /// Reported: whether a full cache evicts items.
    pub evictions: bool,
    /// Reported: seconds after which an idle connection is closed; 0 for never.
    pub idle_timeout_s: u32,
    /// Reported: the options of TLS, if it is on.
    pub tls: Option<TlsOptions>,
    /// Reported: the file that keeps the cache's content while the server is down.
    pub snapshot: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            version: concat!("1.6.18-forerun-", env!("CARGO_PKG_VERSION")).to_owned(),
            item_size_max_bytes: 1 << 20,
            flush_enabled: true,
            shutdown_command: false,
            dump_enabled: true,
            crawler_enabled: true,
            watch_enabled: true,
            prefix_delimiter: None,
            debug_commands: false,
            verbosity: 0,
            auth_enabled: false,
            max_connections: 1024,
            listen_backlog: 1024,
            tcp_port: 11211,
            interfaces: "127.0.0.1".to_owned(),
            unix_socket: None,
            unix_mode: UNIX_MODE,
            threads: 1,
            evictions: true,
            idle_timeout_s: 0,
            tls: None,
            snapshot: None,
        }
    }
}

forerun_core::setters! {
    Settings {
        item_size_max_bytes: usize,
        flush_enabled: bool,
        shutdown_command: bool,
        dump_enabled: bool,
        crawler_enabled: bool,
        watch_enabled: bool,
        prefix_delimiter: Option<u8>,
        debug_commands: bool,
        verbosity: u32,
        auth_enabled: bool,
        max_connections: u32,
        listen_backlog: u32,
        tcp_port: u16,
        threads: u32,
        evictions: bool,
        idle_timeout_s: u32,
        unix_mode: u32,
    } into {
        version: String,
        interfaces: String,
        unix_socket: Option<String>,
        tls: Option<TlsOptions>,
        snapshot: Option<String>,
    }
}
