//! What all sessions of a server share, and what they ask of the server around them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::counters::{Counters, Totals};
use crate::settings::Settings;

/// What `stats` reports about connections, under memcached's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "memcached's names, explained in its protocol.txt"
)]
pub struct ConnectionStats {
    pub curr_connections: u64,
    pub total_connections: u64,
    pub rejected_connections: u64,
    pub connection_structures: u64,
    pub conn_yields: u64,
    pub idle_kicks: u64,
    pub listen_disabled_num: u64,
    pub accepting_conns: bool,
}

/// The server around the sessions: they ask it what only it knows.
pub trait Host: Send + Sync {
    /// For `stats`.
    fn connection_stats(&self) -> ConnectionStats {
        ConnectionStats::default()
    }

    /// For `stats conns`: calls `line` with a connection's number, a name (`addr`, `listen_addr`, `state`,
    /// `secs_since_last_cmd`) and a value.
    fn describe_connections(&self, line: &mut dyn FnMut(u64, &str, &str)) {
        let _ = line;
    }

    /// Whether this user has this password. Asked only where [`Settings::auth_enabled`].
    fn authenticates(&self, user: &[u8], password: &[u8]) -> bool {
        let _ = (user, password);
        false
    }

    /// `verbosity` was set.
    fn set_verbosity(&self, level: u32) {
        let _ = level;
    }
}

/// A host that knows nothing: for sessions without a server around them.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHost;

impl Host for NoHost {}

/// What all sessions of a server share.
pub struct Shared {
    pub(crate) settings: Settings,
    pub(crate) host: Box<dyn Host>,
    pub(crate) started: Instant,
    counters: Mutex<Registered>,
}

/// The threads' counters, and what they stood at when `stats reset` was last said.
#[derive(Default)]
struct Registered {
    threads: Vec<Arc<Counters>>,
    base: Totals,
}

impl Shared {
    /// What sessions share.
    pub fn new(settings: Settings, host: Box<dyn Host>) -> Self {
        Self {
            settings,
            host,
            started: Instant::now(),
            counters: Mutex::default(),
        }
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// A new thread's counters, which [`totals`](Self::totals) adds in.
    pub(crate) fn register(&self) -> Arc<Counters> {
        let counters = Arc::new(Counters::default());
        self.registered().threads.push(Arc::clone(&counters));
        counters
    }

    /// All threads' counts since the server started or `stats reset`.
    pub(crate) fn totals(&self) -> Totals {
        let registered = self.registered();
        let mut totals = registered.sum();
        totals.subtract(&registered.base);
        totals
    }

    /// `stats reset`: counts begin again from nothing.
    pub(crate) fn reset(&self) {
        let mut registered = self.registered();
        registered.base = registered.sum();
    }

    fn registered(&self) -> std::sync::MutexGuard<'_, Registered> {
        // Nothing is half done when a thread panics under this lock.
        self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registered {
    fn sum(&self) -> Totals {
        let mut totals = Totals::default();
        for counters in &self.threads {
            totals.add(counters);
        }
        totals
    }
}
