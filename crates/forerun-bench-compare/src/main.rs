//! `forerun-bench-compare memtable`: the memtable bench with RocksDB beside it.
//!
//! RocksDB runs memtable only, twice: as it is by default, and with its finger search
//! (`memtable_batch_lookup_optimization`, its pull request 14428). Same data, same cells, same checks, alternating
//! rounds: the workloads and the harness are those of `forerun bench memtable`.
//!
//! Building RocksDB takes a C++ toolchain, libclang and a quarter of an hour, so this crate is not a default member of
//! the workspace: `cargo run --release -p forerun-bench-compare -- memtable --batch 1,32,64`.

mod rocks;

use clap::Parser;
use forerun_bench::memtable;

use crate::rocks::{FingerSearch, RocksDb};

/// Forerun's benches with its peers beside it
#[derive(Parser)]
#[command(name = "forerun-bench-compare", version)]
enum Command {
    /// The memtable and RocksDB's, with its finger search off and on
    ///
    /// The column of ratios to a peer compares with RocksDB's MultiGet, finger search on.
    Memtable(memtable::Args),
}

fn main() -> anyhow::Result<()> {
    let Command::Memtable(args) = Command::parse();
    let plain = RocksDb::new(FingerSearch::Off);
    let finger = RocksDb::new(FingerSearch::On);
    memtable::run_with(
        &args,
        &[&plain, &finger],
        Some(("rocksdb-finger", rocks::MULTIGET)),
    )
}
