//! Connections to servers. Nothing here blocks.

mod connection;
mod frame_credits;
mod resolver;
mod socket;

pub(crate) use connection::{Connection, Interest};
pub(crate) use resolver::Resolver;
pub(crate) use socket::{Peer, Tls};
