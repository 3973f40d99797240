//! Forerun's benches with its peers: same data, same cells, same checks, alternating rounds.
//!
//! - `memtable`: the bare memtable beside RocksDB, memtable only, with its default options, with
//!   its finger search (`memtable_batch_lookup_optimization`, its pull request 14428), with its
//!   options for point lookups, and with its hash tables.
//! - `seeds`: the tables of RocksDB's pull request 14428, with RocksDB measured along.
//! - `btree`: a bare run beside LMDB, and RocksDB with all entries in one sorted run in memory:
//!   blocks in its cache, with its default options, those for point lookups, or another index
//!   (`kAuto`, `trie_index`), or a PlainTable.
//! - `ycsb`: RocksDB, LMDB, redb and fjall, on disk, as programs use them.
//! - `workloads`: RocksDB and fjall, with a column family or keyspace for each keyspace.
//! - `scan`: LMDB, with all data in memory.
//! - `hash`: hashbrown, papaya and scc.
//! - `table`: RocksDB and LMDB, with a value per row.
//! - `raft`: the storage of a Raft node, on RocksDB with the layout of openraft's example.
//!
//! Building RocksDB takes a C++ toolchain, libclang and a quarter of an hour. Therefore this crate
//! is not a default member of the workspace, and RocksDB is a feature of it, as are the other
//! stores on disk:
//!
//! ```sh
//! cargo run --release -p forerun-bench-compare -- memtable --batch 1,32,64
//! cargo run --release -p forerun-bench-compare --no-default-features --features lmdb -- \
//!     ycsb --workload b,c
//! cargo run --release -p forerun-bench-compare --no-default-features -- hash --size 1GiB
//! ```

#[cfg(any(
    feature = "rocksdb",
    feature = "lmdb",
    feature = "redb",
    feature = "fjall"
))]
mod copied;
#[cfg(feature = "fjall")]
mod fjall;
#[cfg(feature = "lmdb")]
mod lmdb;
mod maps;
mod pages;
mod peers;
#[cfg(feature = "raft")]
mod raft;
#[cfg(feature = "redb")]
mod redb;
#[cfg(feature = "rocksdb")]
mod rocks;
#[cfg(any(feature = "rocksdb", feature = "lmdb"))]
mod rows;

use clap::Parser;
use forerun_bench::engine::Engine;
use forerun_bench::hash::contender::GET;
#[cfg(feature = "lmdb")]
use forerun_bench::scan;
#[cfg(any(feature = "rocksdb", feature = "lmdb"))]
use forerun_bench::table;
use forerun_bench::{btree, hash, workloads, ycsb};
#[cfg(feature = "rocksdb")]
use forerun_bench::{memtable, output::Output, seeds};

/// Forerun's benches, with its peers
#[derive(Parser)]
#[command(name = "forerun-bench-compare", version)]
enum Command {
    /// The bare memtable, compared with RocksDB, which has everything in its memtable
    ///
    /// Forerun's memtable is called directly, with --in-store also through its whole engine, as
    /// RocksDB is. Each --peer is RocksDB with other options, measured with Get and MultiGet. The
    /// column of ratios to a peer compares with MultiGet of the first --peer. Peers whose arena
    /// uses huge pages take reserved ones (sysctl vm.nr_hugepages), and fall back to normal pages
    /// if too few are free; the results say which they got.
    #[cfg(feature = "rocksdb")]
    Memtable(Box<Memtable>),

    /// The tables of RocksDB's pull request 14428 (seed 004) beside Forerun's memtable and RocksDB
    ///
    /// RocksDB is measured with its defaults and with its finger search, and both stores through
    /// their whole engines too. `forerun-bench seeds` has the other seeds.
    #[cfg(feature = "rocksdb")]
    Seeds(Box<Seeds>),

    /// One bare run of Forerun's, compared with LMDB and RocksDB if they are built in
    ///
    /// Forerun's run is called directly, and the peers through their whole engines. RocksDB is
    /// measured with Get and MultiGet, LMDB with get. The column of ratios to a peer compares with
    /// the first --peer: RocksDB's MultiGet, or LMDB's get. The peers support only --order
    /// bytewise.
    Btree(Box<Btree>),

    /// YCSB's core workloads on Forerun's store and on other stores on disk
    ///
    /// All stores get the same operations in the same rounds, the same threads, and a cache of the
    /// same size, except LMDB, whose cache is the system's. RocksDB looks up batches with MultiGet,
    /// the others with a loop in one transaction. No store syncs at each write. The column of
    /// ratios to a peer compares with the first --peer.
    Ycsb(Box<Ycsb>),

    /// Latencies under six shapes of work, on Forerun's store and on others with several keyspaces
    ///
    /// All stores have their default options. RocksDB has a column family for each keyspace,
    /// ingests one file, and drops expired rows only when it compacts. fjall has neither range
    /// deletes nor TTLs and skips those shapes; LMDB and redb skip all.
    Workloads(Box<Workloads>),

    /// Scans of Forerun's store, compared with LMDB's
    ///
    /// LMDB's cache is the system's. Each of its scans has its own transaction.
    #[cfg(feature = "lmdb")]
    Scan(scan::Args),

    /// Forerun's hash table, compared with hashbrown's, papaya's and scc's
    ///
    /// The column of ratios to a peer compares with `get` of hashbrown in a loop. Without --design
    /// it measures table, memc3, hashbrown, papaya and scc; the last two take several times the
    /// memory of the others.
    Hash(Hash),

    /// Forerun's table of rows, compared with RocksDB and LMDB if they are built in
    ///
    /// RocksDB is measured with MultiGet and with Get (rocksdb-get), with a block cache as large as
    /// the budget of rows and --cache together; LMDB's cache is the system's. The column of ratios
    /// to a peer compares with RocksDB's MultiGet, or without it with LMDB. Only Forerun reports
    /// "from memory" and "moved".
    #[cfg(any(feature = "rocksdb", feature = "lmdb"))]
    Table(table::Args),

    /// The storage of a Raft node, compared with RocksDB
    ///
    /// Entries appended to the log, applied to the state machine, and looked up there, per second.
    /// rocksdb-example writes as openraft's example store does, and syncs appended entries besides;
    /// rocksdb writes one batch for each call. The column of ratios compares with rocksdb.
    #[cfg(feature = "raft")]
    Raft(raft::Args),
}

#[cfg(feature = "rocksdb")]
#[derive(clap::Args)]
struct Memtable {
    /// RocksDBs to compare with [default: rocksdb-finger,rocksdb]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    peer: Vec<rocks::RocksMemtable>,

    /// The kind of pages for the peers' memory; --pages is for Forerun's
    #[arg(long, default_value = "huge")]
    peer_pages: pages::Peers,

    #[command(flatten)]
    bench: memtable::Args,
}

#[cfg(feature = "rocksdb")]
#[derive(clap::Args)]
struct Seeds {
    /// The kind of pages for RocksDB's memory
    #[arg(long, default_value = "huge")]
    peer_pages: pages::Peers,

    #[command(flatten)]
    output: Output,
}

#[derive(clap::Args)]
struct Btree {
    /// Stores to compare with Forerun's run [default: rocksdb,lmdb, as far as built in]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    peer: Vec<peers::RunPeer>,

    /// The kind of pages for the peers' memory, except for mapped files
    #[arg(long, default_value = "huge")]
    peer_pages: pages::Peers,

    #[command(flatten)]
    bench: btree::Args,
}

#[derive(clap::Args)]
struct Ycsb {
    /// Stores to compare with Forerun's [default: rocksdb,lmdb,redb,fjall, as far as built in]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    peer: Vec<peers::Peer>,

    #[command(flatten)]
    bench: ycsb::Args,
}

#[derive(clap::Args)]
struct Workloads {
    /// Stores to compare with Forerun's [default: rocksdb,fjall, as far as built in]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    peer: Vec<peers::Peer>,

    #[command(flatten)]
    bench: workloads::Args,
}

#[derive(clap::Args)]
struct Hash {
    /// The kind of pages for the peers' memory; Forerun's tables always request huge ones
    #[arg(long, default_value = "huge")]
    peer_pages: pages::Peers,

    #[command(flatten)]
    bench: hash::Args,
}

fn main() -> anyhow::Result<()> {
    let command = Command::parse();
    forerun_bench::refuse_simulated_build()?;
    match command {
        #[cfg(feature = "rocksdb")]
        Command::Memtable(args) => {
            args.peer_pages.apply()?;
            let chosen = match &args.peer[..] {
                [] => rocks::RocksMemtable::DEFAULT,
                chosen => chosen,
            };
            let engines: Vec<&dyn Engine> = chosen.iter().map(|peer| peer as _).collect();
            let batched = engines.first().map(|first| (first.name(), first.batched()));
            let peer = batched.as_ref().map(|(name, batched)| (*name, &**batched));
            memtable::run_with(&args.bench, &engines, peer)
        }
        #[cfg(feature = "rocksdb")]
        Command::Seeds(args) => {
            args.peer_pages.apply()?;
            let peers = rocks::RocksMemtable::DEFAULT.iter();
            let engines: Vec<&dyn Engine> = peers.map(|peer| peer as _).collect();
            let args = seeds::Args {
                seed: vec![seeds::Seed::FingerSearch],
                output: args.output,
                ..seeds::Args::default()
            };
            seeds::run_with(&args, &engines)
        }
        Command::Btree(args) => {
            args.peer_pages.apply()?;
            let chosen = match &args.peer[..] {
                [] => peers::RunPeer::DEFAULT,
                chosen => chosen,
            };
            let engines: Vec<Box<dyn Engine>> = chosen.iter().map(|peer| peer.engine()).collect();
            let engines: Vec<&dyn Engine> = engines.iter().map(|engine| &**engine).collect();
            let batched = engines.first().map(|first| (first.name(), first.batched()));
            let peer = batched.as_ref().map(|(name, batched)| (*name, &**batched));
            btree::run_with(&args.bench, &engines, peer)
        }
        Command::Ycsb(args) => {
            let chosen = match &args.peer[..] {
                [] => peers::Peer::DEFAULT,
                chosen => chosen,
            };
            let engines: Vec<Box<dyn Engine>> = chosen.iter().map(|peer| peer.engine()).collect();
            let engines: Vec<&dyn Engine> = engines.iter().map(|engine| &**engine).collect();
            let peer = engines.first().map(|engine| engine.name());
            ycsb::run_with(&args.bench, &engines, peer)
        }
        Command::Workloads(args) => {
            let chosen = match &args.peer[..] {
                [] => peers::Peer::with_keyspaces(),
                chosen => chosen.to_vec(),
            };
            let engines: Vec<Box<dyn Engine>> = chosen.iter().map(|peer| peer.engine()).collect();
            let engines: Vec<&dyn Engine> = engines.iter().map(|engine| &**engine).collect();
            workloads::run_with(&args.bench, &engines)
        }
        #[cfg(feature = "lmdb")]
        Command::Scan(args) => scan::run_with(&args, &[&lmdb::Lmdb], Some("lmdb")),
        Command::Hash(mut args) => {
            args.peer_pages.apply()?;
            let hashbrown = maps::Peer::<maps::Hashbrown>::new();
            let papaya = maps::Peer::<maps::Papaya>::new();
            let scc = maps::Peer::<maps::Scc>::new();
            if args.bench.design.is_empty() {
                let designs = ["table", "memc3", "hashbrown", "papaya", "scc"];
                args.bench.design = designs.map(str::to_owned).to_vec();
            }
            hash::run_with(
                &args.bench,
                &[&hashbrown, &papaya, &scc],
                Some(("hashbrown", GET)),
            )
        }
        #[cfg(any(feature = "rocksdb", feature = "lmdb"))]
        Command::Table(args) => {
            let peers = rows::all();
            let peers: Vec<_> = peers.iter().map(|peer| &**peer).collect();
            let peer = if cfg!(feature = "rocksdb") {
                "rocksdb"
            } else {
                "lmdb"
            };
            table::run_with(&args, &peers, Some(peer))
        }
        #[cfg(feature = "raft")]
        Command::Raft(args) => raft::run(&args),
    }
}
