//! A cache server that speaks memcached's protocol and answers every request as a batch.
//!
//! ```text
//!   session/   one connection without a socket: bytes in, bytes out          Session::receive
//!   protocol/  the lines of the protocol: tokens, numbers, classic and meta commands
//!   input.rs   bytes received and not yet taken        output.rs   bytes to be sent, bounded
//!   shared.rs  what all sessions of a server share     context.rs  what one thread's sessions share
//!   counters.rs   what is counted                      settings.rs what the operator decides
//! ```

#![forbid(unsafe_code)]

mod context;
mod counters;
mod input;
mod output;
#[allow(dead_code)]
mod protocol;
mod session;
mod settings;
mod shared;

pub use context::Context;
pub use counters::{Counter, Counters};
pub use input::Input;
pub use output::Output;
pub use session::{Next, Session};
pub use settings::Settings;
pub use shared::{ConnectionStats, Host, NoHost, Shared};
