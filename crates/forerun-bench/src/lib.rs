//! Forerun's benchmarks: workloads, the stores that they run on, and their output. The harness, the
//! text tables and the HTML pages come from [`forerun_measure`].
//!
//! ```text
//!   roofline, memtable, btree, ycsb/, scan/, workloads/, hash/, gather/, gpu_table/,
//!   gpu_roofline, server/, client/, cache/, table/,
//!   count_lookups/, pressure/   the benches: Args and run()
//!   seeds/, growth/             run them for the tables of Forerun's sources, and by size
//!   bench_rows/                 their rows, by their command lines
//!   lookup_args                 the options that memtable and btree share
//!   lookup_workloads            lookups and inserts over any engine
//!   loaded_engine               its store between the turns
//!   lookup_output, lookup_page  their results as tables and as a page
//!   engine                      the interface of a store, ours or a peer's
//!   store_engine                Db as such a store
//!   workload, skew              keys, values, lookups
//!   memc3_index, item_arena     MemC3's index and items, the baseline of caches and servers
//!   threads                     pinned threads that start together
//!   panels                      what all pages share
//!   on_gpu                      shared code of the GPU benches
//!   output                      the options that all benches share
//!   process_usage               this process's use of resources
//! ```
//!
//! # The command
//! The binary `forerun-bench` runs every bench by its name (`registry`), and `stress`. Only the
//! benches are in the library, for `forerun-bench-compare`, which measures other stores along with
//! Forerun's.
//!
//! # Measuring a peer with the memtable or the store
//! Implement [`engine::Engine`] and its three small companions for the peer, and pass it to
//! [`memtable::run_with`] or [`ycsb::run_with`]. The peer gets the same data, cells, rounds and
//! checks, its turns alternate with ours within each cell, and its rows are in the same table, JSON
//! and page. The engine's first strategy must look up one key at a time.
//!
//! ```no_run
//! use forerun_bench::engine::Engine;
//! use forerun_bench::memtable;
//!
//! fn compare(args: &memtable::Args, peer: &dyn Engine) -> anyhow::Result<()> {
//!     memtable::run_with(args, &[peer], Some((peer.name(), "multiget")))
//! }
//! ```

#![forbid(unsafe_code)]

mod bench_rows;
pub mod btree;
pub mod cache;
pub mod client;
pub mod count_lookups;
pub mod engine;
pub mod gather;
pub mod gpu_roofline;
pub mod gpu_table;
pub mod growth;
pub mod hash;
mod item_arena;
mod loaded_engine;
pub mod lookup_args;
mod lookup_output;
pub mod lookup_page;
pub mod lookup_workloads;
mod memc3_index;
pub mod memtable;
pub mod on_gpu;
pub mod output;
mod panels;
pub mod pressure;
pub mod process_usage;
pub mod roofline;
pub mod scan;
pub mod seeds;
pub mod server;
pub mod skew;
pub mod store_engine;
pub mod table;
pub mod threads;
pub mod workload;
pub mod workloads;
pub mod ycsb;

/// Refuses to measure in a simulated build, whose locks and atomics are slow. Cargo makes such a
/// build when this crate is built together with `forerun-lab`.
///
/// # Errors
/// If this is such a build.
pub fn refuse_simulated_build() -> anyhow::Result<()> {
    anyhow::ensure!(
        !forerun_core::sync::SIMULATED,
        "this is a simulated build, so its figures would be misleading: build forerun-bench \
         without forerun-lab, as `cargo run --release -p forerun-bench` does"
    );
    Ok(())
}
