//! Random overwrites of loaded rows, as fast as possible: one row per write, --threads writers.

use crate::workloads::clients::{Target, put};
use crate::workloads::opened_store::{Measured, OpenedStore};
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
    let rows = [Rows::new(count, KeyOrder::Scattered, plan.value_bytes)?];
    opened.load(&rows)?;
    let target = [Target {
        store: &*opened.stores[0],
        rows: &rows[0],
    }];
    let target = &target;
    let client = |seed| -> Client<'_> {
        Box::new(move |run: &Run| Ok(vec![("puts", put(run, target, 1, None, seed)?)]))
    };
    let clients: Vec<Client<'_>> = (0..plan.threads as u64).map(client).collect();
    let measured =
        opened.measure(|origin| Run::new(origin, Some(plan.duration)).clients(&clients))?;
    rows[0].verify(target[0].store, &opened.strategy)?;
    Ok(measured)
}
