//! RESP: this workspace's server compared with Redis or Valkey, or these two with each other.
//!
//! ```text
//!   generate/              a seed's history
//!   programs.rs            Redis and Valkey
//!   servers.rs             the two servers, fences, scans
//!   reply_value.rs         replies as values
//!   compare_values.rs      compares two replies to the same request
//!   known_differences.rs   the intended differences
//! ```

mod compare_values;
mod generate;
mod known_differences;
mod programs;
mod reply_value;
mod servers;

use std::fmt::Write;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result};

use super::command::Command;
use super::protocol::Protocol;
use super::step::Step;
pub(super) use known_differences::DIFFERENCES;
use programs::{Kind, RedisProgram};
use servers::RespServers;

/// The two servers that are compared.
#[derive(Clone, Debug)]
pub(super) struct Resp {
    /// A program to test. Without one, it is this workspace's server.
    server: Option<RedisProgram>,
    peer: RedisProgram,
}

impl Resp {
    /// Finds both programs. `None` if the peer is absent.
    ///
    /// # Errors
    /// `server` is absent, or one of them is not a Redis server.
    pub(super) fn find(server: Option<&Path>, peer: &Path) -> Result<Option<Self>> {
        let find = |path: &Path| {
            RedisProgram::find(path)?.with_context(|| format!("there is no {}", path.display()))
        };
        let server = server.map(find).transpose()?;
        Ok(RedisProgram::find(peer)?.map(|peer| Self { server, peer }))
    }

    fn kinds(&self) -> [Kind; 2] {
        let ours = self.server.as_ref().map(|program| program.kind);
        [ours.unwrap_or(Kind::Forerun), self.peer.kind]
    }
}

impl Protocol for Resp {
    type Servers = RespServers;

    fn names(&self) -> [String; 2] {
        let ours = self.server.as_ref().map(RedisProgram::to_string);
        [
            ours.unwrap_or_else(|| "forerun".to_owned()),
            self.peer.to_string(),
        ]
    }

    fn options(&self) -> String {
        let mut options = " --protocol resp".to_owned();
        if let Some(server) = &self.server {
            // Writing to a string cannot fail.
            let _ = write!(options, " --server {}", server.path.display());
        }
        let _ = write!(options, " --peer {}", self.peer.path.display());
        options
    }

    fn history(&self, seed: u64) -> Vec<Step> {
        generate::history(seed, self.kinds())
    }

    fn removable(&self, command: &Command) -> Range<usize> {
        1.min(command.words.len())..command.words.len()
    }

    fn start(&self, dir: &Path) -> Result<RespServers> {
        RespServers::start(self.server.as_ref(), &self.peer, dir)
    }
}

/// The histories of a seed for all pairs of servers.
#[cfg(test)]
pub(super) fn histories(seed: u64) -> Vec<Vec<Step>> {
    [
        [Kind::Forerun, Kind::Redis],
        [Kind::Forerun, Kind::Valkey],
        [Kind::Redis, Kind::Valkey],
    ]
    .map(|kinds| generate::history(seed, kinds))
    .to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::differential::command::Word;
    use crate::differential::testing;

    /// This workspace's server or another, and a peer on the PATH. If one is absent, a test is
    /// skipped and prints that.
    fn servers(server: Option<&str>, peer: &str) -> Option<Resp> {
        let find = |name: &str| {
            let found = RedisProgram::find(Path::new(name)).expect("it has a version");
            if found.is_none() {
                testing::skipped(&format!("no {name} on the PATH"));
            }
            found
        };
        let server = match server {
            Some(name) => Some(find(name)?),
            None => None,
        };
        let peer = find(peer)?;
        Some(Resp { server, peer })
    }

    #[test]
    fn histories_that_failed_once_get_identical_answers() {
        testing::kept_histories_agree("resp", servers(None, "redis").as_ref());
    }

    #[test]
    fn fixed_seeds_get_identical_answers() {
        for peer in ["redis", "valkey"] {
            if let Some(resp) = servers(None, peer) {
                testing::fixed_seeds_agree(&resp);
            }
        }
    }

    #[test]
    fn a_server_answers_like_itself() {
        for name in ["redis", "valkey"] {
            if let Some(resp) = servers(Some(name), name) {
                testing::fixed_seeds_agree(&resp);
            }
        }
    }

    #[test]
    fn redis_and_valkey_differ_only_as_listed() {
        if let Some(resp) = servers(Some("redis"), "valkey") {
            testing::fixed_seeds_agree(&resp);
        }
    }

    #[test]
    fn a_difference_is_found_and_its_history_shrunk() {
        let Some(resp) = servers(None, "redis") else {
            return;
        };
        let step = |line: &str| {
            let words = line.split(' ').map(Word::text).collect();
            Step::new(0, vec![Command::array(words)])
        };
        // A listed difference among steps that have none.
        let steps = ["SET a 1", "MGET a b", "READONLY", "INCR a"].map(step);
        let shortest = testing::shrunk_to_one_step(&resp, &steps);
        assert_eq!(shortest.commands, steps[2].commands);
    }

    #[test]
    fn a_seed_is_the_same_history_every_time() {
        assert_eq!(histories(7), histories(7));
        assert_ne!(histories(7), histories(8));
    }
}
