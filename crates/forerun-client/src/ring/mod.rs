//! Which server has a key.
//!
//! ```text
//!   Ring ┬─ Ketama      points on a circle     md5 (several keys at once), short_hashes
//!        └─ Rendezvous  the highest hash
//! ```

mod ketama;
mod md5;
mod rendezvous;
mod short_hashes;

use crate::server_address::ServerAddress;
use ketama::Ketama;
use rendezvous::Rendezvous;

/// The number of keys of a batch that are hashed at once.
const LANES: usize = 8;

/// How keys are distributed over the servers. All clients of a group of servers must agree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Placement {
    /// Ketama with weights, as in libmemcached with `MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED` and in
    /// twemproxy with `distribution: ketama` and `hash: md5`.
    #[default]
    Ketama,
    /// Ketama without weights, as in libmemcached with `MEMCACHED_BEHAVIOR_KETAMA` and its default
    /// hash, one-at-a-time. Libmemcached switches to [`Ketama`](Placement::Ketama) if a server has
    /// a weight above 1.
    KetamaUnweighted,
    /// Ketama with the hash `fnv1a_64`, twemproxy's default. Keys that differ only in their last
    /// bytes are often on one server.
    KetamaFnv1a64,
    /// Rendezvous hashing. If all weights are equal, it places keys as pymemcache's `HashClient`
    /// does. It distributes keys more evenly than ketama, but its time grows with the number of
    /// servers.
    Rendezvous,
}

/// The distribution of keys over servers.
///
/// ```
/// use forerun_client::{Placement, Ring, ServerAddress};
///
/// let servers = ["10.0.1.1:11211".parse()?, "10.0.1.2:11211:3".parse::<ServerAddress>()?];
/// let ring = Ring::new(Placement::Ketama, &servers);
/// assert!(ring.server_of(b"key") < 2);
/// # Ok::<(), forerun_client::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Ring(Kind);

#[derive(Clone, Debug)]
enum Kind {
    /// There is only one server.
    One(usize),
    /// Ketama with MD5, which hashes several keys at once.
    Md5(Ketama),
    Ketama(Ketama, fn(&[u8]) -> u32),
    Rendezvous(Rendezvous),
}

impl Ring {
    /// Creates the distribution over these servers.
    pub fn new(placement: Placement, servers: &[ServerAddress]) -> Ring {
        let all: Vec<(u32, &ServerAddress)> = (0..).zip(servers).collect();
        Ring::of(placement, &all)
    }

    /// Creates the distribution over some servers, each with its number.
    pub(crate) fn of(placement: Placement, servers: &[(u32, &ServerAddress)]) -> Ring {
        if let [] | [_] = servers {
            return Ring(Kind::One(servers.first().map_or(0, |(at, _)| *at as usize)));
        }
        Ring(match placement {
            Placement::Ketama => Kind::Md5(Ketama::weighted(servers)),
            Placement::KetamaUnweighted => {
                let hash = short_hashes::one_at_a_time;
                Kind::Ketama(Ketama::unweighted(servers, hash), hash)
            }
            Placement::KetamaFnv1a64 => {
                Kind::Ketama(Ketama::weighted(servers), short_hashes::fnv1a_64)
            }
            Placement::Rendezvous => Kind::Rendezvous(Rendezvous::new(servers)),
        })
    }

    /// The position of a key's server in the list from which the ring was created. 0 if that list
    /// is empty.
    pub fn server_of(&self, key: &[u8]) -> usize {
        match &self.0 {
            Kind::One(server) => *server,
            Kind::Md5(ketama) => ketama.server_of(md5::digest(key)[0]),
            Kind::Ketama(ketama, hash) => ketama.server_of(hash(key)),
            Kind::Rendezvous(rendezvous) => rendezvous.server_of(key),
        }
    }

    /// Like [`server_of`](Self::server_of) for a batch. Calls `visit` with the position and the
    /// server of each key, in order.
    pub fn servers_of<K: AsRef<[u8]>>(&self, keys: &[K], mut visit: impl FnMut(usize, usize)) {
        let Kind::Md5(ketama) = &self.0 else {
            for (at, key) in keys.iter().enumerate() {
                visit(at, self.server_of(key.as_ref()));
            }
            return;
        };
        let (groups, rest) = keys.as_chunks::<LANES>();
        for (group, keys) in groups.iter().enumerate() {
            let hashes = md5::first_words(keys.each_ref().map(AsRef::as_ref));
            for (lane, hash) in hashes.into_iter().enumerate() {
                visit(group * LANES + lane, ketama.server_of(hash));
            }
        }
        let done = groups.len() * LANES;
        for (at, key) in rest.iter().enumerate() {
            visit(done + at, self.server_of(key.as_ref()));
        }
    }
}
