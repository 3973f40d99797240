//! Shared by the simulators: runs seeds in worker processes until one fails, and reports the
//! failure.
//!
//! ```text
//!   args.rs ──> run.rs ── starts ──> worker processes, each one seed after the other   worker.rs
//!                 └── the first seed that fails, hangs or kills its worker ──> report.rs
//! ```

mod args;
pub mod report;
mod run;
mod worker;

use std::fmt;
use std::ops::AddAssign;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use args::{SeedArgs, cores};
pub use run::{FailedSeed, Search, Totals, run_one, search};
pub use worker::{WorkerArgs, work};

/// The environment variable that names the defect that is planted in a process.
pub const PLANTED_VARIABLE: &str = "FORERUN_PLANTED";

/// What a simulator counts. Displayed as in "12 operations, 3 faults".
pub trait Counts:
    AddAssign + Copy + Default + DeserializeOwned + fmt::Display + Send + Serialize + 'static
{
}

/// The outcome of a seed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report<C> {
    /// What is wrong, if anything is.
    pub finding: Option<String>,
    #[serde(flatten)]
    pub counts: C,
    /// What happened, line by line, if requested.
    pub trace: Vec<String>,
}
