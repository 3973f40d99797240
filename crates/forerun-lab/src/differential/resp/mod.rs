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

use super::command::{Command, Step};
use super::protocol::Protocol;
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
