//! What the operator of a server decides about its sessions.

/// Settings that sessions obey, and those that `stats settings` reports for the server.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What `version` answers. Clients take the first three numbers for memcached's version.
    pub version: String,
    /// Largest item in bytes, key and value.
    pub item_size_max_bytes: usize,
    /// `flush_all` is obeyed.
    pub flush_enabled: bool,
    /// `shutdown` is obeyed.
    pub shutdown_command: bool,
    /// Keys may be listed: `lru_crawler metadump`, `lru_crawler mgdump`, `stats cachedump`.
    pub dump_enabled: bool,
    /// `lru_crawler` works from the start; the command `lru_crawler enable` turns it on later as
    /// well.
    pub crawler_enabled: bool,
    /// `debugtime` is obeyed, as in memcached's debug builds. Test suites use it.
    pub debug_commands: bool,
    /// Reported: a client must authenticate before it comes to a session.
    pub auth_enabled: bool,
    /// Reported: the limit of connections.
    pub max_connections: u32,
    /// Reported: connections that may wait to be accepted.
    pub listen_backlog: u32,
    /// Reported: TCP port, 0 for none.
    pub tcp_port: u16,
    /// Reported: addresses listened on.
    pub interfaces: String,
    /// Reported: path of the Unix socket.
    pub unix_socket: Option<String>,
    /// Reported: worker threads.
    pub threads: u32,
    /// Reported: a full cache evicts.
    pub evictions: bool,
    /// Reported: seconds after which an idle connection is closed, 0 for never.
    pub idle_timeout_s: u32,
    /// Reported: TLS is on.
    pub tls_enabled: bool,
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
            debug_commands: false,
            auth_enabled: false,
            max_connections: 1024,
            listen_backlog: 1024,
            tcp_port: 11211,
            interfaces: "127.0.0.1".to_owned(),
            unix_socket: None,
            threads: 1,
            evictions: true,
            idle_timeout_s: 0,
            tls_enabled: false,
        }
    }
}
