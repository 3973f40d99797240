//! The command line of the bench `client`.

use crate::output::{Output, Timing, or};
use anyhow::{Result, ensure};
use forerun_client::Protocol;
use forerun_core::size::{parse_count, parse_size};
use std::fmt;
use std::path::PathBuf;

/// The client's batches over one server and over several, compared with asking one after the other
#[derive(clap::Args, Clone, Debug, Default, PartialEq)]
#[command(after_help = "\
Examples:
  forerun-bench client
  forerun-bench client --servers 1,4 --keys 100 --protocol classic --duration-ms 1000
  forerun-bench client --memcached memcached --report client.html

Each server is a process with one thread. Servers are pinned to the first core and the client to \
the following one. All servers hold all items, so the same requests go to one server and to \
several. `overlapped` is one multi_get: it sends to all servers before it reads. `in turn` asks \
the same servers for the same keys, one after the other. The column `of one server` is the time of \
a batch as a share of the time with one server. Every value is compared, untimed.

--quick shows that everything runs: 2000 items of 64 bytes.")]
pub struct Args {
    /// Servers that share the keys [default: 1,2,4]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    pub servers: Vec<usize>,

    /// Keys per batch [default: 1,10,100]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    pub keys: Vec<usize>,

    /// Protocols [default: classic,meta]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub protocol: Vec<Spoken>,

    /// Items in each server [default: 200k; with --quick 2000]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub items: Option<u64>,

    /// Bytes per value
    #[arg(long, value_name = "SIZE", default_value = "64", value_parser = parse_size)]
    pub value_bytes: usize,

    /// Measure this memcached instead of this program's `serve`
    #[arg(long, value_name = "PROGRAM")]
    pub memcached: Option<PathBuf>,

    /// How long a case is timed.
    #[command(flatten)]
    pub timing: Timing,

    /// Rounds and formats.
    #[command(flatten)]
    pub output: Output,
}

/// A protocol's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Spoken {
    /// One `get` line per server
    Classic,
    /// One quiet `mg` per key
    Meta,
    /// Multi-get frames, which memcached does not have
    #[value(name = "multi_get")]
    MultiGet,
}

impl fmt::Display for Spoken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Spoken::Classic => "classic",
            Spoken::Meta => "meta",
            Spoken::MultiGet => "multi_get",
        })
    }
}

impl From<Spoken> for Protocol {
    fn from(spoken: Spoken) -> Protocol {
        match spoken {
            Spoken::Classic => Protocol::Classic,
            Spoken::Meta => Protocol::Meta,
            Spoken::MultiGet => Protocol::MultiGet,
        }
    }
}

/// The lists, with defaults filled in.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Plan {
    pub servers: Vec<usize>,
    pub keys: Vec<usize>,
    pub protocols: Vec<Spoken>,
    pub items: u64,
}

impl Args {
    pub(super) fn plan(&self) -> Result<Plan> {
        let servers = or(&self.servers, &[1, 2, 4]);
        ensure!(
            servers.iter().all(|servers| (1..=64).contains(servers)),
            "--servers must be from 1 to 64"
        );
        let keys = or(&self.keys, &[1, 10, 100]);
        ensure!(
            keys.iter().all(|keys| (1..=10_000).contains(keys)),
            "--keys must be from 1 to 10000 per batch"
        );
        ensure!(self.value_bytes <= 100_000, "--value-bytes: 100000 at most");
        let items = self
            .items
            .unwrap_or(if self.output.quick { 2000 } else { 200_000 });
        ensure!(
            (1..=10_000_000).contains(&items),
            "--items must be from 1 to 10M"
        );
        Ok(Plan {
            servers,
            keys,
            protocols: or(&self.protocol, &[Spoken::Classic, Spoken::Meta]),
            items,
        })
    }
}
