//! The totals over runs of plans.

use std::fmt;
use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

/// The totals of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Requests that were answered.
    pub requests: u64,
    pub faults: u64,
    /// Snapshots that were checked.
    pub snapshots: u64,
    /// Servers that were killed or lost their power.
    pub crashes: u64,
    pub steps: u64,
}

impl crate::search::Counts for Counts {}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.requests += other.requests;
        self.faults += other.faults;
        self.snapshots += other.snapshots;
        self.crashes += other.crashes;
        self.steps += other.steps;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts {
            requests,
            faults,
            snapshots,
            crashes,
            steps,
        } = self;
        write!(
            f,
            "{requests} requests, {faults} faults, {snapshots} snapshots, {crashes} crashes, \
             {steps} steps"
        )
    }
}
