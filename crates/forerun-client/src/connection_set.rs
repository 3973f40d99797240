//! The connections of one call, at most one to each server. Concurrent calls use different sets.
//! After a call, its set is kept for the next one.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use forerun_core::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::Failure;
use crate::net::{Addresses, Connection, Peer, Resolver, Tls};
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
    /// When a request was last answered.
    pub(crate) last_used: Instant,
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
    pub(crate) resolver: &'a Arc<Resolver>,
    pub(crate) tls: Option<&'a Tls>,
    pub(crate) credentials: Option<&'a Credentials>,
    pub(crate) idle_timeout: Duration,
}

impl Connector<'_> {
    /// Opens a connection. If there is a password, its request begins with it. Also returns the
    /// further addresses of the server.
    fn open(&self, now: Instant) -> io::Result<(Connection, Vec<Peer>)> {
        let (mut connection, peers) = match Resolver::addresses(self.resolver, now)? {
            Addresses::Known(addresses) => {
                let (mut connection, peers) = self.connect(addresses.peers, now)?;
                connection.addresses_version = addresses.version;
                (connection, peers)
            }
            Addresses::Unknown(resolution) => (Connection::resolving(resolution, now), Vec::new()),
        };
        if let Some(credentials) = self.credentials {
            compose::authenticate(credentials, connection.output());
            connection.authenticates = true;
        }
        Ok((connection, peers))
    }

    fn connect(&self, mut peers: Vec<Peer>, now: Instant) -> io::Result<(Connection, Vec<Peer>)> {
        loop {
            let peer = peers.remove(0);
            match Connection::open(&peer, self.resolver.host(), self.tls, now) {
                Ok(connection) => return Ok((connection, peers)),
                Err(error) if peers.is_empty() => return Err(error),
                Err(_) => {}
            }
        }
    }

    /// Whether a connection of an earlier call can be used for this one.
    fn keeps(&self, connection: &mut Connection, now: Instant) -> bool {
        let mut version = connection.addresses_version;
        let has_address = connection
            .peer()
            .is_some_and(|peer| Resolver::has_address(self.resolver, peer, &mut version, now));
        connection.addresses_version = version;
        if !has_address {
            return false;
        }
        let is_usable = connection.is_usable(now);
        if !is_usable {
            Resolver::refresh(self.resolver);
        }
        is_usable && connection.idle_time(now) <= self.idle_timeout
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
            && connector.keeps(&mut connection, now)
        {
            return Ok((connection, Vec::new()));
        }
        connector.open(now).map_err(Failure::Connect)
    }
}

/// The sets that no call uses. The one that was used last is used next, so the others age.
#[derive(Debug)]
pub(crate) struct IdleSets {
    sets: Mutex<VecDeque<ConnectionSet>>,
    idle_timeout: Duration,
}

impl IdleSets {
    pub(crate) fn new(idle_timeout: Duration) -> IdleSets {
        IdleSets {
            sets: Mutex::default(),
            idle_timeout,
        }
    }

    fn sets(&self) -> MutexGuard<'_, VecDeque<ConnectionSet>> {
        self.sets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn take(&self, servers: usize, now: Instant) -> ConnectionSet {
        let idle = self.sets().pop_back();
        idle.unwrap_or_else(|| ConnectionSet {
            connections: (0..servers).map(|_| None).collect(),
            positions: Positions::default(),
            last_used: now,
        })
    }

    /// The number of sets.
    pub(crate) fn count(&self) -> usize {
        self.sets().len()
    }

    /// Keeps a set for the next call. Closes those that no call has used for too long.
    pub(crate) fn put(&self, mut set: ConnectionSet) {
        if set.positions.order.capacity() > POSITIONS_KEPT {
            set.positions = Positions::default();
        }
        let now = set.last_used;
        let is_old = |idle: &ConnectionSet| {
            now.saturating_duration_since(idle.last_used) > self.idle_timeout
        };
        let mut old = Vec::new();
        let mut sets = self.sets();
        while sets.front().is_some_and(is_old) {
            old.extend(sets.pop_front());
        }
        if sets.len() < IDLE_SETS_MAX {
            sets.push_back(set);
        }
        drop(sets);
        // Closing connections takes time, in which other calls need the sets.
        drop(old);
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
