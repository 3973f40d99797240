//! The command line of the bench `server`.

use super::data::{Items, KEY_BYTES};
use super::form::{Form, Protocol};
use super::index_study::IndexName;
use super::link::{ClientWait, LinkKind, Transport};
use super::multi_get_form::{DEPTH_MAX, KEYS_MAX};
use crate::output::{Output, Timing, or};
use crate::skew::Skew;
use anyhow::{Result, bail, ensure};
use forerun_core::size::{parse_count, parse_size};
use std::fmt;
use std::path::PathBuf;

/// The maximum overhead of an item besides its key and value, in any of the servers. It decides how
/// many items fit.
const ITEM_OVERHEAD_BYTES: u64 = 100;

/// The share of the memory that items should fill: a log needs space besides live items.
const FILL: f64 = 0.6;

/// The cache server over the network, compared with memcached
#[derive(clap::Args, Clone, Debug, Default, PartialEq)]
#[command(after_help = "\
Examples:
  forerun-bench server
  forerun-bench server --items 2M --value-bytes 64 --keys 1,10,100 --form get --access uniform \
  --duration-ms 1000
  forerun-bench server --threads 4 --clients 4 --report server.html
  forerun-bench server --protocol memcached,resp --peer redis,valkey --value-bytes 64 --depth 10
  forerun-bench server --transport tcp,ucx --client-wait sleep,poll --keys 1,10,100 \
  --connections 1 --alone --json

The server and memcached, if it is on the PATH, run in separate processes (the server is this \
program's `serve`), with the same threads and memory. Servers are pinned to the first cores and \
clients to the following ones. Both servers are loaded with the same items and measured \
alternately; while one is measured, the other is idle. The forms of reading alternate too.

Forms: get is one classic get of all keys; mg is a quiet meta get per key, sent together and \
followed by mn; multi_get is one binary multi-get frame of all keys, which memcached does not \
have; set is a classic set per key, sent together. In RESP, resp_get is a GET per key, sent \
together (a pipeline of so many), resp_mget one MGET of all keys, and resp_set a SET per key; the \
programs of --peer are measured beside this server, and ratios are to the first of them. Each \
connection has --depth requests in \
flight. Requests are composed before timing starts. Replies are recognised by their lengths and \
last bytes, and one in 32 is compared byte by byte. The column `client` shows what share of its \
core the load generator used: near 100%, it is the bottleneck, not the server.

--transport tcp,ucx measures this server over both in one run, alternately. With --client-wait \
poll, clients ask for replies again and again instead of sleeping, which uses all of their cores. \
The server itself polls UCX for 20 us after each message.

--study tail measures how long a set into a full cache takes during gat, snapshots, flush_all and \
a storm of expiries, one disturbance at a time, on this server and memcached in turn. One \
connection sets at --rate, and a set's time counts from when it was due. The study uses \
--value-bytes (the first), --memory, --threads, --rounds and --duration-ms, and starts and fills a \
new server for every turn. slow_snapshot writes so slowly (serve --snapshot-rate) that the \
snapshot outlasts the round; --snapshot-dir names a directory on a disk that is slow by itself. \
Loops of idle priority keep the cores awake, so that the times do not contain how long the host \
takes to wake them. If other programs use the cores, the study measures them instead, as the \
column core wait shows; as root, `chrt -f 10` before the command keeps them away:

  forerun-bench server --study tail --value-bytes 1Ki --memory 256Mi --disturbance \
  none,flush_all,slow_snapshot

--study index exchanges the index of one server: MemC3's, cuckoo and bucketized tables with and \
without vector instructions, the production table and the production cache. The study's server has \
the product's parser and sockets, one thread, and gets only, and reports the time per key in each \
phase of a request. A name is design/strategy/isa, as in `forerun-bench hash`; this project's \
complete server and memcached are measured in the same rounds. Ratios to MemC3's index are within \
one transport:

  forerun-bench server --study index --keys 10,32,100 --report index.html
  forerun-bench server --study index --transport tcp,ucx --client-wait poll --connections 1 --json
  forerun-bench server --study index --index bucketized2x4/find/avx2,table --alone

--study memory loads a new server at a time with --items (10M) and reports its memory per item, \
in each protocol:

  forerun-bench server --study memory --protocol memcached,resp --items 10M --value-bytes 64

--quick shows that everything runs: 2000 items of 64 bytes.")]
pub struct Args {
    /// Items to load, or fewer if they do not fit in 60% of the memory [default: 2M, and 3.5M with
    /// --study index; with --quick 2000]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub items: Option<u64>,

    /// Bytes per value; the servers are reloaded for each size [default: 64,1Ki,4Ki; with --quick
    /// 64]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    pub value_bytes: Vec<usize>,

    /// Protocols [default: memcached]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub protocol: Vec<Protocol>,

    /// Forms of requests [default: all of the protocols]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub form: Vec<Form>,

    /// Keys per request [default: 1,10,100; with --study index 10,32,100]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    pub keys: Vec<usize>,

    /// Which items are requested: uniform, zipf:0.99 [default: both; with --study index uniform]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub access: Vec<Skew>,

    /// Threads of each server
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=256)
    )]
    pub threads: u16,

    /// Memory of each server [default: 1GiB; with --quick 64MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_count)]
    pub memory: Option<u64>,

    /// Client threads, each with its own connections
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=256)
    )]
    pub clients: u16,

    /// Connections of all clients together
    #[arg(
        long,
        value_name = "N",
        default_value_t = 16,
        value_parser = clap::value_parser!(u16).range(1..=10_000)
    )]
    pub connections: u16,

    /// Requests in flight on each connection
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=1000)
    )]
    pub depth: u16,

    /// What carries connections [default: tcp]; memcached has tcp only
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub transport: Vec<Transport>,

    /// What clients do while they have no reply [default: sleep]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub client_wait: Vec<ClientWait>,

    /// Another program to measure instead of this one's `serve`; it gets memcached's long options
    #[arg(long, value_name = "PROGRAM")]
    pub server: Option<PathBuf>,

    /// The memcached to compare with, such as one built from its source
    #[arg(long, value_name = "PROGRAM", default_value = "memcached")]
    pub memcached: PathBuf,

    /// Servers to compare with in RESP: programs, or redis or valkey for redis-server or
    /// valkey-server [default: those of the two that are on the PATH]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub peer: Vec<PathBuf>,

    /// Leave the other servers out
    #[arg(long)]
    pub alone: bool,

    /// Measure this instead of requests per second
    #[arg(long, value_name = "STUDY")]
    pub study: Option<Study>,

    /// With --study index: indexes to measure, along with memc3 [default: eleven]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub index: Vec<IndexName>,

    /// With --study tail: sets per second
    #[arg(
        long,
        value_name = "N",
        default_value_t = 5000,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000)
    )]
    pub rate: u32,

    /// With --study tail: disturbances to measure sets with [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub disturbance: Vec<Disturbance>,

    /// With --study tail: directory for this server's snapshots [default: the system's temporary
    /// directory]
    #[arg(long, value_name = "DIR")]
    pub snapshot_dir: Option<PathBuf>,

    /// How long a case is timed.
    #[command(flatten)]
    pub timing: Timing,

    /// Rounds and formats.
    #[command(flatten)]
    pub output: Output,
}

/// Measured instead of requests per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Study {
    /// How long sets into a full cache take while something disturbs them.
    Tail,
    /// What the index contributes to a server's speed and latency.
    Index,
    /// How much memory an item takes.
    Memory,
}

/// A disturbance that runs along with the sets of `--study tail`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Disturbance {
    /// Nothing
    None,
    /// Consecutive `gat` commands of 30 keys each
    Gat,
    /// Consecutive snapshots of the running server
    Snapshot,
    /// A snapshot of the running server that takes the whole round, as on a slow disk
    SlowSnapshot,
    /// `flush_all`, ten times per second
    FlushAll,
    /// Half of the items expire in the same second
    Expiry,
}

impl Disturbance {
    pub(super) const ALL: [Disturbance; 6] = [
        Disturbance::None,
        Disturbance::Gat,
        Disturbance::Snapshot,
        Disturbance::SlowSnapshot,
        Disturbance::FlushAll,
        Disturbance::Expiry,
    ];

    /// Whether this server writes snapshots at the same time.
    pub(super) fn is_snapshot(self) -> bool {
        matches!(self, Disturbance::Snapshot | Disturbance::SlowSnapshot)
    }
}

impl fmt::Display for Disturbance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Disturbance::None => "none",
            Disturbance::Gat => "gat",
            Disturbance::Snapshot => "snapshot",
            Disturbance::SlowSnapshot => "slow_snapshot",
            Disturbance::FlushAll => "flush_all",
            Disturbance::Expiry => "expiry",
        })
    }
}

/// The lists, with defaults filled in.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Plan {
    pub protocols: Vec<Protocol>,
    pub loads: Vec<Items>,
    pub forms: Vec<Form>,
    pub keys: Vec<usize>,
    pub access: Vec<Skew>,
    pub memory_mib: u64,
    pub clients: usize,
    /// Connections per client.
    pub connections: usize,
    /// How clients reach this server; the first is the one for loading.
    pub links: Vec<LinkKind>,
}

impl Args {
    pub(super) fn plan(&self) -> Result<Plan> {
        let quick = self.output.quick;
        let is_index = self.study == Some(Study::Index);
        let items = self.items.unwrap_or(match (quick, self.study) {
            (true, _) => 2000,
            // Fills 83% of the slots of MemC3's index, whose number is a power of two.
            (false, Some(Study::Index)) => 3_500_000,
            (false, Some(Study::Memory)) => 10_000_000,
            (false, Some(Study::Tail) | None) => 2_000_000,
        });
        let memory = self.memory.unwrap_or(match (quick, self.study) {
            (true, Some(Study::Tail)) => 16 << 20,
            (true, _) => 64 << 20,
            (false, Some(Study::Tail)) => 256 << 20,
            (false, Some(Study::Memory)) => 4 << 30,
            (false, Some(Study::Index) | None) => 1 << 30,
        });
        ensure!(items > 0, "--items must be at least 1");
        ensure!(memory >= 8 << 20, "--memory must be at least 8 MiB");
        let keys = or(
            &self.keys,
            if is_index {
                &[10, 32, 100]
            } else {
                &[1, 10, 100]
            },
        );
        ensure!(
            keys.iter().all(|keys| (1..=10_000).contains(keys)),
            "--keys must be from 1 to 10000 per request"
        );
        let protocols = or(&self.protocol, &[Protocol::Memcached]);
        ensure!(
            protocols == [Protocol::Memcached] || matches!(self.study, None | Some(Study::Memory)),
            "--protocol: this study is of memcached's"
        );
        let all: Vec<&[Form]> = protocols.iter().map(|one| Form::all_of(*one)).collect();
        let forms = or(&self.form, &all.concat());
        if let Some(form) = forms
            .iter()
            .find(|form| !protocols.contains(&form.protocol()))
        {
            bail!("--form: {form} is of a protocol that --protocol does not list");
        }
        if forms.contains(&Form::MultiGet) && !is_index {
            ensure!(
                keys.iter().all(|keys| *keys <= KEYS_MAX),
                "--keys: a request of the form multi_get takes at most {KEYS_MAX}"
            );
            ensure!(
                self.depth <= DEPTH_MAX,
                "--depth: a connection has at most {DEPTH_MAX} requests of the form multi_get"
            );
        }
        let sizes: &[usize] = match (quick, self.study) {
            (_, Some(Study::Tail)) => &[1024],
            (true, _) | (_, Some(Study::Index | Study::Memory)) => &[64],
            (false, None) => &[64, 1024, 4096],
        };
        let sizes = or(&self.value_bytes, sizes);
        ensure!(
            sizes.iter().all(|bytes| *bytes <= 1_000_000),
            "--value-bytes: 1000000 at most"
        );
        let loads = sizes.iter().map(|&value_bytes| {
            let item_bytes = value_bytes as u64 + KEY_BYTES as u64 + ITEM_OVERHEAD_BYTES;
            let fit = (memory as f64 * FILL) as u64 / item_bytes;
            Items {
                count: items.min(fit).max(1),
                value_bytes,
            }
        });
        let clients = usize::from(self.clients);
        let mut links = Vec::new();
        for wait in or(&self.client_wait, &[ClientWait::Sleep]) {
            for transport in or(&self.transport, &[Transport::Tcp]) {
                for &protocol in &protocols {
                    // This server speaks RESP over sockets only.
                    if protocol == Protocol::Memcached || transport == Transport::Tcp {
                        links.push(LinkKind {
                            protocol,
                            transport,
                            wait,
                        });
                    }
                }
            }
        }
        ensure!(!links.is_empty(), "--transport: RESP is measured over tcp");
        ensure!(
            self.server.is_none() || links.iter().all(|link| link.transport == Transport::Tcp),
            "--transport: another program than this one's server is measured over tcp"
        );
        Ok(Plan {
            protocols,
            links,
            loads: loads.collect(),
            forms,
            keys,
            access: if is_index {
                or(&self.access, &[Skew::Uniform])
            } else {
                or(&self.access, &[Skew::Uniform, Skew::Zipf(0.99)])
            },
            memory_mib: memory >> 20,
            clients,
            connections: usize::from(self.connections).div_ceil(clients),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> Args {
        Args {
            clients: 2,
            connections: 5,
            ..Args::default()
        }
    }

    #[test]
    fn as_many_items_as_fit_are_loaded() {
        let plan = args().plan().unwrap();
        assert_eq!(plan.loads[0].count, 2_000_000);
        assert!(plan.loads[2].count * (4096 + 16) < (1 << 30) * 6 / 10);
        assert_eq!((plan.memory_mib, plan.connections), (1024, 3));
    }

    #[test]
    fn the_forms_of_the_listed_protocols_are_measured() {
        let forms = |protocol: &[Protocol]| {
            let args = Args {
                protocol: protocol.to_vec(),
                ..args()
            };
            let plan = args.plan().unwrap();
            assert_eq!(plan.links.len(), plan.protocols.len());
            plan.forms
        };
        assert_eq!(forms(&[]), Form::all_of(Protocol::Memcached));
        assert_eq!(forms(&[Protocol::Resp]), Form::all_of(Protocol::Resp));
        let both = forms(&[Protocol::Memcached, Protocol::Resp]);
        assert_eq!(both.len(), 7);
    }

    #[test]
    fn invalid_lists_are_refused_by_name() {
        let error_of = |args: Args| args.plan().unwrap_err().to_string();
        assert!(
            error_of(Args {
                keys: vec![0],
                ..args()
            })
            .contains("--keys")
        );
        assert!(
            error_of(Args {
                memory: Some(1),
                ..args()
            })
            .contains("--memory")
        );
        assert!(
            error_of(Args {
                form: vec![Form::RespGet],
                ..args()
            })
            .contains("--form")
        );
        assert!(
            error_of(Args {
                protocol: vec![Protocol::Resp],
                study: Some(Study::Tail),
                ..args()
            })
            .contains("--protocol")
        );
        assert!(
            error_of(Args {
                items: Some(0),
                ..args()
            })
            .contains("--items")
        );
    }
}
