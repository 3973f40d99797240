//! `forerun-bench workloads`: the latencies of stores with several keyspaces, on
//! [`forerun_db::Db`] and on peers, all with their default options.
//!
//! ```text
//!  args.rs, plan.rs  the command line; its sizes, checked
//!  shape.rs          the six shapes, and what they need
//!  shapes/           their clients
//!  rows.rs           keys, values, which versions a read may find
//!  clients.rs        puts and reads of random rows
//!  run.rs, pace.rs   clients on threads until the time is over; when their operations are due
//!  latencies.rs      percentiles of a class of operations
//!  over_time.rs      the same for each second
//!  opened_store.rs   a store, loaded; what the run did to its files
//!  result_row.rs     a result
//!  show.rs           tables, the page
//!
//!  for each shape
//!    round after round
//!      for each engine that can        a fresh store: load, wait until idle, run, wait until idle
//! ```

mod args;
mod clients;
mod latencies;
mod opened_store;
mod over_time;
mod pace;
mod plan;
mod result_row;
mod rows;
mod run;
mod shape;
mod shapes;
mod show;

pub use args::Args;
pub use over_time::Point;
pub use result_row::{StoreFacts, WorkloadRow};
pub use shape::Shape;

use crate::engine::Engine;
use crate::output::{on_stdout, write_facts};
use crate::panels::add_facts;
use crate::store_engine::DbEngine;
use anyhow::{Context, Result};
use forerun_measure::machine;
use forerun_measure::progress::Progress;
use forerun_measure::report::Report;
use forerun_measure::result_row::Row;
use latencies::Latencies;
use opened_store::{Measured, OpenedStore};
use plan::Plan;
use std::io::Write;

/// Measures and prints to the standard output.
///
/// # Errors
/// Invalid sizes, a store that fails or answers wrongly, or an output that cannot be written.
pub fn run(args: &Args) -> Result<()> {
    run_with(args, &[])
}

/// [`run`] with peers, each with as many keyspaces and the same operations.
///
/// # Errors
/// The errors of [`run`], and errors of a peer.
pub fn run_with(args: &Args, peers: &[&dyn Engine]) -> Result<()> {
    on_stdout(|out| run_to(args, peers, &Progress::on_terminal(), out))
}

/// [`run_with`], printing to `out`.
///
/// # Errors
/// The same as for [`run_with`].
pub fn run_to(
    args: &Args,
    peers: &[&dyn Engine],
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<()> {
    let output = &args.output;
    output.check()?;
    let plan = Plan::new(args)?;
    let mut engines: Vec<&dyn Engine> = vec![&DbEngine];
    engines.extend(peers);
    let mut facts = machine::facts();
    if !output.json {
        write_facts(out, &facts)?;
    }
    let mut all: Vec<WorkloadRow> = Vec::new();
    for &shape in &plan.shapes {
        let (rows, shape_facts) = measure(&plan, shape, &engines, progress)?;
        if !output.json_rows(&rows, out)? {
            let title = format!("{}: {}", shape.name(), plan.about(shape));
            show::print(&title, &rows, &shape_facts, out)?;
        }
        add_facts(&mut facts, shape_facts);
        all.extend(rows);
    }
    if !output.json {
        writeln!(out, "{}", show::LEGEND)?;
    }
    let mut report = Report::new("Workloads", show::INTRO);
    report.facts = facts;
    show::fill(&mut report, &all);
    output.write_report(&report)
}

/// Rows, and facts that belong to them.
type Results = (Vec<WorkloadRow>, Vec<(String, String)>);

/// Runs a shape on each engine that has what it needs.
fn measure(
    plan: &Plan,
    shape: Shape,
    engines: &[&dyn Engine],
    progress: &Progress,
) -> Result<Results> {
    let lacks = |engine: &dyn Engine| {
        let mut needs = shape.needs().iter();
        needs.find(|need| !engine.supports(**need)).copied()
    };
    let (able, unable): (Vec<&dyn Engine>, Vec<_>) = engines
        .iter()
        .copied()
        .partition(|engine| lacks(*engine).is_none());
    // Of each engine: all rounds together, and the keys per second of each class in each.
    let mut results: Vec<(Option<Measured>, Vec<Vec<f64>>)> = Vec::new();
    results.resize_with(able.len(), Default::default);
    for _ in 0..plan.rounds {
        for (engine, (all, rates)) in able.iter().zip(&mut results) {
            let run = || -> Result<Measured> {
                let opened = OpenedStore::open(plan, shape, *engine, progress)?;
                shapes::run(&opened)
            };
            let measured =
                run().with_context(|| format!("{} of {}", shape.name(), engine.name()))?;
            rates.push(
                measured
                    .classes
                    .iter()
                    .map(|(_, class)| rate(class))
                    .collect(),
            );
            match all {
                Some(all) => all.add(measured)?,
                None => *all = Some(measured),
            }
        }
    }
    let mut rows = Vec::new();
    let mut facts = Vec::new();
    for (engine, (all, rates)) in able.iter().zip(results) {
        let Some(all) = all else { continue };
        for (at, (class, latencies)) in all.classes.iter().enumerate() {
            let rates: Vec<f64> = rates.iter().map(|round| round[at]).collect();
            let head = head(plan, shape, *engine, class, latencies);
            rows.push(row(head, rates, latencies, &all));
        }
        facts.extend(all.facts);
    }
    for engine in unable {
        if let Some(feature) = lacks(engine) {
            let name = format!("{}, {}", engine.name(), shape.name());
            facts.push((name, format!("skipped: it has no {feature}")));
        }
    }
    Ok((rows, facts))
}

fn rate(class: &Latencies) -> f64 {
    class.keys as f64 / class.elapsed.as_secs_f64()
}

fn head(plan: &Plan, shape: Shape, engine: &dyn Engine, class: &str, latencies: &Latencies) -> Row {
    let begun = latencies.calls() - latencies.unbegun;
    Row {
        bench: "workloads".into(),
        case: shape.name().to_owned(),
        engine: engine.name().to_owned(),
        strategy: class.to_owned(),
        keys: plan.rows(shape),
        key_bytes: rows::KEY_BYTES as u64,
        value_bytes: plan.value_bytes as u64,
        // All calls of a class are for as many keys; scans, for at most as many.
        batch: latencies.keys.div_ceil(begun.max(1)),
        threads: latencies.clients,
        isa: forerun_core::arch::isa().to_string(),
        rounds: plan.rounds as u64,
        ..Row::default()
    }
}

/// The row of a class: `rates` are its keys per second in each round.
fn row(head: Row, mut rates: Vec<f64>, latencies: &Latencies, all: &Measured) -> WorkloadRow {
    rates.sort_by(f64::total_cmp);
    let at = |number: usize| rates.get(number).copied().unwrap_or_default();
    let store = &all.store;
    let ratio = |written: u64| written as f64 / store.put_bytes as f64;
    let millis = |time: std::time::Duration| time.as_secs_f64() * 1000.0;
    WorkloadRow {
        common: head.with_rates(
            at(rates.len() / 2),
            at(0),
            at(rates.len().saturating_sub(1)),
        ),
        operations: latencies.calls(),
        unbegun: latencies.unbegun,
        p50_us: latencies.quantile_us(0.5),
        p99_us: latencies.quantile_us(0.99),
        p999_us: latencies.quantile_us(0.999),
        max_us: latencies.max_us(),
        longest_call_ms: millis(latencies.longest_call),
        over_time: latencies.points(),
        store: StoreFacts {
            longest_stall_ms: millis(store.longest_stall),
            put_bytes: store.put_bytes,
            written_bytes: store.written_bytes,
            write_amplification: store
                .written_bytes
                .filter(|_| store.put_bytes > 0)
                .map(ratio),
            wait_idle_seconds: store.wait_idle.as_secs_f64(),
            files: store.files.map(|files| files.files),
            disk_bytes: store.files.map(|files| files.bytes),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::MapEngine;
    use crate::engine::{Feature, KeyspaceSpec, Reader, Store, StoreLocation};
    use crate::engine::{StoreRequirements, Writer};
    use crate::output::Output;
    use std::collections::BTreeSet;

    fn args(shapes: &[Shape]) -> Args {
        Args {
            shape: shapes.to_vec(),
            rows: Some(300),
            ranges: Some(50),
            keyspaces: Some(3),
            output: Output {
                quick: true,
                ..Output::default()
            },
            ..Args::default()
        }
    }

    fn measured(engine: &dyn Engine, shape: Shape) -> Result<Results> {
        let plan = Plan::new(&args(&[shape]))?;
        measure(&plan, shape, &[engine], &Progress::hidden())
    }

    #[test]
    fn an_engine_runs_the_shapes_that_it_can_and_skips_the_others_with_a_word() {
        for shape in Shape::ALL {
            let (rows, facts) = measured(&MapEngine, shape).unwrap();
            let skipped: Vec<&str> = facts.iter().map(|fact| &*fact.1).collect();
            if shape == Shape::TimeSeries {
                assert_eq!(
                    (rows.len(), &skipped[..]),
                    (0, &["skipped: it has no TTLs"][..])
                );
                continue;
            }
            assert!(!rows.is_empty() && facts.is_empty(), "{facts:?}");
            for row in rows {
                assert_eq!(
                    (&*row.common.engine, &*row.common.case),
                    ("map", shape.name())
                );
                assert!(row.operations > 0 && row.common.keys_per_second > 0.0);
                // A store in memory has no files.
                assert_eq!((row.store.files, row.store.disk_bytes), (None, None));
            }
        }
    }

    /// A map that takes no second write to a key.
    struct Forgetful;

    struct ForgetfulStore(Box<dyn Store>);

    struct ForgetfulWriter<'a>(Box<dyn Writer + 'a>, BTreeSet<Vec<u8>>);

    impl Engine for Forgetful {
        fn name(&self) -> &str {
            "forgetful"
        }

        fn strategies(&self) -> Vec<String> {
            MapEngine.strategies()
        }

        fn open(&self, requirements: &StoreRequirements) -> Result<Box<dyn Store>> {
            MapEngine.open(requirements)
        }

        fn supports(&self, feature: Feature) -> bool {
            MapEngine.supports(feature)
        }

        fn open_keyspaces(
            &self,
            place: &StoreLocation,
            keyspaces: &[KeyspaceSpec],
        ) -> Result<Vec<Box<dyn Store>>> {
            let stores = MapEngine.open_keyspaces(place, keyspaces)?.into_iter();
            let store = |store| Box::new(ForgetfulStore(store)) as Box<dyn Store>;
            Ok(stores.map(store).collect())
        }
    }

    impl Store for ForgetfulStore {
        fn reader(&self, strategy: &str) -> Result<Box<dyn Reader + '_>> {
            self.0.reader(strategy)
        }

        fn writer(&self) -> Result<Box<dyn Writer + '_>> {
            Ok(Box::new(ForgetfulWriter(self.0.writer()?, BTreeSet::new())))
        }
    }

    impl Writer for ForgetfulWriter<'_> {
        fn write(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
            if !self.1.insert(key.to_vec()) {
                return Ok(());
            }
            self.0.write(key, value)
        }
    }

    #[test]
    fn a_store_that_loses_a_write_is_not_measured() {
        for shape in [Shape::HotKeyspace, Shape::Overwrite] {
            let error = measured(&Forgetful, shape).err().unwrap();
            let error = format!("{error:#}");
            assert!(error.contains("a wrong answer for row"), "{error}");
            assert!(error.contains("of forgetful"), "{error}");
        }
    }
}
