//! `forerun-bench stress`: a store under random work, compared with what it should hold; or killed
//! repeatedly and compared with what it had acknowledged.
//!
//! ```text
//! mixed      threads of this process write, look up and scan; each knows what its own keys hold
//! crash      a child process writes and acknowledges; this process kills it, opens the store and compares
//! script     the writes of a crash run: the seed alone determines the n-th write of a thread
//! server     a cache server in its own process, and clients of every kind
//! gpu_table  lanes of work that race on one hash table of a GPU
//! ```

mod crash;
mod gpu_table;
mod mixed;
mod script;
mod server;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;

use forerun_bench::server::link::Transport;
use forerun_cli::exit::{Outcome, UsageError};

/// Stress a store with random work or kills, and check it
///
/// Without --crash, several threads put, delete, write batches, look up (single keys, batches by
/// every strategy, from snapshots) and scan in both directions, and compare each answer with the
/// expected one. Now and then the store is closed, reopened and compared as a whole. One batch of
/// lookups in four is repeated key by key.
///
/// With --crash, a child process writes and acknowledges each finished write. It is killed at a
/// random time (SIGKILL). Then the store is opened and must hold every acknowledged write (a put, a
/// deletion, a batch, an ingestion). Each thread's unfinished write must be complete or absent. A
/// new child continues with the same store. Each opening has its own checks, index of memtables and
/// strategy for batches, drawn by the seed, and a child looks up its own keys as it writes. In four
/// cycles of five the child also ingests, backs up, makes checkpoints or drops keyspaces, and is
/// killed during that: an ingestion must be complete or absent, a dropped keyspace must stay
/// dropped, and backups and checkpoints must open and show the store at one moment during their
/// creation.
///
/// With --server, a cache server is started, and clients of every kind connect to it: busy ones,
/// slow readers, some that sleep while large values wait for them, half-closed connections, some
/// that disconnect in the middle of a command, some that send malformed commands. Values have 10
/// bytes to a sixteenth of the memory, at most 4 MiB. Every value contains its version and is
/// checked: the server may forget a value, but not return an old, a foreign or a damaged one. With
/// --disable-evictions, it may refuse a value, but not forget one that it has acknowledged. One
/// client in ten uses TLS. Meanwhile snapshots are written, certificates replaced, and the memory
/// limit lowered to three quarters and raised again, all at an interval. The server may not answer
/// a well-formed request with an error, except that a store from 15 KiB on may find no memory. Its
/// memory may exceed the limit by 3% (or 8 MiB, if that is more), the limit of the connections'
/// buffers, the connections and the program's pages. Uploads, buffers and waiting values must keep
/// their limits. The server must close the sockets of all clients that are gone. With --transport
/// ucx, the clients without TLS connect over UCX; none of them is half-closed or sleeps, and some
/// vanish as if their process were killed. Then UCX may take 16 MiB and 8 KiB per connection more,
/// and the segments of shared memory that the server maps are counted apart: 536 KiB per
/// connection.
///
/// With --gpu-table, half of the lanes insert, erase, add and pin, and the other half look up keys
/// concurrently, on one hash table in the GPU's memory. Each lane is a stream, or a thread if there
/// is no GPU. A row must be complete and current, pinned rows stay, sums are exact, and after each
/// round the table holds the expected contents, each key once.
///
/// Prints the seed. A fault ends the run with exit code 4 and leaves the store for inspection.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forerun-bench stress --seconds 60 --threads 4
  forerun-bench stress --ops 100000 --seed 7
  forerun-bench stress --crash --cycles 200
  forerun-bench stress --crash --cycles 200 --checks paranoid --strategy finger
  forerun-bench stress --server --seconds 600 --connections 1000 --memory 512
  forerun-bench stress --server --transport ucx --seconds 600
  forerun-bench stress --gpu-table --seconds 120 --threads 8")]
pub struct Args {
    /// Seconds to run [default: 10, unless --ops is given]
    #[arg(long, value_name = "N", conflicts_with_all = ["ops", "crash"])]
    seconds: Option<u64>,
    /// Operations of all threads together
    #[arg(long, value_name = "N", conflicts_with = "crash")]
    ops: Option<u64>,
    /// Concurrent threads; with --gpu-table, lanes
    #[arg(
        long,
        value_name = "N",
        default_value_t = 4,
        value_parser = clap::value_parser!(u16).range(1..=256)
    )]
    threads: u16,
    /// Seed of the random choices [default: a new one each time]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Kill a writing child process and check what is left
    #[arg(long)]
    crash: bool,
    /// Number of kills
    #[arg(long, value_name = "N", default_value_t = 10, requires = "crash")]
    cycles: u64,
    /// How a crash run opens its stores.
    #[command(flatten)]
    opening: crash::Requested,
    /// Run clients against a cache server
    #[arg(long, conflicts_with_all = ["ops", "crash", "dir"])]
    server: bool,
    /// Concurrent clients of the server
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1000,
        requires = "server",
        value_parser = clap::value_parser!(u32).range(1..=20_000)
    )]
    connections: u32,
    /// What carries the clients' connections, except those with TLS
    #[arg(long, value_enum, default_value_t, requires = "server")]
    transport: Transport,
    /// The server's memory limit, in MiB
    #[arg(
        long,
        value_name = "MIB",
        default_value_t = 512,
        requires = "server",
        value_parser = clap::value_parser!(u64).range(8..=1 << 20)
    )]
    memory: u64,
    /// Let the server refuse new items when its memory is full, instead of evicting
    #[arg(long, requires = "server")]
    disable_evictions: bool,
    /// Seconds between snapshots, new certificates and changes of the server's memory limit
    /// [default: a tenth of the time, at most 60]
    #[arg(
        long,
        value_name = "N",
        requires = "server",
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    operate_every: Option<u64>,
    /// Run concurrent lanes of work on a hash table on the GPU
    #[arg(long, conflicts_with_all = ["crash", "server", "dir"])]
    gpu_table: bool,
    /// An empty or new directory for the store, which is kept [default: a temporary one]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Run as the child of a crash run: the number of each thread's first write
    #[arg(
        long,
        hide = true,
        value_delimiter = ',',
        requires = "crash",
        requires = "seed",
        requires = "dir"
    )]
    write_from: Option<Vec<u64>>,
    /// The operation that the child of a crash run repeats besides its writes, and the number to
    /// begin with
    #[arg(long, hide = true, requires = "write_from", value_parser = crash::parse_operation)]
    operation: Option<(crash::Operation, u64)>,
}

/// When a run without kills ends.
#[derive(Clone, Copy, Debug)]
enum Budget {
    Time(Duration),
    Ops(u64),
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let seed = args.seed.unwrap_or_else(rand::random);
    if let (Some(from), Some(dir)) = (&args.write_from, &args.dir) {
        let opening = crash::Opening::draw(seed, 0, &args.opening);
        return crash::write(dir, &opening, seed, from, args.operation);
    }
    if args.server {
        let seconds = args.seconds.unwrap_or(10);
        let operator_interval_s = args.operate_every.unwrap_or((seconds / 10).clamp(1, 60));
        server::run(&server::Plan {
            seconds,
            operator_interval: Duration::from_secs(operator_interval_s),
            seed,
            connections: args.connections,
            memory_mib: args.memory,
            evicts: !args.disable_evictions,
            transport: args.transport,
        })?;
        return Ok(Outcome::Done);
    }
    let threads = usize::from(args.threads);
    let budget = match (args.ops, args.seconds) {
        (Some(ops), _) => Budget::Ops(ops),
        (None, seconds) => Budget::Time(Duration::from_secs(seconds.unwrap_or(10))),
    };
    if args.gpu_table {
        let lanes = threads.max(2);
        gpu_table::run(&gpu_table::Plan {
            seed,
            lanes,
            budget,
        })?;
        return Ok(Outcome::Done);
    }
    let place = WorkDirectory::new(args.dir.as_deref())?;
    if args.crash {
        crash::run(&place, seed, threads, args.cycles, &args.opening)?;
    } else {
        mixed::run(&place, seed, threads, budget)?;
    }
    place.clear();
    Ok(Outcome::Done)
}

/// The directory for a run's stores. It is left unchanged if a run ends with a fault.
struct WorkDirectory {
    root: PathBuf,
    temporary: bool,
}

impl WorkDirectory {
    fn new(dir: Option<&Path>) -> anyhow::Result<WorkDirectory> {
        let Some(dir) = dir else {
            let root = tempfile::Builder::new().prefix("forerun-stress-").tempdir();
            let root = root.context("cannot make a temporary directory")?.keep();
            return Ok(WorkDirectory {
                root,
                temporary: true,
            });
        };
        let make = || -> std::io::Result<bool> {
            std::fs::create_dir_all(dir)?;
            Ok(std::fs::read_dir(dir)?.next().is_none())
        };
        if !make().with_context(|| format!("cannot make {}", dir.display()))? {
            return Err(UsageError(format!(
                "{} is not empty: stress needs its own directory",
                dir.display()
            ))
            .into());
        }
        Ok(WorkDirectory {
            root: dir.to_path_buf(),
            temporary: false,
        })
    }

    /// The path of the `number`-th store of this run.
    fn store(&self, number: u64) -> PathBuf {
        self.root.join(format!("store-{number:04}"))
    }

    /// Removes a store that passed, and the files next to it.
    fn remove_store(&self, number: u64) -> anyhow::Result<()> {
        let path = self.store(number);
        crash::remove_beside(&path)?;
        std::fs::remove_dir_all(&path).with_context(|| format!("cannot remove {}", path.display()))
    }

    /// Removes a temporary directory after a run without a fault.
    fn clear(self) {
        if self.temporary {
            // Nothing depends on this, and the system clears its temporary directory eventually.
            let _ = std::fs::remove_dir_all(&self.root);
        }
    }
}
