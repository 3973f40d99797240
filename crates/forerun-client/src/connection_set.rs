//! The connections of one call, at most one to each server. Concurrent calls use different sets.
//! After a call, its set is kept for the next one.

use std::io;
use std::ops::Range;
use std::time::Instant;

use forerun_core::sync::{Mutex, PoisonError};

use crate::error::Failure;
use crate::net::{Connection, Peer, Resolver, Tls};
use crate::options::Credentials;
use crate::protocol::compose;

/// Maximum number of sets that are kept. More exist while more calls run concurrently.
const IDLE_SETS_MAX: usize = 64;
/// A set keeps memory for at most this many positions of a batch.
const POSITIONS_KEPT: usize = 64 << 10;

/// Connections, and the memory of a batch.
#[derive(Debug)]
pub(crate) struct ConnectionSet {
    pub(crate) connections: Vec<Option<Connection>>,
    pub(crate) positions: Positions,
}

/// The keys of a batch by server.
#[derive(Debug, Default)]
pub(crate) struct Positions {
    servers: Vec<u32>,
    /// Where each server's keys begin in `order`, and, as the last entry, where all keys end.
    pub(crate) begins: Vec<usize>,
    /// The positions of keys, grouped by server. Within a server they are in the caller's order.
    pub(crate) order: Vec<u32>,
    /// Which entries of `order` have an answer.
    pub(crate) answered: Vec<bool>,
}

impl Positions {
    /// Groups `keys` keys by server. `servers_of` calls its argument with the server of each key,
    /// in order.
    pub(crate) fn group(
        &mut self,
        keys: usize,
        servers: usize,
        servers_of: impl FnOnce(&mut dyn FnMut(usize)),
    ) {
        self.servers.clear();
        self.servers.reserve(keys);
        self.begins.clear();
        self.begins.resize(servers + 1, 0);
        servers_of(&mut |server| {
            self.servers.push(server as u32);
            self.begins[server] += 1;
        });
        // Turn counts into ends. The loop below turns the ends into begins.
        let mut end = 0;
        for count in &mut self.begins {
            end += *count;
            *count = end;
        }
        self.order.clear();
        self.order.resize(keys, 0);
        for (at, server) in self.servers.iter().enumerate().rev() {
            let begin = &mut self.begins[*server as usize];
            *begin -= 1;
            self.order[*begin] = at as u32;
        }
        self.answered.clear();
        self.answered.resize(keys, false);
    }
}

/// The servers that have keys, each with its part of `order`. `begins` is the field of
/// [`Positions`].
pub(crate) fn parts(begins: &[usize]) -> impl Iterator<Item = (usize, Range<usize>)> {
    let parts = begins.windows(2).map(|ends| ends[0]..ends[1]);
    parts.enumerate().filter(|(_, part)| !part.is_empty())
}

/// How a client opens connections.
#[derive(Debug)]
pub(crate) struct Connector<'a> {
    pub(crate) resolver: &'a Resolver,
    pub(crate) host: &'a str,
    pub(crate) tls: Option<&'a Tls>,
    pub(crate) credentials: Option<&'a Credentials>,
}

impl Connector<'_> {
    /// Opens a connection. If there is a password, its request begins with it. Also returns the
    /// further addresses of the server.
    fn open(&self, now: Instant) -> io::Result<(Connection, Vec<Peer>)> {
        let mut peers = self.resolver.peers()?;
        loop {
            let peer = peers.remove(0);
            match Connection::open(&peer, self.host, self.tls, now) {
                Ok(mut connection) => {
                    if let Some(credentials) = self.credentials {
                        compose::authenticate(credentials, connection.output());
                        connection.authenticates = true;
                    }
                    return Ok((connection, peers));
                }
                Err(error) if peers.is_empty() => return Err(error),
                Err(_) => {}
            }
        }
    }
}

impl ConnectionSet {
    /// Takes the connection to a server out of the set, or starts connecting.
    ///
    /// # Errors
    /// [`Failure::Connect`].
    pub(crate) fn take(
        &mut self,
        server: usize,
        connector: &Connector<'_>,
        now: Instant,
    ) -> Result<(Connection, Vec<Peer>), Failure> {
        if let Some(mut connection) = self.connections[server].take()
            && connection.is_usable(now)
        {
            return Ok((connection, Vec::new()));
        }
        connector.open(now).map_err(Failure::Connect)
    }
}

/// The sets that no call uses.
#[derive(Debug, Default)]
pub(crate) struct IdleSets(Mutex<Vec<ConnectionSet>>);

impl IdleSets {
    pub(crate) fn take(&self, servers: usize) -> ConnectionSet {
        let idle = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.unwrap_or_else(|| ConnectionSet {
            connections: (0..servers).map(|_| None).collect(),
            positions: Positions::default(),
        })
    }

    /// The number of sets.
    pub(crate) fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    pub(crate) fn put(&self, mut set: ConnectionSet) {
        if set.positions.order.capacity() > POSITIONS_KEPT {
            set.positions = Positions::default();
        }
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_SETS_MAX {
            idle.push(set);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_grouped_by_server_in_their_order() {
        let mut positions = Positions::default();
        for _ in 0..2 {
            positions.group(5, 3, |visit| [2, 0, 2, 2, 0].into_iter().for_each(visit));
            assert_eq!(positions.order, [1, 4, 0, 2, 3]);
            assert_eq!(positions.begins, [0, 2, 2, 5]);
            assert_eq!(positions.answered, [false; 5]);
            assert!(parts(&positions.begins).eq([(0, 0..2), (2, 2..5)]));
        }
    }
}
