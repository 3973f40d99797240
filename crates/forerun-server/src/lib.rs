//! A cache server that speaks memcached's protocol and RESP, the protocol of Redis, and looks up
//! pipelined requests in batches.
//!
//! ```text
//!   session/   one connection without a socket: bytes in, bytes out          Session::receive
//!   protocol/  its syntax: lines, tokens, numbers, meta commands, binary requests
//!   resp_session/  the same for a client of RESP                             RespSession::receive
//!   resp/      the syntax of RESP, the protocol of Redis
//!   input.rs   bytes received, not yet consumed        output.rs   bytes to be sent, bounded
//!   shared.rs  state of all sessions of a server
//!   counters.rs   the counters, listed once            settings.rs what sessions obey, and report
//!   command_counters.rs, error_counters.rs  counts of each command of RESP, and of its errors
//!   prefix_counts.rs  counts by key prefix          watch.rs   log lines for clients that watch,
//!   waiting_values.rs values that wait for readers       which watch_lines.rs composes
//!   warm_up.rs  which keys clients change while a new server is filled
//!
//!   server/    threads and sockets: Server       net/     addresses, listeners, TLS
//!   auth.rs    the file of users                 address.rs  where servers listen
//!   snapshot/  saves the cache to a file         system.rs   the operating system, behind a trait
//!   metrics/   metrics for Prometheus     latency.rs   histograms of the time that requests take
//!   process.rs memory and CPU time of the process       health.rs  answers to health checks
//!   error.rs, snapshot_error.rs  the errors             log_limit.rs  bounds what is logged
//!   os_system.rs  the system of a real server           regular_file.rs  opens files, not devices
//! ```

#![forbid(unsafe_code)]

mod address;
mod auth;
mod command_counters;
mod counters;
mod error;
mod error_counters;
mod health;
mod input;
mod latency;
mod log_limit;
mod metrics;
mod net;
mod os_system;
mod output;
mod prefix_counts;
mod process;
mod protocol;
mod regular_file;
mod resp;
mod resp_session;
mod server;
mod session;
mod settings;
mod shared;
mod snapshot;
mod snapshot_error;
#[cfg(feature = "study")]
mod study_sockets;
mod system;
mod testing;
mod waiting_values;
mod warm_up;
mod watch;
mod watch_lines;

pub use address::{Address, Listen, Protocol, UNIX_MODE, UcxOptions};
pub use counters::{Counter, Counters, SessionStats};
pub use error::Error;
pub use input::Input;
pub use net::{MinVersion, TlsOptions, VerifyClient};
pub use output::Output;
pub use server::{OnVerbosity, Server, ServerError, ServerHandle, ServerOptions, SnapshotOptions};
pub use session::{Context, Session, SessionState};
pub use settings::Settings;
pub use shared::{ConnectionStats, NoServer, RefreshError, ServerControl, Shared};
pub use snapshot::{SnapshotStats, read_snapshot, write_snapshot};
pub use snapshot_error::SnapshotError;
// Hidden: for the fuzz targets.
#[doc(hidden)]
pub use testing::{fuzz_binary, fuzz_multi_get, fuzz_resp, fuzz_session, fuzz_snapshot};

/// The protocol and the sockets without a cache behind them, for studies of other indexes.
#[cfg(feature = "study")]
pub mod study {
    pub use crate::session::study::{GetParser, Gets, Part, push_item, push_text};
    pub use crate::study_sockets::{Connection, Sockets};
    pub use crate::system::Ready;
}

/// A server on a simulated system that the caller runs step by step.
#[cfg(feature = "simulation")]
pub mod simulation {
    pub use crate::address::Peer;
    pub use crate::server::SteppedServer;
    pub use crate::snapshot::read_from_system as read_snapshot;
    pub use crate::system::{Carrier, Listening, Readiness, Ready, System, WAKE, Wake};
}
