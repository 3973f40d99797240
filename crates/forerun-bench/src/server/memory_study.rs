//! `forerun-bench server --study memory`: how much memory an item takes in each server.
//!
//! ```text
//!  for each value size, server and protocol
//!    a new process ──> its resident memory ──> every item is stored ──> its resident memory
//!                                                                     └> a sample is read back
//! ```
//!
//! One server runs at a time, so that the machine's memory suffices for one.

use super::client;
use super::data::{Items, KEY_BYTES};
use super::form::Form;
use super::link::LinkKind;
use super::program::Program;
use super::request::Requests;
use super::{Bench, load};
use crate::lookup_page::percent;
use crate::output::write_facts;
use crate::panels::push_table;
use crate::skew::Skew;
use anyhow::{Context, Result};
use client::Until;
use forerun_measure::progress::Progress;
use forerun_measure::report::Report;
use forerun_measure::size::{count, digits, short};
use forerun_measure::text_table::TextTable;
use serde::Serialize;
use std::io::Write;
use std::time::Instant;

/// Items that are read back, to know how many of all are still there.
const READ_BACK: usize = 100_000;

const INTRO: &str = "The resident memory of a server's process, from before the items were stored \
until after, over the number of items. Keys have 16 bytes.";

/// One result of the study: a line of JSON.
#[derive(Clone, Debug, Serialize)]
pub(super) struct MemoryRow {
    bench: &'static str,
    study: &'static str,
    /// The form of the sets.
    case: String,
    /// The server.
    engine: String,
    keys: u64,
    key_bytes: u64,
    value_bytes: u64,
    memory_mib: u64,
    /// Resident memory before the first item and after the last, in bytes.
    resident_bytes_before: u64,
    resident_bytes: u64,
    /// The difference over the number of items, and what of it is neither key nor value.
    bytes_per_item: f64,
    overhead_bytes_per_item: f64,
    /// The share of a sample that was found afterwards. If it is below 1, items were evicted.
    hit_rate: f64,
    /// Items stored per second, by one client.
    keys_per_second: f64,
}

/// Runs the study on `programs`.
///
/// # Errors
/// A server that cannot be started or answers wrongly, a system that does not report resident
/// memory, or an output that cannot be written.
pub(super) fn run(
    bench: &Bench<'_>,
    programs: &[Program],
    facts: &[(String, String)],
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<()> {
    let (args, plan) = (bench.args, bench.plan);
    if !args.output.json {
        write_facts(out, facts)?;
    }
    let cases: Vec<(&Program, LinkKind)> = programs
        .iter()
        .flat_map(|program| {
            bench
                .links(program)
                .into_iter()
                .map(move |link| (program, link))
        })
        .collect();
    let bar = progress.steps("loading", (cases.len() * plan.loads.len()) as u64);
    let mut rows = Vec::new();
    for &items in &plan.loads {
        for &(program, link) in &cases {
            let row = measure(bench, program, link, items);
            let row = row.with_context(|| program.name.clone())?;
            args.output.json_rows(std::slice::from_ref(&row), out)?;
            rows.push(row);
            bar.step();
        }
    }
    if !args.output.json {
        writeln!(out, "\n{}\n{}", table(&rows).to_text(), INTRO)?;
    }
    let mut report = Report::new("The memory of an item", INTRO);
    report.facts = facts.to_vec();
    push_table(&mut report, "All servers", (Vec::new(), table(&rows)));
    args.output.write_report(&report)
}

fn measure(
    bench: &Bench<'_>,
    program: &Program,
    link: LinkKind,
    items: Items,
) -> Result<MemoryRow> {
    let mut targets = bench.connect(program, &[link])?;
    let target = &mut targets[0];
    let resident = |process: &super::Process| {
        let bytes = process.resident_bytes();
        bytes.context("the system does not report the memory of a process")
    };
    let before = resident(&target.process.borrow())?;
    let start = Instant::now();
    load(target, items).context("while loading")?;
    let elapsed_s = start.elapsed().as_secs_f64();
    let after = resident(&target.process.borrow())?;
    let sample = READ_BACK.min(items.count as usize);
    let numbers = items.draw(Skew::Uniform, sample, 1);
    let requests = Requests::compose(Form::get_of(link.protocol), items, 1, numbers);
    let read = target.clients[0].drive(&requests, Until::Once, &mut client::latencies()?)?;
    let bytes_per_item = after.saturating_sub(before) as f64 / items.count as f64;
    Ok(MemoryRow {
        bench: "server",
        study: "memory",
        case: Form::set_of(link.protocol).to_string(),
        engine: program.name.clone(),
        keys: items.count,
        key_bytes: KEY_BYTES as u64,
        value_bytes: items.value_bytes as u64,
        memory_mib: bench.plan.memory_mib,
        resident_bytes_before: before,
        resident_bytes: after,
        bytes_per_item,
        overhead_bytes_per_item: bytes_per_item - (KEY_BYTES + items.value_bytes) as f64,
        hit_rate: read.hits as f64 / sample as f64,
        keys_per_second: items.count as f64 / elapsed_s.max(1e-9),
    })
}

fn table(rows: &[MemoryRow]) -> TextTable {
    let mut table = TextTable::new([
        "items",
        "value",
        "server",
        "form",
        "resident",
        "bytes/item",
        "overhead/item",
        "found",
        "items/s",
    ]);
    for row in rows {
        table.push([
            count(row.keys),
            format!("{}B", count(row.value_bytes)),
            row.engine.clone(),
            row.case.clone(),
            format!("{}B", short(row.resident_bytes as f64)),
            digits(row.bytes_per_item),
            digits(row.overhead_bytes_per_item),
            percent(row.hit_rate),
            short(row.keys_per_second),
        ]);
    }
    table
}
