//! A worker process: it runs one seed after the other and reports each outcome on its standard
//! output.
//!
//! Simulations share nothing but their process, so one that breaks its process cannot affect those
//! of other processes.

use std::io::{self, Write};
use std::panic;

use clap::Args;
use serde::{Deserialize, Serialize};

use super::{Counts, Report};

/// Which seeds a worker runs.
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
    /// Report the history too.
    #[arg(long)]
    pub trace: bool,
}

/// A worker's report: one line each.
#[derive(Debug, Serialize, Deserialize)]
pub enum WorkerMessage<C> {
    Begin(u64),
    End(Report<C>),
}

/// Runs the seeds, up to the first that fails.
///
/// # Errors
/// The output cannot be written.
pub fn work<C: Counts>(
    args: &WorkerArgs,
    mut simulate: impl FnMut(u64) -> Report<C>,
) -> io::Result<()> {
    // Panics are either planned or become findings.
    panic::set_hook(Box::new(|_| {}));
    let mut seed = args.first;
    for _ in 0..args.count.unwrap_or(u64::MAX) {
        print_message(&WorkerMessage::<C>::Begin(seed))?;
        let report = simulate(seed);
        let has_failed = report.finding.is_some();
        print_message(&WorkerMessage::End(report))?;
        if has_failed {
            // Its threads may wait forever. Nothing else runs in this process.
            break;
        }
        seed = seed.wrapping_add(args.step);
    }
    Ok(())
}

fn print_message<C: Counts>(line: &WorkerMessage<C>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, line)?;
    out.write_all(b"\n")?;
    out.flush()
}
