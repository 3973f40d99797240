//! Which runs there are, and how they become fewer.
//!
//! ```text
//!   memtable ──flush──> level 0   [ newest ] [       ] [ oldest ]          overlapping
//!                         │ compact
//!                       level 5   [ a … f ][ g … m ][ p … z ]              ascending, disjoint
//!                         │
//!                       level 6   [ a … b ][ b … d ][ e … h ][ … ] …       ten times as much
//!
//!   levels.rs    the runs by level, immutable          manifest.rs  the file that names them
//!   merge.rs     many cursors as one                   catalog.rs   both together: opened, changed durably
//!   retain.rs    which versions are still of use       build.rs     versions become runs
//!   pick.rs      what to compact next                  compact.rs   the work of it; limiter.rs: not too fast
//!   verify.rs    every byte looked at                  repair.rs    a manifest from what is left
//!   checkpoint.rs  a copy by hard links            salvage.rs   what can be read of a damaged run
//!   offline.rs   a closed store checked, repaired  describe.rs  and shown
//!   range_run.rs  range deletions, in a run of their own
//! ```

pub(crate) mod build;
pub(crate) mod catalog;
pub(crate) mod checkpoint;
pub(crate) mod compact;
#[cfg(test)]
mod damage_tests;
pub(crate) mod describe;
#[cfg(test)]
mod fixture;
pub(crate) mod levels;
pub(crate) mod limiter;
pub(crate) mod lookup;
pub(crate) mod manifest;
pub(crate) mod merge;
#[cfg(test)]
mod model_tests;
pub(crate) mod offline;
mod one_run;
pub(crate) mod pick;
pub(crate) mod range_run;
pub(crate) mod repair;
pub(crate) mod retain;
pub(crate) mod salvage;
#[cfg(test)]
pub(crate) mod testing;
pub(crate) mod verify;

pub use one_run::{Add, OneRun};

/// Reads `bytes` as a manifest, and returns how many runs it names; for fuzzing. What decodes encodes to the same
/// bytes.
#[doc(hidden)]
pub fn fuzz_manifest(bytes: &[u8]) -> usize {
    // As a body, so that the checksums are right and what is behind them is reached.
    let bytes = manifest::KIND.seal_bytes(bytes);
    match manifest::Manifest::decode(&bytes) {
        Ok(manifest) => {
            assert_eq!(manifest.encode(), bytes);
            manifest.runs().count()
        }
        Err(_) => 0,
    }
}
