//! What `bench server` is asked for.

use super::requests::{Operation, Protocol};
use crate::output::{Output, or};
use crate::size::parse_size;
use crate::skew::Skew;
use std::path::PathBuf;
use std::time::Duration;

/// Measure the cache server, with memcached beside it where there is one
///
/// Starts `forerun serve` as a process of its own, and memcached where it is found, both with the same memory and threads,
/// pinned to cores apart from the clients' cores. Clients keep one request under way on each connection and drive the two
/// in alternation. Requests are composed beforehand; the length of every reply is checked, and one reply in 1024 byte by
/// byte. The table says what share of its core the client used: near 100%, the client was what was measured.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  forerun bench server
  forerun bench server --operation get --keys 100 --protocol classic --skew uniform --rounds 9
  forerun bench server --value-bytes 64,1024 --connections 1,64 --report server.html")]
pub struct Args {
    /// Items in the cache; fewer where that many do not fit in half the memory
    #[arg(long, value_name = "N", value_parser = parse_size)]
    pub items: Option<usize>,

    /// Bytes a value [default: 64,4096]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    pub value_bytes: Vec<usize>,

    /// Keys a request [default: 1,10,100]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub keys: Vec<usize>,

    /// What is asked for [default: get,set]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum)]
    pub operation: Vec<Operation>,

    /// In which words [default: classic,meta]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum)]
    pub protocol: Vec<Protocol>,

    /// Which items how often [default: uniform,zipf:0.99]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub skew: Vec<Skew>,

    /// Connections of all clients together [default: 64]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub connections: Vec<usize>,

    /// Threads of each server, and of the client
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub threads: u16,

    /// Memory of each server [default: 1GiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub memory: Option<usize>,

    /// The server measured [default: this program's own `serve`]
    #[arg(long, value_name = "FILE")]
    pub server: Option<PathBuf>,

    /// The memcached beside it
    #[arg(long, value_name = "FILE", default_value = "memcached")]
    pub memcached: PathBuf,

    /// Without memcached
    #[arg(long)]
    pub alone: bool,

    /// Rounds, output, quick mode
    #[command(flatten)]
    pub output: Output,
}

/// One thing to measure on every server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cell {
    pub(super) value_bytes: usize,
    pub(super) items: usize,
    pub(super) operation: Operation,
    pub(super) protocol: Protocol,
    pub(super) skew: Skew,
    pub(super) keys: usize,
    pub(super) connections: usize,
}

impl Args {
    pub(super) fn memory_bytes(&self) -> usize {
        let default = if self.output.quick { 64 << 20 } else { 1 << 30 };
        self.memory.unwrap_or(default)
    }

    /// How long a server is driven in a round.
    pub(super) fn turn(&self) -> Duration {
        let default = if self.output.quick { 20 } else { 500 };
        Duration::from_millis(self.output.duration_ms.unwrap_or(default).into())
    }

    /// All cells, those of a value size together, gets before sets: what is set may push something out.
    pub(super) fn cells(&self) -> Vec<Cell> {
        let quick = self.output.quick;
        let by_size = |small: &[usize], all: &[usize]| if quick { small } else { all }.to_vec();
        let mut operations = or(&self.operation, &[Operation::Get, Operation::Set]);
        operations.sort_unstable();
        let mut cells = Vec::new();
        for value_bytes in or(&self.value_bytes, &by_size(&[64], &[64, 4096])) {
            let fit = self.memory_bytes() / 2 / (value_bytes + 128);
            let asked = self.items.unwrap_or(if quick { 2_000 } else { 2_000_000 });
            let items = asked.min(fit).max(1);
            for &operation in &operations {
                for protocol in or(&self.protocol, &[Protocol::Classic, Protocol::Meta]) {
                    for skew in or(&self.skew, &[Skew::Uniform, Skew::Zipf(0.99)]) {
                        for keys in or(&self.keys, &by_size(&[1, 100], &[1, 10, 100])) {
                            for connections in or(&self.connections, &by_size(&[4], &[64])) {
                                cells.push(Cell {
                                    value_bytes,
                                    items,
                                    operation,
                                    protocol,
                                    skew,
                                    keys: keys.max(1),
                                    connections: connections.max(1),
                                });
                            }
                        }
                    }
                }
            }
        }
        cells
    }
}
