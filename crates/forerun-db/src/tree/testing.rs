//! Runs for the tests of this module.

use std::path::Path;
use std::sync::Arc;

use forerun_core::sync::atomic::AtomicBool;

use crate::cache::testing::small_cache;
use crate::comparator::KeyOrder;
use crate::io::fault::FaultIo;
use crate::run::{Run, RunOptions};
use crate::tree::build::{Build, RunNumbers, write_runs};
use crate::tree::limiter::RateLimiter;
use crate::tree::retain::Retain;
use crate::versions::testing::{Held, Sorted};

/// A run of these versions.
pub(crate) fn run_of(io: &FaultIo, order: &KeyOrder, number: u64, versions: Vec<Held>) -> Arc<Run> {
    let comparator = format!("{order:?}");
    let build = Build {
        io,
        dir: Path::new("/"),
        order,
        comparator: &comparator,
        keyspace: (0, ""),
        cache: &small_cache(),
        options: RunOptions::default(),
        run_bytes: u64::MAX,
        numbers: &RunNumbers::new(number),
        limiter: &RateLimiter::new(None),
        stop: &AtomicBool::new(false),
    };
    let mut versions = Sorted::new(order.clone(), versions);
    // Each version is the only one of its key.
    let mut retain = Retain::new(order.clone(), Vec::new());
    let mut runs = write_runs(&mut versions, &mut retain, |_| true, &build).unwrap();
    assert_eq!(runs.len(), 1);
    runs.remove(0)
}
