//! Errors of calls, and why a server did not answer.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The list of servers is empty.
    #[error("a client needs at least one server")]
    NoServers,
    /// The text is not a server's address.
    #[error("{text:?} is not the address of a server: {reason}")]
    Address {
        /// The text.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
    /// An option has an invalid value.
    #[error("{option}: {reason}")]
    Option {
        /// The option's name.
        option: &'static str,
        /// What is wrong.
        reason: &'static str,
    },
    /// A file for TLS cannot be used.
    #[error("TLS: {}: {reason}", path.display())]
    TlsFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A server has an address of UCX, which this build cannot use.
    #[error("server {server}: this build lacks UCX (cargo's feature `ucx`)")]
    NoUcx {
        /// The server's address.
        server: String,
    },
    /// UCX cannot be used, and a server has an address of UCX.
    #[cfg(feature = "ucx")]
    #[error("cannot use UCX")]
    Ucx(#[source] forerun_ucx::UcxError),
    /// The file with the token for UCX cannot be used.
    #[error("token for UCX: {}: {reason}", path.display())]
    UcxToken {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A key cannot be sent. Nothing was sent to any server.
    #[error("key {index}: {reason}")]
    Key {
        /// Its position in the batch; 0 for a single key.
        index: usize,
        /// What is wrong with it.
        reason: KeyError,
    },
    /// A batch has more than 2^32 - 1 keys.
    #[error("a batch has at most 4294967295 keys, not {0}")]
    TooManyKeys(usize),
    /// The value is longer than `max_value_bytes`. It was not read.
    #[error("the value has {bytes} bytes, more than max_value_bytes, {limit}")]
    Oversized {
        /// Its length.
        bytes: u64,
        /// The limit.
        limit: usize,
    },
    /// The server did not answer, or refused the request. A write may or may not have happened,
    /// unless the failure is [`Failure::Ejected`], [`Failure::Refused`], [`Failure::Connect`] or
    /// [`Failure::TooManyConnections`].
    #[error("server {server}: {failure}")]
    Server {
        /// The server's address.
        server: String,
        /// What happened.
        failure: Failure,
    },
    /// The call was interrupted: [`Client::interrupt_if`](crate::Client::interrupt_if). A write may
    /// or may not have happened.
    #[error("the call was interrupted")]
    Interrupted,
    /// This process is a fork of the one that made the client.
    #[error(transparent)]
    Forked(#[from] forerun_core::Forked),
}

/// What is wrong with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// It has no bytes.
    #[error("the key is empty")]
    Empty,
    /// It is too long for the protocol.
    #[error("it has {bytes} bytes, where {limit} are allowed")]
    Long {
        /// Its length.
        bytes: usize,
        /// The limit: 250, or 186 if the meta protocol sends it as base64.
        limit: usize,
    },
    /// The classic protocol cannot send this byte in a key.
    #[error(
        "byte {byte:#04x} at {at} is white space or a control character; the meta protocol can \
         send it"
    )]
    Byte {
        /// The byte.
        byte: u8,
        /// Its position.
        at: usize,
    },
}

/// Why a server did not answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// It failed before, so the client did not ask it.
    #[error("it failed before and is left out for another {retry_in:?}")]
    Ejected {
        /// The time until a call tries it again.
        retry_in: Duration,
    },
    /// The client cannot connect to it, or its name has no address.
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    /// The connection failed.
    #[error("the connection failed: {0}")]
    Io(io::Error),
    /// It closed the connection before it answered.
    #[error("it closed the connection")]
    Closed,
    /// It did not answer in time.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// It sent something that is not an answer to the request.
    #[error("a malformed answer: {0}")]
    Malformed(String),
    /// It answered with an error. It is still running, so it is not ejected.
    #[error("it answered {0:?}")]
    Refused(String),
    /// It has as many connections as it accepts (memcached's `-c`). It counts as failed, because
    /// the next call would connect and be refused as well.
    #[error("it has too many connections")]
    TooManyConnections,
    /// It does not accept multi-get frames ([`Protocol::MultiGet`](crate::Protocol::MultiGet)), for
    /// example because it is memcached. It is still running, so it is not ejected.
    #[error("it does not accept multi-get frames: it answered {0:?}")]
    NoMultiGet(String),
    /// The call was interrupted before it answered.
    #[error("the call was interrupted")]
    Interrupted,
    /// It does not accept the user or the password.
    #[error("authentication failed: it answered {0:?}")]
    Authentication(String),
}

impl Failure {
    /// Whether the server counts as alive; a server that answers with an error does. `None` if the
    /// failure says nothing about the server, for example if this process lacks file descriptors or
    /// memory.
    pub(crate) fn is_alive(&self) -> Option<bool> {
        use rustix::io::Errno;
        match self {
            Failure::Ejected { .. } | Failure::Interrupted => None,
            Failure::Connect(error) | Failure::Io(error)
                if matches!(
                    Errno::from_io_error(error),
                    Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)
                ) =>
            {
                None
            }
            Failure::Refused(_) | Failure::NoMultiGet(_) => Some(true),
            _ => Some(false),
        }
    }

    pub(crate) fn malformed(what: &str, line: &[u8]) -> Failure {
        let shown = &line[..line.len().min(60)];
        Failure::Malformed(format!("{what}: {}", shown.escape_ascii()))
    }
}
