//! Connections to servers. Nothing here blocks.

mod connection;
mod frame_credits;
mod plain_socket;
mod resolution;
mod resolver;
mod socket;
#[cfg(feature = "ucx")]
pub(crate) mod ucx;
#[cfg(not(feature = "ucx"))]
#[path = "ucx_none.rs"]
pub(crate) mod ucx;
pub(crate) mod ucx_poll;

pub(crate) use connection::{Connection, Interest};
pub(crate) use plain_socket::SocketAddress;
pub(crate) use resolver::{Addresses, Lookup, Resolver, system_lookup};
pub(crate) use socket::{Peer, Socket, Tls};
