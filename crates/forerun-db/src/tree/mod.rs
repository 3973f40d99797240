//! The tree of runs: levels, manifest, compaction, verification and repair.
//!
//! ```text
//!   memtable ──flush──> level 0   [ newest ] [       ] [ oldest ]          overlapping
//!                         │ compact
//!                       level 5   [ a … f ][ g … m ][ p … z ]              ascending, disjoint
//!                         │
//!                       level 6   [ a … b ][ b … d ][ e … h ][ … ] …       ten times as much
//!
//!   levels.rs      the runs by level, immutable; needed_ranges.rs: which range deletions they
//!                  need; deletions.rs: which deletions are worth a compaction
//!   manifest/      the file that names them
//!   catalog.rs     levels and manifest together: opens them, changes them durably;
//!                  open_runs.rs opens the runs, several at a time
//!   lookup.rs      finds keys in the levels
//!   merge.rs       merges cursors; scan_limit.rs: where a scan needs no more of them
//!   retain.rs      decides which versions to keep
//!   build.rs       writes versions to runs; limiter.rs limits how fast; part.rs: which versions,
//!                  and where the last run ends
//!   file_copy.rs   copies files within the same limit
//!   pick/          picks the next compaction; compact.rs runs it, a large one in parts
//!                  (subcompactions.rs) by several threads (parallel.rs)
//!   place.rs       chooses the levels of ingested runs
//!   pending_edits.rs  edits to install; removes their files if they are not installed
//!   range_run.rs   stores range deletions in a run of their own
//!   verify.rs      verifies every byte; scrub.rs reads it, to find damage
//!   repair/        rebuilds manifest and runs; salvage.rs reads damaged runs
//!   checkpoint.rs  copies a store by hard links
//! ```

pub(crate) mod build;
pub(crate) mod catalog;
#[cfg(test)]
mod catalog_tests;
pub(crate) mod checkpoint;
pub(crate) mod compact;
#[cfg(test)]
mod damage_tests;
#[cfg(test)]
mod deletion_tests;
mod deletions;
pub(crate) mod file_copy;
#[cfg(test)]
mod index_damage_tests;
pub(crate) mod key_bounds;
pub(crate) mod levels;
pub(crate) mod limiter;
pub(crate) mod lookup;
pub(crate) mod manifest;
pub(crate) mod merge;
#[cfg(test)]
mod model_tests;
mod needed_ranges;
#[cfg(any(test, feature = "study"))]
mod one_run;
pub(crate) mod open_runs;
pub(crate) mod parallel;
mod part;
pub(crate) mod pending_edits;
pub(crate) mod pick;
pub(crate) mod place;
pub(crate) mod range_run;
pub(crate) mod repair;
pub(crate) mod retain;
#[cfg(test)]
mod running_tests;
pub(crate) mod salvage;
pub(crate) mod scan_limit;
pub(crate) mod scrub;
pub(crate) mod subcompactions;
pub(crate) mod verify;
#[cfg(test)]
mod version_tests;

#[cfg(any(test, feature = "study"))]
pub use one_run::{Add, OneRun, RunLookup};
