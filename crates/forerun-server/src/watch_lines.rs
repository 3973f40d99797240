//! The events that watchers see, in the words of memcached's log.
//!
//! ```text
//!   item_get    key=… status=found|not_found clsid=… cfd=… size=…
//!   item_store  key=… status=stored|… cmd=set|… ttl=… clsid=1 cfd=… size=…
//!   eviction    key=… fetch=yes|no ttl=… la=… clsid=1 size=…
//!   conn_new    rip=… rport=… transport=tcp|local cfd=…          conn_close: … reason=normal|… cfd=…
//! ```

use std::fmt::{self, Write};

use forerun_cache::{Evicted, Expiry};

use crate::address::Peer;
use crate::watch::{WatchKinds, Watchers};

/// A key as memcached writes it: everything but letters, digits and `-._~` is escaped.
struct Uri<'a>(&'a [u8]);

impl fmt::Display for Uri<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for &byte in self.0 {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                    f.write_char(byte.into())?
                }
                _ => write!(f, "%{byte:02X}")?,
            }
        }
        Ok(())
    }
}

/// Seconds from `now_s` until `expiry`, as memcached reports them; `never` if there are none.
fn ttl(expiry: Expiry, now_s: u32, never: i64) -> i64 {
    expiry
        .second(now_s)
        .map_or(never, |second| i64::from(second) - i64::from(now_s))
}

/// The outcome of a storage command.
pub(crate) struct StoreEvent<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) status: &'static str,
    pub(crate) command: &'static str,
    pub(crate) expiry: Expiry,
    pub(crate) len: usize,
}

impl Watchers {
    /// Logs a read by a connection. `len` is the length of the value that was found.
    #[cold]
    pub(crate) fn log_fetch(&self, connection: u64, key: &[u8], len: Option<usize>) {
        let (status, class) = match len {
            Some(_) => ("found", 1),
            None => ("not_found", 0),
        };
        self.push(
            WatchKinds::FETCHERS,
            format_args!(
                "item_get key={} status={status} clsid={class} cfd={connection} size={}",
                Uri(key),
                len.unwrap_or(0),
            ),
        );
    }

    /// Logs the outcome of a storage command of a connection.
    #[cold]
    pub(crate) fn log_store(&self, connection: u64, now_s: u32, event: &StoreEvent<'_>) {
        let StoreEvent {
            key,
            status,
            command,
            expiry,
            len,
        } = *event;
        // Memcached shows a time in the past as an unsigned 32-bit number.
        let ttl = ttl(expiry, now_s, 0) as u32;
        self.push(
            WatchKinds::MUTATIONS,
            format_args!(
                "item_store key={} status={status} cmd={command} ttl={ttl} clsid=1 \
                 cfd={connection} size={len}",
                Uri(key),
            ),
        );
    }

    /// Logs an eviction.
    #[cold]
    pub(crate) fn log_eviction(&self, evicted: &Evicted<'_>) {
        self.push(
            WatchKinds::EVICTIONS,
            format_args!(
                "eviction key={} fetch={} ttl={} la={} clsid=1 size={}",
                Uri(evicted.key),
                if evicted.was_fetched { "yes" } else { "no" },
                ttl(evicted.expiry, evicted.now, -1),
                evicted.now.saturating_sub(evicted.last_access),
                evicted.value_len,
            ),
        );
    }

    /// Logs a new connection.
    #[cold]
    pub(crate) fn log_opened(&self, connection: u64, peer: Peer) {
        self.log_connection("conn_new", connection, peer, format_args!(""));
    }

    /// Logs the end of a connection.
    #[cold]
    pub(crate) fn log_closed(&self, connection: u64, peer: Peer, reason: CloseReason) {
        let reason = reason.name();
        self.log_connection(
            "conn_close",
            connection,
            peer,
            format_args!(" reason={reason}"),
        );
    }

    fn log_connection(&self, event: &str, connection: u64, peer: Peer, reason: fmt::Arguments<'_>) {
        let (ip, port, transport) = match peer {
            Peer::Tcp(address) => (address.ip().to_string(), address.port(), "tcp"),
            Peer::Unix => ("unix".to_owned(), 0, "local"),
            Peer::UcxTcp(address) => (address.ip().to_string(), address.port(), "ucx"),
            Peer::UcxUnix => ("unix".to_owned(), 0, "ucx"),
        };
        self.push(
            WatchKinds::CONNECTIONS,
            format_args!(
                "{event} rip={ip} rport={port} transport={transport}{reason} cfd={connection}"
            ),
        );
    }
}

/// Why a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseReason {
    /// The client left or sent `quit`, or the server closed the connection after an answer.
    Normal,
    /// The connection failed, its memory was needed, or the server refused what the client sent:
    /// HTTP, the binary protocol, or a line that is too long.
    Error,
    /// The client was silent for too long, also in the handshake of TLS or in authentication.
    Idle,
    /// The server is shutting down, and the time for a drain has passed.
    Shutdown,
}

impl CloseReason {
    fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Error => "error",
            Self::Idle => "idle_timeout",
            Self::Shutdown => "shutdown",
        }
    }
}
