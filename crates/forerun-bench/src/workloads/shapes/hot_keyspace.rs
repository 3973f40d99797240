//! One hot keyspace and several cold ones.
//!
//! ```text
//!  hot batches   keyspace 0        100 random rows per write, at --rate
//!  cold puts     keyspaces 1, 2, ...   --cold-puts random rows a second in each, one per write
//!  reads         all keyspaces     --reads times a second, 64 random rows of one keyspace
//! ```

use crate::workloads::clients::{Target, put, read};
use crate::workloads::opened_store::{Measured, OpenedStore};
use crate::workloads::plan::HOT_BATCH;
use crate::workloads::rows::{KeyOrder, Rows};
use crate::workloads::run::{Client, Run};
use anyhow::Result;

/// Loads and runs.
///
/// # Errors
/// A failed call of the store, or a wrong answer.
pub(super) fn run(opened: &OpenedStore<'_>) -> Result<Measured> {
    let plan = opened.plan;
    let count = plan.rows(opened.shape);
    let rows: Result<Vec<Rows>> = (0..plan.keyspaces)
        .map(|_| Rows::new(count, KeyOrder::Scattered, plan.value_bytes))
        .collect();
    let rows = rows?;
    opened.load(&rows)?;
    let stores = opened.stores.iter().zip(&rows);
    let targets: Vec<Target<'_>> = stores
        .map(|(store, rows)| Target {
            store: &**store,
            rows,
        })
        .collect();
    let (hot, cold) = targets.split_at(1);
    let batches_per_second = plan.rate_bytes / (HOT_BATCH as u64 * rows[0].row_bytes()) as f64;
    let mut clients: Vec<Client<'_>> = vec![Box::new(move |run: &Run| {
        let latencies = put(run, hot, HOT_BATCH, Some(batches_per_second), 1)?;
        Ok(vec![("hot batches", latencies)])
    })];
    if !cold.is_empty() {
        let per_second = plan.cold_puts_per_second * cold.len() as f64;
        clients.push(Box::new(move |run: &Run| {
            let latencies = put(run, cold, 1, Some(per_second), 2)?;
            Ok(vec![("cold puts", latencies)])
        }));
    }
    for reader in 0..plan.readers as u64 {
        let (targets, strategy) = (&targets[..], &*opened.strategy);
        clients.push(Box::new(move |run: &Run| {
            let latencies = read(run, targets, strategy, plan.reads_per_second, 3 + reader)?;
            Ok(vec![("reads", latencies)])
        }));
    }
    let measured =
        opened.measure(|origin| Run::new(origin, Some(plan.duration)).clients(&clients))?;
    for target in &targets {
        target.rows.verify(target.store, &opened.strategy)?;
    }
    Ok(measured)
}
