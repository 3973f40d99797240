//! The options of `forerun serve`. They have memcached's names where memcached has the option.

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use forerun_cache::{CacheOptions, Clock, KEYSPACES_MAX, WhenFull};
use forerun_core::size::parse_size;
use forerun_server::{
    Address, Listen, MinVersion, Protocol, ServerOptions, Settings, SnapshotOptions, TlsOptions,
    UNIX_MODE, UcxOptions, VerifyClient,
};

use crate::exit::UsageError;

/// Serve a cache to memcached and Redis clients
///
/// Speaks memcached's classic text commands, meta commands and binary protocol and, with --resp,
/// RESP2 and RESP3, Redis' protocol, over the same cache. All lookups that have arrived on a
/// connection are executed as one batch, whether they came as one `get` with many keys or as many
/// commands. By default the server listens on the loopback interface, prints its addresses on
/// standard output, and logs to standard error.
///
/// SIGTERM and SIGINT shut it down gracefully: it answers the requests it has received and writes
/// the snapshot. SIGUSR1 does the same, as in memcached. SIGUSR2 writes a copy of the cache to
/// FILE.live, next to the snapshot, and the server continues. SIGHUP reads the files of users and
/// certificates again.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forerun serve                                        127.0.0.1:11211, 64 MiB, one thread per core
  forerun serve --port 11212 --threads 2 --memory-limit 1GiB
  forerun serve --listen 127.0.0.1 --listen [::1] --conn-limit 10000 --idle-timeout 600
  forerun serve --unix-socket /run/forerun.sock --unix-mask 770
  forerun serve --resp 6379                            also for clients of Redis and Valkey
  forerun serve --snapshot cache.snapshot              save at shutdown, reload at startup
  forerun serve --enable-ssl --ssl-chain-cert server.pem --ssl-key server.key
  forerun serve --auth-file users --metrics 127.0.0.1:9150

If the command was built with the feature `ucx`:
  forerun serve --transport tcp,ucx --ucx-listen unix:/run/forerun.ucx
  forerun serve --transport ucx --ucx-listen 127.0.0.1:11215 --ucx-token-file token")]
pub struct Args {
    /// TCP port; 0 for any free port
    #[arg(short, long, value_name = "PORT", default_value_t = 11211)]
    port: u16,
    /// Interface to listen on: ADDRESS, ADDRESS:PORT, or notls:ADDRESS:PORT for a listener without
    /// TLS; may be given several times [default: 127.0.0.1]
    #[arg(short, long, value_name = "ADDRESS", value_delimiter = ',')]
    listen: Vec<String>,
    /// Also speak RESP, the protocol of Redis and Valkey, at this PORT on the interfaces of
    /// --listen, at ADDRESS or ADDRESS:PORT (notls: as above), or at unix:FILE; may be given
    /// several times
    #[arg(long, value_name = "PORT", value_delimiter = ',')]
    resp: Vec<String>,
    /// Number of databases for RESP, which clients choose by SELECT; memcached's clients see the
    /// first one, 0
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=i64::from(KEYSPACES_MAX))
    )]
    resp_databases: u16,
    /// Unix socket to listen on; replaces TCP unless --listen is given
    #[arg(short = 's', long, value_name = "FILE")]
    unix_socket: Option<PathBuf>,
    /// Permission bits of the unix socket, in octal
    #[arg(short = 'a', long, value_name = "BITS", default_value_t = format!("{UNIX_MODE:o}"))]
    unix_mask: String,
    /// Number of worker threads [default: number of cores]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Memory limit of the whole cache, including the index: 1GiB, 512MiB, or a number of MiB. The
    /// command `cache_memlimit` changes it later, up to 8 times this limit
    #[arg(short, long, value_name = "SIZE", default_value = "64", value_parser = parse_memory)]
    memory_limit: usize,
    /// Maximum item size: 1MiB, 512KiB, or a number of bytes; k and m are powers of 1024, as in
    /// memcached [default: 1m, or half of the memory limit if that is less]
    #[arg(short = 'I', long, value_name = "SIZE", value_parser = parse_item_size)]
    max_item_size: Option<usize>,
    /// Refuse new items when memory is full, instead of evicting
    #[arg(short = 'M', long)]
    disable_evictions: bool,
    /// Maximum number of connections
    #[arg(
        short,
        long,
        value_name = "N",
        default_value_t = 1024,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    conn_limit: u32,
    /// Maximum number of connections that wait to be accepted; the system may allow fewer
    #[arg(
        short = 'b',
        long,
        value_name = "N",
        default_value_t = 1024,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    listen_backlog: u32,
    /// Close connections that are idle for longer; 0 for never
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    idle_timeout: u32,
    /// Close connections that have not completed TLS or authentication after this time; 0 for never
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    handshake_timeout: u32,
    /// Time for which the server goes on serving after SIGTERM, while /health/ready answers 503
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    drain_delay: u32,
    /// Time that clients have to read their last answers at shutdown; with 0, the server answers
    /// what it can in one turn and closes
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    drain_timeout: u32,
    /// Limit of the memory of all connections' own buffers, in addition to the cache: 32MiB, or a
    /// number of MiB [default: an eighth of the memory limit, at least 16 MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_buffer_limit)]
    buffer_limit: Option<usize>,
    /// File with lines user:password; connections must authenticate as one of these users
    #[arg(short = 'Y', long, value_name = "FILE")]
    auth_file: Option<PathBuf>,
    /// Enable the command `shutdown`
    #[arg(short = 'A', long)]
    enable_shutdown: bool,
    /// Disable the command `flush_all`, and FLUSHALL and FLUSHDB of RESP
    #[arg(short = 'F', long)]
    disable_flush_all: bool,
    /// Disable listing of keys: `lru_crawler metadump`, `stats cachedump`; KEYS, SCAN and RANDOMKEY
    /// of RESP
    #[arg(short = 'X', long)]
    disable_dumping: bool,
    /// Character that ends a key's prefix for `stats detail`, which is on from the start then
    #[arg(short = 'D', long, value_name = "CHAR", value_parser = parse_delimiter)]
    prefix_delimiter: Option<u8>,
    /// Disable the command `watch`
    #[arg(short = 'W', long)]
    disable_watch: bool,
    /// Refuse clients of memcached's binary protocol
    #[arg(long)]
    no_binary: bool,
    /// Disable `lru_crawler crawl` and `metadump` until the command `lru_crawler enable`
    #[arg(long)]
    no_lru_crawler: bool,
    /// Enable `debugtime`, as in memcached's debug builds, for test suites
    #[arg(long, hide = true)]
    debug_commands: bool,
    /// Keep the cache in this file while the server is not running; the file is removed once it is
    /// loaded
    #[arg(long, value_name = "FILE")]
    snapshot: Option<PathBuf>,
    /// If the snapshot cannot be used, start with an empty cache and keep the file as FILE.bad
    #[arg(long, requires = "snapshot")]
    snapshot_ignore_bad: bool,
    /// If the snapshot is older than this, start with an empty cache
    #[arg(long, value_name = "SECONDS", requires = "snapshot")]
    snapshot_max_age: Option<u32>,
    /// Maximum rate, in bytes per second, of copying the running cache (SIGUSR2)
    #[arg(long, value_name = "SIZE", requires = "snapshot", value_parser = parse_rate)]
    snapshot_rate: Option<NonZeroU64>,
    /// Write the process ID to this file while the server runs
    #[arg(long, value_name = "FILE")]
    pub pid_file: Option<PathBuf>,
    /// Write a copy of the running cache to FILE.live at this interval
    #[arg(
        long,
        value_name = "SECONDS",
        requires = "snapshot",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    snapshot_interval: Option<u32>,
    /// Address of the metrics for Prometheus, over HTTP, and of /health, /health/live,
    /// /health/ready and /health/started
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    /// Format of the log
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
    /// Log more: -v logs connections that fail, -vv logs everything
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    ucx: UcxArgs,
}

/// What carries connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TransportName {
    /// Sockets: TCP and unix sockets
    Tcp,
    /// UCX
    Ucx,
}

/// Whether this build has UCX.
const HAS_UCX: bool = cfg!(feature = "ucx");
/// The heading of the options for UCX.
const UCX_HEADING: &str = if HAS_UCX {
    "UCX"
} else {
    "UCX, which this build lacks (cargo's feature `ucx`)"
};

/// Options of connections over UCX.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = UCX_HEADING)]
struct UcxArgs {
    /// What carries connections: tcp (all sockets), ucx, or both; ucx loads the library libucp.so.0
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "tcp"
    )]
    transport: Vec<TransportName>,
    /// Address where clients begin connections over UCX: ADDRESS, ADDRESS:PORT, or unix:FILE
    #[arg(long, value_name = "ADDRESS")]
    ucx_listen: Option<String>,
    /// File with a token of 16 to 256 bytes that clients must know; required unless --ucx-listen
    /// is a unix socket, which accepts the server's own user
    #[arg(long, value_name = "FILE", requires = "ucx_listen")]
    ucx_token_file: Option<PathBuf>,
    /// Network devices that UCX uses and listens on, as in UCX_NET_DEVICES; required unless
    /// --ucx-listen is a unix socket or a loopback address [default: lo]
    #[arg(long, value_name = "LIST", requires = "ucx_listen")]
    ucx_net_devices: Option<String>,
}

/// TLS options, named like memcached's extended options.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "TLS")]
struct TlsArgs {
    /// Enable TLS, except on listeners marked with notls
    #[arg(short = 'Z', long, requires = "ssl_chain_cert", requires = "ssl_key")]
    enable_ssl: bool,
    /// PEM file of the server's certificate and its intermediate certificates
    #[arg(long, value_name = "FILE", requires = "enable_ssl")]
    ssl_chain_cert: Option<PathBuf>,
    /// PEM file of the certificate's key
    #[arg(long, value_name = "FILE", requires = "enable_ssl")]
    ssl_key: Option<PathBuf>,
    /// PEM file of the authorities for clients' certificates
    #[arg(long, value_name = "FILE", requires = "enable_ssl")]
    ssl_ca_cert: Option<PathBuf>,
    /// Client certificates: 0 not requested, 1 optional but must be valid, 2 or 3 required
    #[arg(
        long,
        value_name = "MODE",
        default_value_t = 0,
        value_parser = clap::value_parser!(u8).range(0..=3)
    )]
    ssl_verify_mode: u8,
    /// Oldest TLS version that is accepted
    #[arg(long, value_enum, default_value_t = Version::Tls12)]
    ssl_min_version: Version,
}

/// The format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One line of text per event
    Text,
    /// One JSON object per line
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Version {
    #[value(name = "tlsv1.2")]
    Tls12,
    #[value(name = "tlsv1.3")]
    Tls13,
}

/// Parses a memory limit. A bare number counts MiB, as in memcached.
fn parse_memory(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(mebibytes) => mebibytes
            .checked_mul(1 << 20)
            .ok_or_else(|| format!("{text} MiB are more than this machine can address")),
        Err(_) => parse_size(text).map_err(|error| error.to_string()),
    }
}

/// Parses a limit of buffers, which cannot be zero: nothing would ever be read.
fn parse_buffer_limit(text: &str) -> Result<usize, String> {
    match parse_memory(text)? {
        0 => Err("it must be at least one byte".to_owned()),
        bytes => Ok(bytes),
    }
}

/// Parses a key prefix's delimiter.
fn parse_delimiter(text: &str) -> Result<u8, String> {
    match text.as_bytes() {
        [byte @ 0x21..0x7f] => Ok(*byte),
        _ => Err("it must be one printable ASCII character".to_owned()),
    }
}

/// Parses a rate of at least one byte per second.
fn parse_rate(text: &str) -> Result<NonZeroU64, String> {
    let bytes = parse_size(text).map_err(|error| error.to_string())?;
    NonZeroU64::new(bytes as u64)
        .ok_or_else(|| "it must be at least one byte per second".to_owned())
}

/// The default port of `--resp`, as in Redis.
const RESP_PORT: u16 = 6379;

/// The default port of `--ucx-listen`.
const UCX_PORT: u16 = 11215;

/// `cache_memlimit` may set at most this multiple of the initial memory limit.
const RAISE_FACTOR_MAX: usize = 8;

/// Lower bound of the item size limit, as in memcached.
const ITEM_SIZE_MIN: usize = 1024;

/// Parses an item size. As in memcached, `k` and `m` are powers of 1024.
fn parse_item_size(text: &str) -> Result<usize, String> {
    let binary = match text.as_bytes().last() {
        Some(b'k' | b'K' | b'm' | b'M' | b'g' | b'G') => format!("{text}i"),
        _ => text.to_owned(),
    };
    match parse_size(&binary) {
        Ok(bytes) if bytes < ITEM_SIZE_MIN => {
            Err(format!("{text}: it must be at least {ITEM_SIZE_MIN} bytes"))
        }
        parsed => parsed.map_err(|error| error.to_string()),
    }
}

impl Args {
    /// The cache options from the command line.
    pub fn cache(&self) -> CacheOptions {
        let default = CacheOptions::default();
        let max_item_bytes = self.max_item_size.unwrap_or(default.max_item_bytes);
        default
            .memory_limit_bytes(self.memory_limit)
            .memory_limit_max_bytes(self.memory_limit.saturating_mul(RAISE_FACTOR_MAX))
            .max_item_bytes(max_item_bytes)
            .keyspaces(self.resp_databases)
            // The server advances it.
            .clock(Clock::Ticked)
            .when_full(if self.disable_evictions {
                WhenFull::Refuse
            } else {
                WhenFull::Evict
            })
    }

    /// File descriptors for all connections and for everything else.
    pub fn descriptors(&self) -> u64 {
        u64::from(self.conn_limit) + 64
    }

    /// The server options from the command line.
    pub fn server(&self) -> anyhow::Result<ServerOptions> {
        let threads = match self.threads {
            Some(threads) => usize::from(threads),
            None => std::thread::available_parallelism().map_or(1, usize::from),
        };
        Ok(ServerOptions::new(self.places()?)
            .threads(threads)
            .connection_limit(self.conn_limit as usize)
            .listen_backlog(self.listen_backlog)
            .idle_timeout(Duration::from_secs(self.idle_timeout.into()))
            .handshake_timeout(Duration::from_secs(self.handshake_timeout.into()))
            .drain_delay(Duration::from_secs(self.drain_delay.into()))
            .drain_timeout(Duration::from_secs(self.drain_timeout.into()))
            .buffer_limit_bytes(self.buffer_limit)
            .tls(self.tls.options())
            .auth_file(self.auth_file.clone())
            .snapshot(self.snapshot.clone().map(|path| {
                let time = |seconds: u32| Duration::from_secs(seconds.into());
                SnapshotOptions::new(path)
                    .ignore_bad(self.snapshot_ignore_bad)
                    .max_age(self.snapshot_max_age.map(time))
                    .live_bytes_per_s(self.snapshot_rate)
                    .live_interval(self.snapshot_interval.map(time))
            }))
            .metrics(self.metrics)
            .settings(
                Settings::default()
                    .flush_enabled(!self.disable_flush_all)
                    .shutdown_command(self.enable_shutdown)
                    .dump_enabled(!self.disable_dumping)
                    .watch_enabled(!self.disable_watch)
                    .prefix_delimiter(self.prefix_delimiter)
                    .binary_protocol(!self.no_binary)
                    .crawler_enabled(!self.no_lru_crawler)
                    .debug_commands(self.debug_commands)
                    .verbosity(self.verbose.into()),
            ))
    }

    fn places(&self) -> anyhow::Result<Vec<Listen>> {
        let mut places = if self.ucx.transport.contains(&TransportName::Tcp) {
            self.socket_places()?
        } else {
            Vec::new()
        };
        places.extend(self.resp_places()?);
        places.extend(self.ucx.places()?);
        Ok(places)
    }

    fn socket_places(&self) -> anyhow::Result<Vec<Listen>> {
        let mut places = Vec::new();
        if let Some(path) = &self.unix_socket {
            places.push(Listen::unix(path, self.unix_mode()?));
        }
        let loopback = ["127.0.0.1".to_owned()];
        let interfaces: &[String] = match (&self.unix_socket, self.listen.as_slice()) {
            (Some(_), []) => &[],
            (None, []) => &loopback,
            (_, given) => given,
        };
        for interface in interfaces {
            if interface.starts_with("ucx:") {
                let text = "--listen is for sockets; UCX has --transport ucx and --ucx-listen";
                return Err(UsageError(text.to_owned()).into());
            }
            add_places(&mut places, interface, self.port)?;
        }
        Ok(places)
    }

    /// The listeners of RESP.
    fn resp_places(&self) -> anyhow::Result<Vec<Listen>> {
        let mut places = Vec::new();
        for text in &self.resp {
            if let Ok(port) = text.parse::<u16>() {
                let loopback = ["127.0.0.1".to_owned()];
                let interfaces: &[String] = match self.listen.as_slice() {
                    [] => &loopback,
                    given => given,
                };
                // Those of UCX have no RESP.
                for interface in interfaces.iter().filter(|one| !one.starts_with("ucx:")) {
                    let mut found = Vec::new();
                    add_places(&mut found, interface, port)?;
                    for place in &mut found {
                        // An interface of --listen may have the port of memcached's protocol.
                        if let Address::Tcp(at) = &mut place.address {
                            at.set_port(port);
                        }
                    }
                    places.extend(found);
                }
            } else if text.starts_with("ucx:") {
                return Err(UsageError("--resp is for sockets, not for UCX".to_owned()).into());
            } else if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
                places.push(Listen::unix(path, self.unix_mode()?));
            } else {
                add_places(&mut places, text, RESP_PORT)?;
            }
        }
        let speaks_resp = |place: Listen| place.with_protocol(Protocol::Resp);
        Ok(places.into_iter().map(speaks_resp).collect())
    }

    /// The permission bits of Unix sockets.
    fn unix_mode(&self) -> Result<u32, UsageError> {
        let mode = u32::from_str_radix(&self.unix_mask, 8).ok();
        mode.filter(|mode| *mode <= 0o777).ok_or_else(|| {
            let text = &self.unix_mask;
            UsageError(format!(
                "--unix-mask {text} is not an octal number up to 777"
            ))
        })
    }
}

/// Adds the listeners of an interface. `localhost` may resolve to an address twice.
fn add_places(
    places: &mut Vec<Listen>,
    interface: &str,
    default_port: u16,
) -> Result<(), UsageError> {
    let found = Listen::parse(interface, default_port);
    for place in found.map_err(|error| UsageError(error.to_string()))? {
        let any_port = matches!(place.address, Address::Tcp(at) if at.port() == 0);
        if any_port || !places.contains(&place) {
            places.push(place);
        }
    }
    Ok(())
}

impl UcxArgs {
    fn places(&self) -> anyhow::Result<Vec<Listen>> {
        let wrong = |text: &str| Err(UsageError(text.to_owned()).into());
        let address = match (
            &self.ucx_listen,
            self.transport.contains(&TransportName::Ucx),
        ) {
            (None, false) => return Ok(Vec::new()),
            (Some(_), false) => return wrong("--ucx-listen requires --transport ucx"),
            (None, true) => return wrong("--transport ucx requires --ucx-listen"),
            (Some(_), true) if !HAS_UCX => {
                return wrong("--transport ucx: this build lacks UCX (cargo's feature `ucx`)");
            }
            (Some(address), true) => address,
        };
        let options = UcxOptions::default()
            .token_file(self.ucx_token_file.clone())
            .net_devices(self.ucx_net_devices.clone());
        let places = Listen::parse(&format!("ucx:{address}"), UCX_PORT)
            .map_err(|error| UsageError(error.to_string()))?;
        let with_options = |place: Listen| place.over_ucx(options.clone());
        Ok(places.into_iter().map(with_options).collect())
    }
}

impl TlsArgs {
    fn options(&self) -> Option<TlsOptions> {
        if !self.enable_ssl {
            return None;
        }
        Some(
            TlsOptions::new(self.ssl_chain_cert.clone()?, self.ssl_key.clone()?)
                .authorities(self.ssl_ca_cert.clone())
                .verify_client(match self.ssl_verify_mode {
                    0 => VerifyClient::No,
                    1 => VerifyClient::Request,
                    _ => VerifyClient::Require,
                })
                .min_version(match self.ssl_min_version {
                    Version::Tls12 => MinVersion::Tls12,
                    Version::Tls13 => MinVersion::Tls13,
                }),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentation_describes_every_option() {
        let page = include_str!("../../../../../docs/operate/serving.md");
        let words = page.split(|c: char| c != '-' && !c.is_ascii_lowercase());
        let words: Vec<&str> = words.collect();
        let command = <Args as clap::Args>::augment_args(clap::Command::new("serve"));
        for option in command.get_arguments().filter(|one| !one.is_hide_set()) {
            let name = format!("--{}", option.get_long().unwrap());
            assert!(words.contains(&name.as_str()), "{name}");
        }
    }

    #[test]
    fn sizes_are_read_as_memcached_reads_them_and_as_people_write_them() {
        assert_eq!(parse_memory("64"), Ok(64 << 20));
        assert_eq!(parse_memory("1GiB"), Ok(1 << 30));
        assert_eq!(parse_buffer_limit("32"), Ok(32 << 20));
        assert!(parse_buffer_limit("0").is_err());
        assert!(parse_memory("lots").is_err());
        assert!(parse_memory("99999999999999999999").is_err());
        assert_eq!(parse_item_size("1m"), Ok(1 << 20));
        assert_eq!(parse_item_size("512k"), Ok(512 << 10));
        assert_eq!(parse_item_size("2MiB"), Ok(2 << 20));
        assert_eq!(parse_item_size("1048576"), Ok(1 << 20));
        assert!(parse_item_size("1000").unwrap_err().contains("1024"));
    }
}
