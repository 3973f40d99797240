//! Ketama: a circle of hashes on which each server has many points. A key belongs to the server of
//! the first point at or after the key's hash (Richard Jones, last.fm, 2007). The variants here are
//! those of libmemcached and twemproxy.
//!
//! ```text
//!   points   │ hash, server │ hash, server │ …                     sorted by hash
//!   begins   │ first point of slice 0 │ … of slice 1 │ …           slice = the hash's high bits
//! ```

use super::md5;
use crate::server_address::ServerAddress;

/// Points of a server without weights.
const POINTS: usize = 100;
/// Points of a server of average weight, four from each digest.
const WEIGHTED_POINTS: u32 = 160;
/// The number of high bits of a hash that select a slice.
const SLICE_BITS: u32 = 10;

/// The circle.
#[derive(Clone, Debug)]
pub(super) struct Ketama {
    points: Vec<(u32, u32)>,
    begins: Vec<u32>,
}

impl Ketama {
    /// A hundred points per server, each the hash of a name, as with libmemcached's
    /// `MEMCACHED_BEHAVIOR_KETAMA`.
    pub(super) fn unweighted(servers: &[(u32, &ServerAddress)], hash: fn(&[u8]) -> u32) -> Ketama {
        let mut points = Vec::with_capacity(servers.len() * POINTS);
        for (server, address) in servers {
            let name = address.ketama_name();
            let point = |at| hash(format!("{name}-{at}").as_bytes());
            points.extend((0..POINTS).map(|at| (point(at), *server)));
        }
        Ketama::from_points(points)
    }

    /// 160 points for a server of average weight, four from each digest, as with libmemcached's
    /// `MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED` and in twemproxy.
    pub(super) fn weighted(servers: &[(u32, &ServerAddress)]) -> Ketama {
        let weight = |address: &ServerAddress| address.weight.max(1);
        let total: u64 = servers
            .iter()
            .map(|(_, address)| u64::from(weight(address)))
            .sum();
        let mut points = Vec::new();
        for (server, address) in servers {
            // Use `f32`, as libmemcached and twemproxy do: another precision would round some
            // weights differently.
            let share = weight(address) as f32 / total as f32;
            let digests = share * WEIGHTED_POINTS as f32 / 4.0 * servers.len() as f32;
            let digests = (f64::from(digests) + 0.000_000_000_1) as f32;
            let name = address.ketama_name();
            for at in 0..digests.floor() as u32 {
                let digest = md5::digest(format!("{name}-{at}").as_bytes());
                points.extend(digest.map(|hash| (hash, *server)));
            }
        }
        Ketama::from_points(points)
    }

    fn from_points(mut points: Vec<(u32, u32)>) -> Ketama {
        points.sort_by_key(|(hash, _)| *hash);
        let slices = 0..1_u32 << SLICE_BITS;
        let begin = |slice: u32| {
            let first = slice << (u32::BITS - SLICE_BITS);
            points.partition_point(|(hash, _)| *hash < first) as u32
        };
        let begins = slices.map(begin).collect();
        Ketama { points, begins }
    }

    /// The server of a key with this hash.
    #[inline]
    pub(super) fn server_of(&self, hash: u32) -> usize {
        let begin = self.begins[(hash >> (u32::BITS - SLICE_BITS)) as usize] as usize;
        let from_slice = self.points[begin..].iter();
        let found = from_slice.copied().find(|(point, _)| *point >= hash);
        // After the last point, the circle starts over.
        found
            .or(self.points.first().copied())
            .map_or(0, |(_, server)| server as usize)
    }
}
