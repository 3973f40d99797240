//! A nightly load beside the day's traffic.
//!
//! ```text
//!  load    keyspace 1   all rows, sorted, in one ingestion; before its last row, a put below and a
//!                       put above all of them, which are still in the memtable when it is committed
//!  puts    keyspace 0   1000 a second, one random row per write
//!  reads   keyspace 0   --reads times a second, 64 random rows
//! ```
//!
//! The run ends when the ingestion has returned and the time is over.

use crate::engine::Store;
use crate::workload::EntryBuffer;
use crate::workloads::clients::{Target, put, read};
use crate::workloads::latencies::{Call, Kind, Latencies};
use crate::workloads::opened_store::{Measured, OpenedStore};
use crate::workloads::rows::{KEY_BYTES, KeyOrder, Rows};
use crate::workloads::run::{Classes, Client, Run};
use anyhow::{Context, Result, ensure};
use std::time::{Duration, Instant};

/// The most rows that are served beside the load.
const SERVED_ROWS_MAX: u64 = 400_000;

const PUTS_PER_SECOND: f64 = 1000.0;

/// Keys below and above all rows.
const EDGES: [&[u8]; 2] = [&[0; KEY_BYTES - 1], &[u8::MAX; KEY_BYTES]];

/// Loads and runs.
///
/// # Errors
/// A failed call of the store, or a wrong answer.
pub(super) fn run(opened: &OpenedStore<'_>) -> Result<Measured> {
    let plan = opened.plan;
    let count = plan.rows(opened.shape);
    let served = [Rows::new(
        count.min(SERVED_ROWS_MAX),
        KeyOrder::Scattered,
        plan.value_bytes,
    )?];
    let nightly = Rows::new(count, KeyOrder::ByNumber, plan.value_bytes)?;
    opened.load(&served)?;
    let target = [Target {
        store: &*opened.stores[0],
        rows: &served[0],
    }];
    let night = &*opened.stores[1];
    let mut clients: Vec<Client<'_>> = vec![
        Box::new(|run: &Run| ingest(run, night, &nightly, plan.duration)),
        Box::new(|run: &Run| {
            let latencies = put(run, &target, 1, Some(PUTS_PER_SECOND), 1)?;
            Ok(vec![("puts", latencies)])
        }),
    ];
    for reader in 0..plan.readers as u64 {
        let (target, strategy) = (&target, &*opened.strategy);
        clients.push(Box::new(move |run: &Run| {
            let latencies = read(run, target, strategy, plan.reads_per_second, 2 + reader)?;
            Ok(vec![("reads", latencies)])
        }));
    }
    let measured = opened.measure(|origin| Run::new(origin, None).clients(&clients))?;
    served[0].verify(target[0].store, &opened.strategy)?;
    nightly.verify(night, &opened.strategy)?;
    let mut reader = night.reader(&opened.strategy)?;
    let found = reader.read(&EDGES)?;
    ensure!(found == EDGES.len(), "a put beside the load is lost");
    Ok(measured)
}

/// Ingests all rows, then waits until the time is over and ends the run.
fn ingest(run: &Run, store: &dyn Store, rows: &Rows, duration: Duration) -> Result<Classes> {
    let mut latencies = Latencies::new(Kind::Load, run.origin)?;
    let mut writer = store.writer()?;
    let began = Instant::now();
    rows.ingest(store, || {
        for key in EDGES {
            let mut entry = EntryBuffer::default();
            rows.fill(0, 0, &mut entry);
            writer.write(key, &entry.value)?;
        }
        Ok(())
    })
    .context("the nightly load")?;
    let ended = Instant::now();
    latencies.record(Call {
        intended: began,
        began,
        ended,
    })?;
    latencies.elapsed = ended - began;
    latencies.keys += rows.count();
    latencies.put_bytes += rows.count() * rows.row_bytes();
    run.wait_until(run.begin + duration);
    run.stop();
    Ok(vec![("load", latencies)])
}
