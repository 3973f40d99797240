//! Shared by the simulators: runs seeds in worker processes until one fails, and reports the
//! failure.
//!
//! ```text
//!   args.rs ──> run.rs ── starts ──> worker processes, each one seed after the other   worker.rs
//!                 └── the first seed that fails, hangs or kills its worker ──> report.rs
//!   planted.rs   the same with a planted defect
//! ```

mod args;
#[cfg(feature = "planted")]
pub mod planted;
pub mod report;
mod run;
mod worker;

use std::fmt;
use std::ops::AddAssign;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use args::SeedArgs;
pub use run::{FailedSeed, Search, Totals, run_one, search};
pub use worker::{WorkerArgs, work};

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
