//! What sessions obey, and what they only report.

use crate::address::UNIX_MODE;
use crate::net::TlsOptions;

/// Settings of sessions.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// The answer to `version`. Clients read the first three numbers as memcached's version.
    /// Default: `1.6.18-forerun-` and the version of this crate.
    pub version: String,
    /// The version of Redis that clients of RESP see. Default: 7.4.0, whose commands the server
    /// follows.
    pub redis_version: String,
    /// Whether `flush_all` is allowed, and `FLUSHALL` over RESP. Default: yes.
    pub flush_enabled: bool,
    /// Whether `shutdown` is allowed. Default: no.
    pub shutdown_command: bool,
    /// Whether clients may list keys with `lru_crawler metadump`, `lru_crawler mgdump` and `stats
    /// cachedump`, or over RESP with `KEYS`, `SCAN` and `RANDOMKEY`. Default: yes.
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
    /// Whether a connection that begins with the byte 0x80 speaks memcached's binary protocol.
    /// Otherwise its client is refused. Default: yes.
    pub binary_protocol: bool,
    /// Whether `debugtime` is allowed, as in memcached's debug builds. Test suites use it. Default:
    /// no.
    pub debug_commands: bool,
    /// The initial log level, on memcached's scale. The command `verbosity` changes it. Default: 0.
    pub verbosity: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            version: concat!("1.6.18-forerun-", env!("CARGO_PKG_VERSION")).to_owned(),
            redis_version: "7.4.0".to_owned(),
            flush_enabled: true,
            shutdown_command: false,
            dump_enabled: true,
            crawler_enabled: true,
            watch_enabled: true,
            prefix_delimiter: None,
            binary_protocol: true,
            debug_commands: false,
            verbosity: 0,
        }
    }
}

forerun_core::setters! {
    Settings {
        flush_enabled: bool,
        shutdown_command: bool,
        dump_enabled: bool,
        crawler_enabled: bool,
        watch_enabled: bool,
        prefix_delimiter: Option<u8>,
        binary_protocol: bool,
        debug_commands: bool,
        verbosity: u32,
    } into {
        version: String,
        redis_version: String,
    }
}

/// A server's options as `stats settings` reports them. Without a server, memcached's defaults.
#[derive(Debug)]
pub(crate) struct ReportedOptions {
    /// Whether clients must authenticate.
    pub(crate) auth_enabled: bool,
    /// The maximum number of connections.
    pub(crate) max_connections: u32,
    /// The maximum number of connections that wait to be accepted.
    pub(crate) listen_backlog: u32,
    /// The TCP port; 0 if there is none.
    pub(crate) tcp_port: u16,
    /// The TCP port of RESP; 0 if there is none.
    pub(crate) resp_port: u16,
    /// The listen addresses.
    pub(crate) interfaces: String,
    /// The path of the Unix socket.
    pub(crate) unix_socket: Option<String>,
    /// The permission bits of the Unix socket.
    pub(crate) unix_mode: u32,
    /// The number of worker threads.
    pub(crate) threads: u32,
    /// Seconds after which an idle connection is closed; 0 for never.
    pub(crate) idle_timeout_s: u32,
    /// The options of TLS, if it is on.
    pub(crate) tls: Option<TlsOptions>,
    /// The file that keeps the cache's content while the server is down.
    pub(crate) snapshot: Option<String>,
}

impl Default for ReportedOptions {
    fn default() -> Self {
        Self {
            auth_enabled: false,
            max_connections: 1024,
            listen_backlog: 1024,
            tcp_port: 11211,
            resp_port: 0,
            interfaces: "127.0.0.1".to_owned(),
            unix_socket: None,
            unix_mode: UNIX_MODE,
            threads: 1,
            idle_timeout_s: 0,
            tls: None,
            snapshot: None,
        }
    }
}
