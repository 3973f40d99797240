//! `--replay`: replays the requests once from the beginning, with nothing in memory at first.
//!
//! ```text
//!   store ──open──> batch, moves of the batch, next batch, ... to the end of the stream
//! ```
//!
//! One thread does everything, including the moves. So the share of rows found in memory depends on
//! the policies and not on the machine. It is the same each time, except for the effect of a hash's
//! random seed.

use super::access::{Access, Workload, is_row};
use super::contender::Contender;
use super::result_row::TableRow;
use super::{Bench, TableCase};
use anyhow::{Context, Result, ensure};
use forerun_measure::harness::{Outcome, Sample};
use std::cell::Cell;
use std::path::PathBuf;
use std::time::{Duration, Instant};

impl Bench<'_> {
    /// Replays the first thread's stream at one budget, with each batch and contender.
    pub(super) fn replay(
        &self,
        access: &Access,
        workload: &Workload,
        budget: f64,
        contenders: &[(&dyn Contender, PathBuf)],
    ) -> Result<Vec<TableRow>> {
        let budget_rows = (workload.keys.len() as f64 * budget).ceil() as u64;
        let mut rows = Vec::new();
        for &batch in &self.plan.batches {
            for (contender, dir) in contenders {
                let name = contender.name();
                let tiers = contender
                    .open(&self.requirements(workload, dir), budget_rows)
                    .with_context(|| format!("opening {name}"))?;
                let lane = TableCase {
                    contender: *contender,
                    tiers: &*tiers,
                    threads: 1,
                    batch,
                    counters: Cell::default(),
                };
                let took = self
                    .play(&lane, &workload.streams[0])
                    .with_context(|| format!("playing to {name}"))?;
                lane.counters.set(tiers.counters());
                let outcome = Outcome {
                    group: 0,
                    name: name.to_owned(),
                    samples: vec![Sample::new(workload.streams[0].len() as u64, took)],
                };
                rows.push(self.row(access, workload, budget, &lane, &outcome));
            }
        }
        Ok(rows)
    }

    /// Looks up all keys of a stream.
    fn play(&self, lane: &TableCase<'_>, stream: &[u64]) -> Result<Duration> {
        let row_bytes = self.plan.row.bytes();
        let mut reader = lane.tiers.reader()?;
        let (mut rows, mut found) = (vec![0; lane.batch * row_bytes], vec![false; lane.batch]);
        let what = format!("{}, batches of {}", lane.contender.policy(), lane.batch);
        let bar = self.progress.steps(&what, stream.len() as u64);
        let start = Instant::now();
        for (nth, keys) in stream.chunks(lane.batch).enumerate() {
            let rows = &mut rows[..keys.len() * row_bytes];
            let found_count = reader.find(keys, rows, &mut found[..keys.len()])?;
            let mut given = keys.iter().zip(rows.chunks_exact(row_bytes));
            ensure!(
                found_count == keys.len() && given.all(|(key, row)| is_row(*key, row)),
                "{found_count} of {} rows were found, or a row does not belong to its key",
                keys.len()
            );
            bar.at((nth * lane.batch) as u64);
        }
        Ok(start.elapsed())
    }
}
