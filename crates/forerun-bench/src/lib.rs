//! Forerun's benches: workloads, the stores they run on, and what they print. The harness, the text tables and the HTML
//! pages come from [`forerun_measure`].
//!
//! ```text
//!   roofline, memtable, btree, ycsb/, hash/, gather/, gpu_table/, gpu_roofline, server/, cache/, tiers/   the benches: Args and run()
//!   lookup, shelf, show   lookup workloads over any engine; its store between the turns; what is printed
//!   engine                what is asked of a store, ours or a peer's
//!   store                 Db as such a store
//!   workload, skew        keys, values, lookups
//!   threads               pinned threads that start together
//!   page                  results as a table and as a page
//!   on_gpu                what the benches of a GPU share
//!   output, process       the options that all benches share; what this process takes of the machine
//! ```
//!
//! # Running a bench from a command
//! [`roofline::Args`], [`memtable::Args`], [`btree::Args`], [`ycsb::Args`] and [`hash::Args`] are clap arguments to flatten into a
//! subcommand; their modules' `run` measures and prints to the standard output.
//!
//! # Measuring a peer beside the memtable, or beside the store
//! Implement [`engine::Engine`] and its three small companions for the peer, and call
//! [`memtable::run_with`] or [`ycsb::run_with`] with it: the peer gets the same data, cells, rounds and checks, its turns
//! alternate with ours within each cell, and its rows stand in the same table, JSON and page. The
//! engine's first strategy must look up one key after the other.
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

pub mod btree;
pub mod cache;
pub mod engine;
pub mod gather;
pub mod gpu_roofline;
pub mod gpu_table;
pub mod hash;
pub mod lookup;
pub mod memtable;
pub mod on_gpu;
pub mod output;
pub mod page;
pub mod process;
pub mod roofline;
pub mod server;
mod shelf;
mod show;
pub mod skew;
pub mod store;
pub mod threads;
pub mod tiers;
pub mod workload;
pub mod ycsb;
