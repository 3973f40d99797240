//! `forerun-bench stress`: a store under random work, compared with what it should hold; or killed
//! again and again, and compared with what it had acknowledged.
//!
//! ```text
//! mixed   threads of this process write, look up and scan; each knows what its own keys hold
//! crash   a child process writes and acknowledges; this process kills it, opens the store and compares
//! script  the writes of a crash run: which write is the n-th of a thread follows from the seed alone
//! server  a cache server in a process of its own, and clients of every kind
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

use forerun_cli::exit::{Outcome, UsageError};

/// Stress a store with random work, or with kills, and check it
///
/// Without --crash, several threads put, delete, write batches, look up (single keys, batches by
/// every strategy, from snapshots) and scan both ways, and compare each answer with what it has to
/// be; now and then the store is closed, opened and compared whole. One batch of lookups in four is
/// answered again key by key.
///
/// With --crash, a child process writes and acknowledges each finished write; it is killed at a
/// random time (SIGKILL), the store is opened and must hold each acknowledged write (a put, a
/// deletion, a batch, an ingestion), and of the one write a thread had under way either all or
/// nothing. Then a new child goes on with the same store. In four cycles of five the child also
/// ingests, backs up, makes checkpoints or drops keyspaces, and is killed while it does: an
/// ingestion must be whole or absent, a dropped keyspace stays dropped, and backups and checkpoints
/// must open as of a moment while they were made.
///
/// With --server, a cache server is started, and clients of every kind set upon it: busy ones, slow
/// readers, half-closed connections, some that go away in the middle of a command, some that say
/// what is none. Every value carries its key and version and is checked: a value may be forgotten,
/// but not be an old, a foreign or a damaged one. The server may neither answer a well-formed
/// request by an error nor exceed its memory limit by more than 5% (or 16 MiB, where that is more).
///
/// With --gpu-table, half of the lanes insert, erase, add and pin, and half look keys up beside
/// them, on one hash table in the GPU's memory: each lane is a stream, or a thread where there is
/// no GPU. A row must be whole and of its time, what is pinned stays, sums are exact, and after
/// each round the table holds what it must, each key once.
///
/// The seed is printed. A fault ends the run with exit code 4 and leaves the store for inspection.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forerun-bench stress --seconds 60 --threads 4
  forerun-bench stress --ops 100000 --seed 7
  forerun-bench stress --crash --cycles 200
  forerun-bench stress --server --seconds 600 --connections 1000 --memory 512
  forerun-bench stress --gpu-table --seconds 120 --threads 8")]
pub struct Args {
    /// For how long [default: 10, where --ops is not given]
    #[arg(long, value_name = "N", conflicts_with_all = ["ops", "crash"])]
    seconds: Option<u64>,
    /// For how many operations of all threads together
    #[arg(long, value_name = "N", conflicts_with = "crash")]
    ops: Option<u64>,
    /// Threads, or lanes, that work at once
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Where the random choices begin [default: another one each time]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Kill a writing child process and check what is left
    #[arg(long)]
    crash: bool,
    /// How often it is killed
    #[arg(long, value_name = "N", default_value_t = 10, requires = "crash")]
    cycles: u64,
    /// Set clients upon a cache server
    #[arg(long, conflicts_with_all = ["ops", "crash", "dir"])]
    server: bool,
    /// Clients of the server at once
    #[arg(long, value_name = "N", default_value_t = 1000, requires = "server", value_parser = clap::value_parser!(u32).range(1..=20_000))]
    connections: u32,
    /// The server's memory limit, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 512, requires = "server", value_parser = clap::value_parser!(u64).range(8..=1 << 20))]
    memory: u64,
    /// Race lanes of work on a hash table of the GPU
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
    /// What the child of a crash run does beside its writes, and the number of the first time
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
        return crash::write(dir, seed, from, args.operation);
    }
    if args.server {
        server::run(&server::Plan {
            seconds: args.seconds.unwrap_or(10),
            seed,
            connections: args.connections,
            memory_mib: args.memory,
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
    let place = Workplace::new(args.dir.as_deref())?;
    if args.crash {
        crash::run(&place, seed, threads, args.cycles)?;
    } else {
        mixed::run(&place, seed, threads, budget)?;
    }
    place.clear();
    Ok(Outcome::Done)
}

/// The directory in which a run's stores lie. It is left as it is where a run ends by a fault.
struct Workplace {
    root: PathBuf,
    temporary: bool,
}

impl Workplace {
    fn new(dir: Option<&Path>) -> anyhow::Result<Workplace> {
        let Some(dir) = dir else {
            let root = tempfile::Builder::new().prefix("forerun-stress-").tempdir();
            let root = root.context("cannot make a temporary directory")?.keep();
            return Ok(Workplace {
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
                "{} is not empty: stress wants a directory of its own",
                dir.display()
            ))
            .into());
        }
        Ok(Workplace {
            root: dir.to_path_buf(),
            temporary: false,
        })
    }

    /// Where the `number`-th store of this run lies.
    fn store(&self, number: u64) -> PathBuf {
        self.root.join(format!("store-{number:04}"))
    }

    /// Removes a store that was found good, and what is beside it.
    fn remove_store(&self, number: u64) -> anyhow::Result<()> {
        let path = self.store(number);
        crash::remove_beside(&path)?;
        std::fs::remove_dir_all(&path).with_context(|| format!("cannot remove {}", path.display()))
    }

    /// Removes a temporary workplace after a run without a fault.
    fn clear(self) {
        if self.temporary {
            // Nothing depends on it, and the system clears its temporary directory some day.
            let _ = std::fs::remove_dir_all(&self.root);
        }
    }
}
