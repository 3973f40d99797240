//! `stress --gpu-table`: inserts, finds, pooled lookups, erases, sums and pins that race on one
//! hash table, with every answer checked.
//!
//! ```text
//!  mod.rs           tables, rounds, the summary
//!  expected_state/  the keys and their owners, a round of work, the table's contents after it, and
//!                   what concurrent lookups may return
//!  stamped_row.rs   rows that identify their key
//!  pooled_bags.rs   bags of keys whose sums show a torn row
//!  lanes.rs         concurrent lanes of work: streams of a GPU, or threads
//! ```
//!
//! With a GPU, half of the lanes are streams that write and half are streams that look up, all on
//! one table. Without one, threads take the place of streams and the table is on the CPU: this
//! tests the check itself and the table's operations, but no race within them.

mod expected_state;
mod lanes;
mod pooled_bags;
mod stamped_row;

use std::time::{Duration, Instant};

use anyhow::Context;
use forerun::gpu::Gpu;
use forerun::gpu::table::{Candidates, GpuTable, TableOptions, Width};

use super::Budget;
use expected_state::{Capacity, ExpectedState, KeyCounts};
use forerun_cli::output::{self, Out};
use forerun_measure::progress::Progress;
use stamped_row::ROW_BYTES;

/// Rounds per table; then a new table with another form is made.
const TABLE_ROUNDS: u64 = 24;

/// The parameters of the run.
pub struct Plan {
    pub seed: u64,
    pub lanes: usize,
    pub budget: Budget,
}

/// Forms of tables in turn: every width. A table with enough space always has two candidates: at
/// half load, both buckets of a key never fill up.
fn form(capacity: Capacity, number: u64, slots: u64) -> TableOptions {
    let candidates = match (capacity, number / 2 % 3) {
        (Capacity::Scarce, 0) => Candidates::One,
        _ => Candidates::Two,
    };
    TableOptions::new(slots, ROW_BYTES)
        .width(Width::ALL[3 - (number / 2 % 4) as usize])
        .candidates(candidates)
        // Every fourth table has some rows in the host's memory.
        .device_row_bytes_max(if number % 4 == 3 {
            slots * ROW_BYTES / 2
        } else {
            u64::MAX
        })
}

/// Runs it.
pub fn run(plan: &Plan) -> anyhow::Result<()> {
    let gpu = match Gpu::open(0) {
        Ok(gpu) => Some(gpu),
        Err(error) if error.is_absent() => None,
        Err(error) => return Err(error).context("opening the GPU"),
    };
    let (slots, batch) = match gpu {
        Some(_) => (1 << 18, 1 << 14),
        None => (1 << 12, 1 << 8),
    };
    let mut out = Out::stdout();
    let place = match &gpu {
        Some(gpu) => format!("{} streams of {}", plan.lanes, gpu.info().name),
        None => format!(
            "{} threads and the table of the CPU: no GPU was found",
            plan.lanes
        ),
    };
    out.line(format_args!("gpu-table: seed {}, {place}", plan.seed))?;
    out.flush()?;
    let progress = Progress::on_terminal().rate("stress", None, "keys");
    let began = Instant::now();
    let mut counts = KeyCounts::default();
    let (mut rounds, mut tables) = (0, 0);
    let done = |counts: &KeyCounts| match plan.budget {
        Budget::Ops(ops) => counts.written + counts.looked_up >= ops,
        Budget::Time(time) => began.elapsed() >= time,
    };
    while !done(&counts) {
        let capacity = if tables % 2 == 0 {
            Capacity::Enough
        } else {
            Capacity::Scarce
        };
        let options = form(capacity, tables, slots);
        let mut table = match &gpu {
            Some(gpu) => GpuTable::on_gpu(gpu, options)?,
            None => GpuTable::on_cpu(options)?,
        };
        let mut expected = ExpectedState::new(
            &table,
            capacity,
            plan.lanes,
            batch,
            plan.seed.wrapping_add(tables),
        );
        expected.begin(&mut table)?;
        for round in 0..TABLE_ROUNDS {
            if done(&counts) {
                break;
            }
            let what = || {
                format!(
                    "table {tables} ({options:?}), round {round} of the run with seed {}",
                    plan.seed
                )
            };
            let jobs = expected.round();
            let said = lanes::run(&mut table, &jobs).with_context(what)?;
            let gone = expected.check(&jobs, &said).with_context(what)?;
            counts.written += gone.written;
            counts.looked_up += gone.looked_up;
            counts.compared += expected.compare(&mut table).with_context(what)?;
            rounds += 1;
            progress.update(0, counts.written + counts.looked_up);
        }
        tables += 1;
    }
    summary(&mut out, &counts, tables, rounds, progress.finish())?;
    out.finish()
}

fn summary(
    out: &mut Out,
    counts: &KeyCounts,
    tables: u64,
    rounds: u64,
    took: Duration,
) -> anyhow::Result<()> {
    out.line(format_args!(
        "{} in {}, {} of {}: {} keys written, {} looked up concurrently, {} entries compared \
         between rounds; no wrong answer",
        output::counted(counts.written + counts.looked_up, "key"),
        output::time(took),
        output::counted(rounds, "round"),
        output::counted(tables, "table"),
        output::count(counts.written),
        output::count(counts.looked_up),
        output::count(counts.compared),
    ))
}
