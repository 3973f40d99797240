//! Rendezvous hashing (Thaler and Ravishankar, 1998): a key belongs to the server whose hash with
//! the key is the highest. Without weights, it places keys as pymemcache's `HashClient` does.

use super::short_hashes::murmur3_32;
use crate::server_address::ServerAddress;

/// The servers' names and weights.
#[derive(Clone, Debug)]
pub(super) struct Rendezvous {
    servers: Vec<Candidate>,
    weights_differ: bool,
}

#[derive(Clone, Debug)]
struct Candidate {
    server: u32,
    name: String,
    weight: u32,
}

impl Rendezvous {
    pub(super) fn new(servers: &[(u32, &ServerAddress)]) -> Rendezvous {
        let candidate = |(server, address): &(u32, &ServerAddress)| Candidate {
            server: *server,
            name: address.name(),
            weight: address.weight.max(1),
        };
        let servers: Vec<Candidate> = servers.iter().map(candidate).collect();
        let weights_differ = servers
            .windows(2)
            .any(|pair| pair[0].weight != pair[1].weight);
        Rendezvous {
            servers,
            weights_differ,
        }
    }

    pub(super) fn server_of(&self, key: &[u8]) -> usize {
        let score = |candidate: &Candidate| {
            let hash = murmur3_32([candidate.name.as_bytes(), b"-", key]);
            if self.weights_differ {
                // Weighted rendezvous (Schindelhauer and Schomaker, 2005): the logarithm of a
                // uniform number, divided by the weight.
                let uniform = (f64::from(hash) + 0.5) / (1_u64 << 32) as f64;
                -f64::from(candidate.weight) / uniform.ln()
            } else {
                f64::from(hash)
            }
        };
        let mut best: Option<(f64, &Candidate)> = None;
        for candidate in &self.servers {
            let score = score(candidate);
            let wins = best.is_none_or(|(highest, best)| {
                score > highest || (score == highest && candidate.name > best.name)
            });
            if wins {
                best = Some((score, candidate));
            }
        }
        best.map_or(0, |(_, candidate)| candidate.server as usize)
    }
}
