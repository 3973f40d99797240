//! `forerun bench`: the benches of [`forerun_bench`].

use anyhow::Context;
use clap::Subcommand;
use forerun_bench::server::process::Program;
use forerun_bench::{
    btree, cache, gather, gpu_roofline, gpu_table, hash, memtable, roofline, server, tiers, ycsb,
};

use crate::exit::Outcome;

/// Measure this machine's memory, the memtable, runs, the store, hash tables, tables of rows, its GPU (copies of
/// rows, the hash table there, random reads) and the cache server on it
///
/// Each bench takes lists for its dimensions, and measures every combination in alternating rounds. --json prints one
/// object a line, --report writes a page with plots that needs no other file, --quick shows in a second that
/// everything runs.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forerun bench roofline --threads 1,2
  forerun bench memtable --keys 2M --batch 8,64 --strategy single,interleaved
  forerun bench memtable --hit-rate 1,0.5 --workload multireadrandom --json
  forerun bench memtable --report memtable.html
  forerun bench btree --keys 10M --batch 1,64 --strategy plain,heads,multiget-heads
  forerun bench ycsb --records 1M --workload b,c --batch 1,64
  forerun bench hash --study 1 --report size.html
  forerun bench hash --size 1GiB --load-factor 0.7,0.9 --strategy find_batch
  forerun bench gather --study seed,direction
  forerun bench gpu-table --study seed --report gpu-table.html
  forerun bench gpu-roofline --buffer 1Gi,32Gi
  forerun bench server --value-bytes 64 --keys 1,10,100
  forerun bench cache --part multiget --items 2M
  forerun bench table --rows 10M --budget 1,0.1")]
pub struct Args {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    Roofline(roofline::Args),
    Memtable(Box<memtable::Args>),
    Btree(Box<btree::Args>),
    Ycsb(Box<ycsb::Args>),
    Hash(Box<hash::Args>),
    Gather(Box<gather::Args>),
    GpuTable(Box<gpu_table::Args>),
    GpuRoofline(gpu_roofline::Args),
    Server(Box<server::Args>),
    Cache(Box<cache::Args>),
    Table(Box<tiers::Args>),
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    match &args.bench {
        Bench::Roofline(args) => roofline::run(args)?,
        Bench::Memtable(args) => memtable::run(args)?,
        Bench::Btree(args) => btree::run(args)?,
        Bench::Ycsb(args) => ycsb::run(args)?,
        Bench::Hash(args) => hash::run(args)?,
        Bench::Gather(args) => gather::run(args)?,
        Bench::GpuTable(args) => gpu_table::run(args)?,
        Bench::GpuRoofline(args) => gpu_roofline::run(args)?,
        Bench::Server(args) => server::run(args, this_server()?)?,
        Bench::Cache(args) => cache::run(args)?,
        Bench::Table(args) => tiers::run(args)?,
    }
    Ok(Outcome::Done)
}

/// How this program is started as a server.
fn this_server() -> anyhow::Result<Program> {
    Ok(Program {
        name: "forerun".to_owned(),
        path: std::env::current_exe().context("cannot tell this program's own path")?,
        args: vec!["serve".into()],
    })
}
