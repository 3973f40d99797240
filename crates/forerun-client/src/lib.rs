//! A client of memcached servers: Forerun's own and memcached itself.
//!
//! [`Client::multi_get`] asks all servers of a batch at once: it sends every request before it
//! reads the first answer, so a batch over many servers takes about as long as one over one server.
//!
//! ```text
//!   server_address   Endpoint, weight          ring/       which server has a key: ketama, rendezvous
//!   options, tls     ClientOptions             health      which servers are ejected
//!   values           Lookups, Sink, Report     protocol/   requests; replies, from the bytes so far
//!   write_report     WriteReport               conversation/  the replies that a request expects
//!   calls            the calls, as futures     wait        in the caller's thread or an event loop
//!   commands         the blocking calls        stats       the client's counters
//!   pending          calls for event loops     interrupt   asks a function whether to stop waiting
//!   lookups          batches of lookups        failed_deletes  what to delete when a server is back
//!   batches          batches of writes         net/        sockets that never block, connections, names
//!   ring_client      commands, the servers     round       sends to all, polls, reads from all
//!   raw_connection   one server, lines and values
//! ```
//!
//! # Guarantees
//! - A call ends within [`ClientOptions::timeout`], whatever servers do. The client waits for the
//!   resolver when it is created. Later, a call that connects waits for it within its time.
//! - A connection whose answer was not read to its end is closed, so an answer never belongs to
//!   another request. In the meta protocol each answer also repeats a number of its request.
//! - A connection's buffer has at most `max_value_bytes` plus 64 KiB. It grows as bytes arrive: an
//!   announced length takes no memory.
//! - Bytes from a server never cause a panic. Invalid ones are [`Failure::Malformed`].

#![forbid(unsafe_code)]

mod batches;
mod calls;
mod commands;
mod connection_set;
mod conversation;
mod error;
mod expiry;
mod failed_deletes;
mod health;
mod interrupt;
mod lookups;
mod net;
mod new_value;
mod options;
mod pending;
mod protocol;
mod raw_connection;
mod ring;
mod ring_client;
mod round;
mod server_address;
mod stats;
#[cfg(feature = "tls")]
mod tls;
mod values;
mod wait;
mod write_report;

pub use calls::{Calls, CasResult};
pub use error::{Error, Failure, KeyError};
pub use expiry::Expiration;
#[cfg(feature = "ucx")]
pub use forerun_ucx::UcxError;
pub use new_value::NewValue;
pub use options::{ClientOptions, Credentials, EjectedKeys, Protocol};
pub use pending::Pending;
pub use raw_connection::RawConnection;
pub use ring_client::Client;
// Hidden: for the fuzz targets.
#[doc(hidden)]
pub use protocol::frame_reply::fuzz_frame_replies;
#[doc(hidden)]
pub use protocol::reply::fuzz_replies;
pub use ring::{Placement, Ring};
pub use server_address::{DEFAULT_PORT, Endpoint, ServerAddress};
pub use stats::ClientStats;
#[cfg(feature = "tls")]
pub use tls::TlsOptions;
pub use values::{Lookup, Lookups, Report, ServerFailure, Sink, Unanswered, Value, ValueBuf};
pub use wait::{EventLoop, Readiness, Wait, Watched};
pub use write_report::{Unwritten, WriteReport};
