//! Forerun's benches, and the parts to make more of them: workloads, a harness, reports.
//!
//! ```text
//!   roofline.rs, memtable.rs, btree.rs, ycsb/, hash/, gather/, gpu_table/, gpu_roofline.rs, server/, tiers/   the benches: clap arguments and run()
//!   lookup.rs, shelf.rs, show.rs  lookup workloads over any engine; its store between the turns; what is printed
//!   engine.rs                     what is asked of a store, ours or a peer's
//!   store.rs                      Db as such a store
//!   workload.rs, skew.rs          keys, values, lookups
//!   harness.rs, threads.rs        alternating rounds; pinned threads that start together
//!   row.rs, table.rs, page.rs     a result; a table of them; a page of them
//!   report/                       the page: HTML with inline SVG
//!   on_gpu.rs                     what the benches of a GPU share
//!   output.rs, progress.rs, machine.rs, process.rs, size.rs
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
//!
//! # Measuring anything else
//! Make a [`harness::Case`] of each thing to compare; its closure runs one turn, most simply by
//! [`harness::Sample::repeat`]. [`harness::measure`] runs the cases in alternating rounds and gives
//! an [`harness::Outcome`] each: median, extremes, and ratios taken round by round. Show them with
//! [`table::Table`] and [`report::Report`].
//!
//! ```
//! use forerun_bench::harness::{Case, Plan, Sample, Turn, measure};
//! use forerun_bench::progress::Progress;
//! use forerun_bench::report::{Chart, Report, Section, Shape};
//! use std::collections::{BTreeMap, HashMap};
//! use std::time::Duration;
//!
//! let tree: BTreeMap<u32, u32> = (0..1000).map(|n| (n, n)).collect();
//! let hash: HashMap<u32, u32> = (0..1000).map(|n| (n, n)).collect();
//! let keys: Vec<u32> = (0..1000).rev().collect();
//! let cases = vec![
//!     Case::new(0, "tree", |turn: &Turn| Sample::repeat(turn, || {
//!         Ok(keys.iter().filter(|key| tree.contains_key(key)).count() as u64)
//!     })),
//!     Case::new(0, "hash", |turn: &Turn| Sample::repeat(turn, || {
//!         Ok(keys.iter().filter(|key| hash.contains_key(key)).count() as u64)
//!     })),
//! ];
//! let plan = Plan::new(5, Duration::from_micros(500));
//! let outcomes = measure(cases, &plan, &Progress::on_terminal())?;
//! println!("the hash table is {:.1}x as fast", outcomes[1].ratio_to(&outcomes[0]));
//!
//! let mut chart = Chart::new("Keys a second", Shape::Bars);
//! chart.x = vec!["1000 keys".into()];
//! for outcome in &outcomes {
//!     let value = (outcome.per_second(), outcome.per_second_min(), outcome.per_second_max());
//!     chart.push(&outcome.name, [Some(value)]);
//! }
//! let mut report = Report::new("Two maps", "Lookups of present keys.");
//! report.sections.push(Section::Chart(chart));
//! assert!(report.to_html().starts_with("<!DOCTYPE html>"));
//! # Ok::<(), anyhow::Error>(())
//! ```

#![forbid(unsafe_code)]

pub mod btree;
pub mod cache;
pub mod engine;
pub mod gather;
pub mod gpu_roofline;
pub mod gpu_table;
pub mod harness;
pub mod hash;
pub mod lookup;
pub mod machine;
pub mod memtable;
pub mod on_gpu;
pub mod output;
pub mod page;
pub mod process;
pub mod progress;
pub mod report;
pub mod roofline;
pub mod row;
pub mod server;
mod shelf;
mod show;
pub mod size;
pub mod skew;
pub mod store;
pub mod table;
pub mod threads;
pub mod tiers;
pub mod typical;
pub mod workload;
pub mod ycsb;
