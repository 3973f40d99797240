//! State shared by all sessions of a server, and the questions they ask the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

use forerun_cache::{Cache, CacheStats, Expiry};
use forerun_core::Metrics;
use forerun_core::sync::{Mutex, MutexGuard, PoisonError, time};

use crate::command_counters::{CommandCounters, CommandStats};
use crate::counters::{Counters, SessionStats};
use crate::error_counters::ERROR_KINDS_LEN;
use crate::latency::Latencies;
use crate::os_system::OsSystem;
use crate::prefix_counts::PrefixCounts;
use crate::protocol::numbers::Expiration;
use crate::resp::client_names::ClientNames;
use crate::resp::command_spec::COMMANDS_LEN;
use crate::resp::inert_settings::InertSettings;
use crate::resp::script::Scripts;
use crate::settings::{ReportedOptions, Settings};
use crate::system::System;
use crate::warm_up::WarmUp;
use crate::watch::Watchers;

/// Memcached's clock begins this many seconds before the process.
const EARLY_S: u64 = 60;

/// Maximum log level, as in memcached.
const VERBOSITY_MAX: u32 = 4;

/// Connection statistics for `stats`, under memcached's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "memcached's names, explained in its protocol.txt"
)]
#[non_exhaustive]
pub struct ConnectionStats {
    pub curr_connections: u64,
    pub total_connections: u64,
    pub rejected_connections: u64,
    pub connection_structures: u64,
    pub conn_yields: u64,
    pub idle_kicks: u64,
    pub listen_disabled_num: u64,
    /// Connections closed because their handshake took too long.
    pub handshake_timeouts: u64,
    pub ssl_handshake_errors: u64,
    pub accepting_conns: bool,
    pub response_obj_oom: u64,
    pub response_obj_count: u64,
    pub response_obj_bytes: u64,
    /// Large values that answers waiting for their readers share with the cache. They are part of
    /// the cache's memory.
    pub response_value_bytes: u64,
    pub read_buf_count: u64,
    pub read_buf_bytes: u64,
    pub read_buf_oom: u64,
    /// How often a connection was not read because all buffers together were near their limit.
    pub read_buf_pauses: u64,
    /// Memory of the connections themselves, without their buffers.
    pub connection_bytes: u64,
    /// The limit of all buffers together.
    pub read_buf_limit_bytes: u64,
    /// `None` without TLS.
    pub time_since_server_cert_refresh: Option<u64>,
    /// When the first of the server's certificates expires, in seconds since 1970. `None` without
    /// TLS.
    pub server_cert_not_after_unix_s: Option<u64>,
}

/// Why a server did not read its certificates again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RefreshError {
    /// The server has no certificates.
    #[error("the server does not use TLS")]
    NoTls,
    /// The new certificates cannot be used. The server keeps the old ones and logs the reason.
    #[error("the certificates cannot be used")]
    Unusable,
}

/// The server as its sessions see it. Sessions ask it for information that only the server has.
pub trait ServerControl: Send + Sync {
    /// The metrics for `stats`.
    fn connection_stats(&self) -> ConnectionStats {
        ConnectionStats::default()
    }

    /// For `stats conns`: calls `line` with a connection's number, a field (`addr`, `listen_addr`,
    /// `state`, `secs_since_last_cmd`) and its value. `CLIENT LIST` also shows `age_s`,
    /// `input_bytes` and `output_bytes`, the memory of the connection's buffers.
    fn describe_connections(&self, line: &mut dyn FnMut(u64, &str, &str)) {
        let _ = line;
    }

    /// Removes expired items, now or in the background. Returns `false` if a crawl is already
    /// running.
    fn crawl(&self, cache: &Arc<Cache>) -> bool {
        cache.remove_expired();
        true
    }

    /// Whether a crawl is running.
    fn is_crawling(&self) -> bool {
        false
    }

    /// Handles `refresh_certs`: reads the certificates again, for new connections.
    ///
    /// # Errors
    /// [`RefreshError`]. In that case nothing has changed.
    fn refresh_certificates(&self) -> Result<(), RefreshError> {
        Err(RefreshError::NoTls)
    }

    /// Whether the server has a user with this password.
    fn knows_user(&self, user: &[u8], password: &[u8]) -> bool {
        let _ = (user, password);
        false
    }

    /// Handles `verbosity` with this level.
    fn set_verbosity(&self, level: u32) {
        let _ = level;
    }
}

/// Takes the place of the server when a session runs alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoServer;

impl ServerControl for NoServer {}

/// State shared by all sessions of a server.
pub struct Shared {
    pub(crate) settings: Settings,
    pub(crate) reported: ReportedOptions,
    pub(crate) cache: Arc<Cache>,
    pub(crate) server: Box<dyn ServerControl>,
    pub(crate) started: Instant,
    /// Counts by key prefix.
    pub(crate) prefixes: PrefixCounts,
    /// The connections that watch.
    pub(crate) watchers: Arc<Watchers>,
    /// Which keys clients change while another server's values are copied to this one.
    pub(crate) warm_up: WarmUp,
    /// What clients of RESP have said.
    pub(crate) resp: RespState,
    /// Whether `lru_crawler` is enabled.
    crawls: AtomicBool,
    /// The level that `verbosity` set last.
    verbosity: AtomicU32,
    /// The time of day at second 0 of the cache's clock, in seconds since 1970.
    unix_zero_s: u64,
    /// The same in milliseconds, by clocks that are read at the same moment.
    unix_zero_ms: i64,
    /// The time of day at the start, in seconds since 1970.
    unix_start_s: u64,
    /// How long requests took since the server started.
    pub(crate) latencies: Latencies,
    counters: Mutex<Registered>,
}

/// What clients of RESP have said, for all of them.
#[derive(Debug, Default)]
pub(crate) struct RespState {
    pub(crate) clients: Arc<ClientNames>,
    pub(crate) scripts: Scripts,
    pub(crate) settings: InertSettings,
}

/// The counters of all threads, and their sums at the last `stats reset`.
struct Registered {
    threads: Vec<Arc<Counters>>,
    /// The same threads' counts of each command of RESP.
    commands: Vec<Arc<CommandCounters>>,
    base: SessionStats,
    command_base: [CommandStats; COMMANDS_LEN],
    error_base: [u64; ERROR_KINDS_LEN],
    cache_base: CacheStats,
}

/// The counts of the sessions and the statistics of the cache, since the last `stats reset`.
pub(crate) struct Counts {
    pub sessions: SessionStats,
    pub cache: CacheStats,
}

impl Shared {
    /// Creates the shared state.
    pub fn new(settings: Settings, cache: Arc<Cache>, server: Box<dyn ServerControl>) -> Self {
        Self::on(
            &OsSystem,
            settings,
            ReportedOptions::default(),
            cache,
            server,
        )
    }

    /// Creates the shared state on the clocks of `system`.
    pub(crate) fn on(
        system: &impl System,
        settings: Settings,
        reported: ReportedOptions,
        cache: Arc<Cache>,
        server: Box<dyn ServerControl>,
    ) -> Self {
        // The cache's clock may be behind, because the cache may have been idle. Set it now, so
        // that both clocks are read at the same moment. Otherwise all times of day would be wrong
        // by the difference as long as the server runs.
        system.tick(&cache);
        let unix_start_s = system.unix_s();
        Self {
            unix_zero_s: unix_start_s.saturating_sub(cache.now().into()),
            unix_zero_ms: ((system.unix_us() / 1000) as i64)
                .saturating_sub_unsigned(cache.now_ms()),
            unix_start_s,
            prefixes: PrefixCounts::new(settings.prefix_delimiter),
            watchers: Arc::default(),
            warm_up: WarmUp::new(),
            resp: RespState::default(),
            crawls: AtomicBool::new(settings.crawler_enabled),
            verbosity: AtomicU32::new(settings.verbosity),
            settings,
            reported,
            cache,
            server,
            started: time::now(),
            latencies: Latencies::default(),
            counters: Mutex::new(Registered::new()),
        }
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The cache.
    pub fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    /// Converts a client's expiration time to a second of the cache's clock. A time in the past
    /// becomes second 1, which has always passed.
    pub(crate) fn expiry(&self, expiration: Expiration) -> Expiry {
        let now = self.cache.now();
        match expiration {
            Expiration::Never => Expiry::Never,
            Expiration::Past => Expiry::At(1),
            Expiration::In(seconds) => Expiry::At(now.saturating_add(seconds)),
            Expiration::AtUnix(unix_s) => {
                let second = unix_s.saturating_sub(self.unix_zero_s).max(1);
                Expiry::At(u32::try_from(second).unwrap_or(u32::MAX))
            }
        }
    }

    /// Whether a time of day, in seconds since 1970, is before the start of the server. As in
    /// memcached, the start counts as one minute earlier than it was.
    pub(crate) fn was_before_start(&self, unix_s: u64) -> bool {
        unix_s < self.unix_start_s.saturating_sub(EARLY_S)
    }

    /// Whether `lru_crawler` is enabled.
    pub(crate) fn crawls(&self) -> bool {
        // Relaxed, here and below: a setting, which orders nothing.
        self.crawls.load(Ordering::Relaxed)
    }

    pub(crate) fn set_crawls(&self, crawls: bool) {
        self.crawls.store(crawls, Ordering::Relaxed);
    }

    /// The log level, as set by `verbosity`.
    pub(crate) fn verbosity(&self) -> u32 {
        self.verbosity.load(Ordering::Relaxed)
    }

    pub(crate) fn set_verbosity(&self, level: u32) {
        let level = level.min(VERBOSITY_MAX);
        self.verbosity.store(level, Ordering::Relaxed);
        self.server.set_verbosity(level);
    }

    /// The time of day at second 0 of the cache's clock, in seconds since 1970.
    pub(crate) fn unix_zero_s(&self) -> u64 {
        self.unix_zero_s
    }

    /// The current time of day by the cache's clock, in seconds since 1970.
    pub(crate) fn unix_now_s(&self) -> u64 {
        self.unix_zero_s + u64::from(self.cache.now())
    }

    /// The current time of day by the cache's clock, in milliseconds since 1970.
    pub(crate) fn unix_now_ms(&self) -> i64 {
        self.unix_ms_of(self.cache.now_ms())
    }

    /// The time of day at this millisecond of the cache's clock.
    pub(crate) fn unix_ms_of(&self, ms: u64) -> i64 {
        self.unix_zero_ms.saturating_add_unsigned(ms)
    }

    /// The expiry of an item that lives through this millisecond of the day, as in Redis, or has
    /// expired if that has come. A time that counts from now would end too early otherwise: now is
    /// cut to milliseconds.
    pub(crate) fn expiry_after_unix_ms(&self, unix_ms: i64) -> Expiry {
        let ms = unix_ms.saturating_sub(self.unix_zero_ms);
        self.expiry_after_ms(u64::try_from(ms).unwrap_or(0))
    }

    /// The same for a millisecond of the cache's clock.
    pub(crate) fn expiry_after_ms(&self, ms: u64) -> Expiry {
        if ms <= self.cache.now_ms() {
            Expiry::AtMs(0)
        } else {
            Expiry::AtMs(ms.saturating_add(1))
        }
    }

    /// The last millisecond of an item, as given to [`expiry_after_ms`](Self::expiry_after_ms).
    pub(crate) fn last_ms(expires_ms: u64) -> u64 {
        expires_ms.saturating_sub(1)
    }

    /// Adds counters for a new thread. [`session_stats`](Self::session_stats) includes them.
    pub(crate) fn register(&self) -> Arc<Counters> {
        let counters = Arc::new(Counters::default());
        self.registered().threads.push(Arc::clone(&counters));
        counters
    }

    /// Adds a thread's counters of commands. [`command_stats`](Self::command_stats) includes them.
    pub(crate) fn register_commands(&self) -> Arc<CommandCounters> {
        let counters = Arc::new(CommandCounters::default());
        self.registered().commands.push(Arc::clone(&counters));
        counters
    }

    /// The counts of each command of RESP since the server started or since the last reset.
    pub(crate) fn command_stats(&self) -> [CommandStats; COMMANDS_LEN] {
        let registered = self.registered();
        let sums = registered.sum_commands();
        std::array::from_fn(|at| sums[at] - registered.command_base[at])
    }

    /// The counts of RESP's errors of each kind since the server started or since the last reset.
    pub(crate) fn error_stats(&self) -> [u64; ERROR_KINDS_LEN] {
        let registered = self.registered();
        let sums = registered.sum_errors();
        std::array::from_fn(|at| sums[at].wrapping_sub(registered.error_base[at]))
    }

    /// The counts of all sessions since the server started.
    pub fn session_stats(&self) -> SessionStats {
        self.registered().sum()
    }

    /// The counts since the server started or since the last `stats reset`.
    pub(crate) fn counts(&self) -> Counts {
        let mut cache = self.cache.stats();
        let registered = self.registered();
        let mut sessions = registered.sum();
        sessions.subtract(&registered.base);
        cache.subtract(&registered.cache_base);
        Counts { sessions, cache }
    }

    /// Resets the counts, for `stats reset`.
    pub(crate) fn reset(&self) {
        let cache = self.cache.stats();
        let mut registered = self.registered();
        registered.base = registered.sum();
        registered.command_base = registered.sum_commands();
        registered.error_base = registered.sum_errors();
        registered.cache_base = cache;
        self.prefixes.clear();
    }

    fn registered(&self) -> MutexGuard<'_, Registered> {
        // A panic under this lock leaves nothing half done.
        self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registered {
    fn new() -> Registered {
        Registered {
            threads: Vec::new(),
            commands: Vec::new(),
            base: SessionStats::default(),
            command_base: [CommandStats::default(); COMMANDS_LEN],
            error_base: [0; ERROR_KINDS_LEN],
            cache_base: CacheStats::default(),
        }
    }

    fn sum_commands(&self) -> [CommandStats; COMMANDS_LEN] {
        let mut sums = [CommandStats::default(); COMMANDS_LEN];
        for counters in &self.commands {
            CommandStats::add(&mut sums, counters);
        }
        sums
    }

    fn sum_errors(&self) -> [u64; ERROR_KINDS_LEN] {
        let mut sums = [0; ERROR_KINDS_LEN];
        for counters in &self.commands {
            counters.errors.add_to(&mut sums);
        }
        sums
    }

    fn sum(&self) -> SessionStats {
        let mut sum = SessionStats::default();
        for counters in &self.threads {
            counters.add_to(&mut sum);
        }
        sum
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
