//! Options of a client.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::error::Error;
use crate::ring::Placement;
#[cfg(feature = "tls")]
use crate::tls::TlsOptions;

/// The longest duration that options accept. Clocks cannot represent every sum of times.
const TIME_MAX: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// Options of [`Client::new`](crate::Client::new).
///
/// ```
/// use forerun_client::{ClientOptions, Protocol};
/// use std::time::Duration;
///
/// let timeout = Duration::from_millis(50);
/// let options = ClientOptions::default().protocol(Protocol::Meta).timeout(timeout);
/// assert_eq!(options.failures_to_eject, 2);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClientOptions {
    /// How keys are placed. Default: [`Placement::Ketama`].
    pub placement: Placement,
    /// The protocol. Default: [`Protocol::Classic`].
    pub protocol: Protocol,
    /// The maximum time of a call, including connecting. A server that has not answered by then has
    /// failed. Default: 1 second.
    pub timeout: Duration,
    /// A server is ejected after this many failed calls in a row; at least 1. Calls that fail at
    /// the same time count once. Default: 2.
    pub failures_to_eject: u32,
    /// How long a server stays ejected. Then one call tries it. If that call succeeds, the server
    /// is used again; otherwise it stays ejected for the same time again. Default: 2 seconds.
    pub retry_interval: Duration,
    /// What happens to the keys of an ejected server. Default: [`EjectedKeys::Fail`].
    pub ejected_keys: EjectedKeys,
    /// How often the client resolves the names of servers again. It closes connections to addresses
    /// that a name no longer has. It also resolves a name when the server has failed or has closed
    /// a connection. Default: 30 seconds.
    pub resolve_interval: Duration,
    /// A connection that no call has used for this long is closed by the next call. Default: 10
    /// seconds.
    pub idle_timeout: Duration,
    /// How many keys the client keeps in memory whose deletes the server has not answered. A server
    /// that was restarted with a snapshot, or was unreachable, still has their values. Each request
    /// to it first deletes up to 1,000 of these keys, and those that it is for. A call that fails
    /// to delete is an error all the same. Default: 0.
    pub failed_deletes_max: usize,
    /// The longest value that is accepted from a server. Each connection has a buffer of at most
    /// this size plus 64 KiB. Longer values are skipped. Default: 16 MiB.
    pub max_value_bytes: usize,
    /// The user, if the servers require one (memcached's `-Y`, `forerun serve --auth-file`).
    /// Default: none.
    pub credentials: Option<Credentials>,
    /// The file with the token that servers over UCX require (`forerun serve --ucx-token-file`).
    /// Default: none.
    pub ucx_token_file: Option<PathBuf>,
    /// TLS for all servers with TCP addresses. Default: none.
    #[cfg(feature = "tls")]
    pub tls: Option<TlsOptions>,
}

forerun_core::setters! {
    ClientOptions {
        placement: Placement,
        protocol: Protocol,
        timeout: Duration,
        failures_to_eject: u32,
        retry_interval: Duration,
        ejected_keys: EjectedKeys,
        resolve_interval: Duration,
        idle_timeout: Duration,
        failed_deletes_max: usize,
        max_value_bytes: usize,
    } into { credentials: Option<Credentials>, ucx_token_file: Option<PathBuf> }
}

#[cfg(feature = "tls")]
forerun_core::setters! {
    ClientOptions {} into { tls: Option<TlsOptions> }
}

impl Default for ClientOptions {
    fn default() -> ClientOptions {
        ClientOptions {
            placement: Placement::default(),
            protocol: Protocol::default(),
            timeout: Duration::from_secs(1),
            failures_to_eject: 2,
            retry_interval: Duration::from_secs(2),
            ejected_keys: EjectedKeys::default(),
            resolve_interval: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(10),
            failed_deletes_max: 0,
            max_value_bytes: 16 << 20,
            credentials: None,
            ucx_token_file: None,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }
}

impl ClientOptions {
    pub(crate) fn check(&self) -> Result<(), Error> {
        let wrong = |option, reason| Err(Error::Option { option, reason });
        if self.timeout.is_zero() || self.timeout > TIME_MAX {
            return wrong("timeout", "must be longer than zero and at most a year");
        }
        if self.retry_interval > TIME_MAX {
            return wrong("retry_interval", "must be at most a year");
        }
        if self.resolve_interval.is_zero() || self.resolve_interval > TIME_MAX {
            return wrong(
                "resolve_interval",
                "must be longer than zero and at most a year",
            );
        }
        if self.idle_timeout > TIME_MAX {
            return wrong("idle_timeout", "must be at most a year");
        }
        if self.failures_to_eject == 0 {
            return wrong("failures_to_eject", "must be at least 1");
        }
        if self.max_value_bytes > u32::MAX as usize {
            return wrong("max_value_bytes", "must be less than 4 GiB");
        }
        if let Some(credentials) = &self.credentials {
            let is_word = |text: &str| {
                !text.is_empty() && !text.contains([' ', '\r', '\n', '\0']) && text.len() <= 512
            };
            if !is_word(&credentials.user) || !is_word(&credentials.password) {
                return wrong(
                    "credentials",
                    "user and password must have 1 to 512 bytes and no spaces or line ends",
                );
            }
        }
        Ok(())
    }
}

/// The protocol that a client speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Protocol {
    /// The classic text protocol, which all servers and proxies understand. A batch is one `get`
    /// line per server, or one per 1,000 keys. Keys must not contain white space or control
    /// characters.
    #[default]
    Classic,
    /// The meta text protocol (memcached 1.6.9 and later). A batch is a quiet `mg` per key and one
    /// `mn`. Each answer repeats the number of its request, and a key may contain any bytes.
    /// Requests and answers are longer than in the classic protocol.
    Meta,
    /// Lookups in binary multi-get frames, and everything else in the meta protocol. Only Forerun's
    /// servers have frames; lookups from other servers fail with
    /// [`Failure::NoMultiGet`](crate::Failure::NoMultiGet). The first lookup on a connection takes
    /// one more round trip.
    MultiGet,
}

/// What happens to the keys of an ejected server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EjectedKeys {
    /// Calls for these keys fail at once until the server is used again. No other server ever
    /// stores them, so no client reads a value that was replaced in the meantime.
    #[default]
    Fail,
    /// The keys move to the other servers, as with libmemcached's
    /// `MEMCACHED_BEHAVIOR_AUTO_EJECT_HOSTS` and twemproxy's `auto_eject_hosts`. If the server is
    /// used again without a restart, it still has the values from before its ejection, even for
    /// keys that were changed or deleted in the meantime.
    Move,
}

/// A user and a password. Without TLS, they are sent in clear text.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Credentials {
    /// The user.
    pub user: String,
    /// The password.
    pub password: String,
}

impl Credentials {
    /// A user and a password, without spaces.
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Credentials {
        Credentials {
            user: user.into(),
            password: password.into(),
        }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}
