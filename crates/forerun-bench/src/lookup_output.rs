//! Runs a lookup bench and prints its results: each table as soon as it is ready, or lines of JSON,
//! and a page at the end.

use crate::engine::Engine;
use crate::lookup_page;
use crate::lookup_workloads::Lookups;
use crate::output::{Output, write_facts};
use crate::panels::add_facts;
use anyhow::Result;
use forerun_measure::machine;
use forerun_measure::progress::Progress;
use forerun_measure::report::Report;
use forerun_measure::result_row::Row;
use forerun_measure::size::short;
use std::io::Write;

/// Measures and prints to `out`; the page, if requested, has this `title`.
///
/// # Errors
/// Errors of [`Lookups::measure`], or an output that cannot be written.
pub(crate) fn show(
    lookups: &Lookups,
    title: &str,
    engines: &[&dyn Engine],
    output: &Output,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<()> {
    output.check()?;
    let mut facts = machine::facts();
    for (threads, rate) in &lookups.lines_per_second {
        let plural = if *threads == 1 { "" } else { "s" };
        let what = format!("random lines/s, {threads} thread{plural}");
        facts.push((what, short(*rate)));
    }
    if !output.json {
        write_facts(out, &facts)?;
    }
    let mut all: Vec<Row> = Vec::new();
    lookups.measure(engines, progress, |rows, store_facts| {
        if !output.json_rows(&rows, out)? {
            let (constant, table) = lookup_page::table(&rows);
            writeln!(out)?;
            write_facts(out, &constant)?;
            write_facts(out, &store_facts)?;
            writeln!(out, "\n{}", table.to_text())?;
            out.flush()?;
        }
        add_facts(&mut facts, store_facts);
        all.extend(rows);
        Ok(())
    })?;
    if !output.json {
        writeln!(out, "{}", lookup_page::legend(&all))?;
    }
    let mut report = Report::new(title, lookup_page::INTRO);
    report.facts = facts;
    lookup_page::fill(&mut report, &all);
    output.write_report(&report)
}
