//! A worker process: it runs one seed after the other and says on its standard output how each
//! ended.
//!
//! Simulations share nothing but a process, and a process that is broken by one cannot spoil
//! another's.

use std::io::{self, Write};
use std::panic;

use clap::Args;
use serde::{Deserialize, Serialize};

use super::{Kept, Report, simulate};

/// What a worker is asked to do.
#[derive(Args, Debug)]
pub struct WorkerArgs {
    /// The first seed.
    #[arg(long)]
    first: u64,
    /// From each seed to the next.
    #[arg(long, default_value_t = 1)]
    step: u64,
    /// How many, unless the worker is ended before.
    #[arg(long)]
    count: Option<u64>,
    /// Of each seed, only these steps and faults.
    #[arg(long)]
    only: Option<Kept>,
    /// Put this defect back.
    #[cfg(feature = "planted")]
    #[arg(long)]
    plant: Option<super::planted::Planted>,
    /// Tell the history too.
    #[arg(long)]
    trace: bool,
}

/// What a worker says: a line each.
#[derive(Debug, Serialize, Deserialize)]
pub enum Line {
    Begin(u64),
    End(Report),
}

/// Runs the seeds, up to the first that fails.
///
/// # Errors
/// Nobody hears it.
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
            // Its threads may wait for ever; nothing else is run beside them.
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
