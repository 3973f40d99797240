//! The measuring harness that Forerun's tools share.
//!
//! ```text
//!   harness        alternating rounds: cases, samples, medians, ratios
//!   row            one result: a line of JSON
//!   text_table     results as a text table
//!   report/        results as a page: HTML with inline SVG charts
//!   typical        selects the result for a page's headline
//!   size           readable numbers: `2M`, `1GiB`, `4.00 M`
//!   progress       progress bars on a terminal
//!   machine        the CPU, its instruction set and its page setting, as facts for the results
//! ```
//!
//! Make a [`harness::Case`] of each thing to compare. Its closure runs one turn;
//! [`harness::Sample::repeat`] is the simplest way to write it. [`harness::measure`] runs the cases
//! in alternating rounds and returns one [`harness::Outcome`] per case: the median, the extremes,
//! and ratios taken round by round. Show the outcomes with [`text_table::TextTable`] and
//! [`report::Report`].
//!
//! ```
//! use forerun_measure::harness::{Case, Plan, Sample, Turn, measure};
//! use forerun_measure::progress::Progress;
//! use forerun_measure::report::{Chart, Report, Section, Shape};
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
//! let mut chart = Chart::new("Keys per second", Shape::Bars);
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

pub mod harness;
pub mod machine;
pub mod progress;
pub mod report;
pub mod result_row;
pub mod size;
pub mod text_table;
pub mod typical;
