//! A worker process: it runs one seed after the other and reports each outcome on its standard
//! output.
//!
//! Simulations share only a process, so one that breaks its process cannot affect another
//! process's.

use std::io::{self, Write};
use std::panic;

use clap::Args;
use serde::{Deserialize, Serialize};

use super::{Kept, Report, simulate};

/// The arguments of a worker.
#[derive(Args, Debug)]
pub struct WorkerArgs {
    /// The first seed.
    #[arg(long)]
    first: u64,
    /// The step from each seed to the next.
    #[arg(long, default_value_t = 1)]
    step: u64,
    /// The number of seeds, unless the worker is ended earlier.
    #[arg(long)]
    count: Option<u64>,
    /// Of each seed, run only these steps and faults.
    #[arg(long)]
    only: Option<Kept>,
    /// Plant this defect.
    #[cfg(feature = "planted")]
    #[arg(long)]
    plant: Option<super::planted::Planted>,
    /// Report the history too.
    #[arg(long)]
    trace: bool,
}

/// A worker's report: one line each.
#[derive(Debug, Serialize, Deserialize)]
pub enum Line {
    Begin(u64),
    End(Report),
}

/// Runs the seeds, up to the first that fails.
///
/// # Errors
/// Nobody reads its output.
pub fn work(args: &WorkerArgs) -> io::Result<()> {
    // Panics are planned, or become findings.
    panic::set_hook(Box::new(|_| {}));
    #[cfg(feature = "planted")]
    if let Some(planted) = args.plant {
        planted.plant();
    }
    let mut seed = args.first;
    for _ in 0..args.count.unwrap_or(u64::MAX) {
        say(&Line::Begin(seed))?;
        let report = simulate(seed, args.only.as_ref(), args.trace);
        let has_failed = report.finding.is_some();
        say(&Line::End(report))?;
        if has_failed {
            // Its threads may wait for ever; nothing else runs in this process.
            break;
        }
        seed = seed.wrapping_add(args.step);
    }
    Ok(())
}

fn say(line: &Line) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, line)?;
    out.write_all(b"\n")?;
    out.flush()
}
