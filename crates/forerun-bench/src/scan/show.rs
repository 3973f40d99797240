//! The rows as tables for the terminal and as a page.

use crate::lookup_page::{or_dash, times};
use crate::output::write_facts;
use crate::panels::{batches, panels, push_legend, push_series, push_table};
use anyhow::Result;
use forerun_measure::report::{Chart, Report, Section, Shape, Tile};
use forerun_measure::result_row::Row;
use forerun_measure::size::{count, digits, short, spread};
use forerun_measure::text_table::TextTable;
use forerun_measure::typical::typical;
use std::io::Write;

/// The introduction of the page.
pub(super) const INTRO: &str = "Entries scanned per second, by engine, direction and length of the \
scan, in alternating rounds on this machine. All data is in memory.";

/// Prints the rows of one state of the stores, and facts.
///
/// # Errors
/// Errors of the stream.
pub(super) fn print(rows: &[Row], facts: &[(String, String)], out: &mut dyn Write) -> Result<()> {
    let (constant, table) = table(rows);
    writeln!(out)?;
    write_facts(out, &constant)?;
    write_facts(out, facts)?;
    writeln!(out, "\n{}", table.to_text())?;
    out.flush()?;
    Ok(())
}

/// The table without the columns that never change, and the names and values of those columns.
fn table(rows: &[Row]) -> (Vec<(String, String)>, TextTable) {
    let peer = rows.iter().any(|row| row.speedup_vs_peer.is_some());
    let mut headings = vec![
        "runs",
        "keys",
        "key B",
        "value B",
        "rounds",
        "threads",
        "direction",
        "entries per scan",
        "engine",
        "entries/s",
        "slowest-fastest",
        "ns per entry",
        "us per scan",
    ];
    headings.extend(peer.then_some("vs peer"));
    let mut table = TextTable::new(headings);
    for row in rows {
        let mut cells = vec![
            row.case.clone(),
            count(row.keys),
            row.key_bytes.to_string(),
            row.value_bytes.to_string(),
            row.rounds.to_string(),
            row.threads.to_string(),
            row.strategy.clone(),
            count(row.batch),
            row.engine.clone(),
            short(row.keys_per_second),
            spread(row.keys_per_second_min, row.keys_per_second_max),
            digits(row.ns_per_key),
            digits(row.ns_per_key * row.batch as f64 / 1000.0),
        ];
        cells.extend(peer.then(|| or_dash(row.speedup_vs_peer, times)));
        table.push(cells);
    }
    let keep = [
        "direction",
        "entries per scan",
        "engine",
        "entries/s",
        "slowest-fastest",
        "ns per entry",
        "us per scan",
        "vs peer",
    ];
    (table.take_constant(&keep), table)
}

/// Explains the columns, for below the tables.
pub(super) fn legend(rows: &[Row]) -> String {
    let rounds = rows.iter().map(|row| row.rounds).max().unwrap_or(0);
    let mut text = format!(
        "entries/s: medians of {rounds} alternating rounds, all threads together.\nus per scan: \
         from opening the iterator until it is dropped, as one thread sees it."
    );
    if rows.iter().any(|row| row.speedup_vs_peer.is_some()) {
        text.push_str("\nvs peer: speed relative to the peer, the median of the rounds' ratios.");
    }
    text
}

/// Adds a tile, plots and a table of `rows` to a page.
pub(super) fn fill(report: &mut Report, rows: &[Row]) {
    let ours = rows.iter().filter(|row| row.engine == "forerun");
    if let Some((row, ratio)) = typical(ours, |row| row.batch, |row| row.speedup_vs_peer) {
        let label = format!("the peer: scans of {} entries, a typical one", row.batch);
        report.tiles.push(Tile::new(label, times(ratio)));
    }
    for (name, of_panel) in panels(rows, panel) {
        report.sections.push(Section::Heading(name));
        report.sections.push(Section::Chart(plot(&of_panel)));
    }
    push_table(report, "All scans", table(rows));
    push_legend(report, &legend(rows));
}

/// Describes what the rows of one plot have in common.
fn panel(row: &Row) -> String {
    let runs = if row.case == "one" { "run" } else { "runs" };
    let plural = if row.threads == 1 { "" } else { "s" };
    format!(
        "{}; {} {runs}, {} thread{plural}",
        row.strategy, row.case, row.threads
    )
}

/// Bars of the engines, by length.
fn plot(rows: &[&Row]) -> Chart {
    let mut chart = Chart::new("Entries per second", Shape::Bars);
    chart.note = "Medians; thin lines reach from the slowest to the fastest round.".into();
    chart.y_label = "entries per second".into();
    chart.x_label = "entries per scan".into();
    chart.x = batches(rows, |row| row.batch);
    push_series(
        &mut chart,
        rows,
        |row| row.engine.clone(),
        |row| row.batch.to_string(),
        |row| Some(row.rates()),
    );
    chart
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(strategy: &str, engine: &str, batch: u64) -> Row {
        Row {
            bench: "scan".into(),
            case: "one".into(),
            engine: engine.into(),
            strategy: strategy.into(),
            keys: 1000,
            batch,
            threads: 1,
            rounds: 5,
            speedup_vs_peer: Some(1.5),
            ..Row::default()
        }
        .with_rates(2e6, 1e6, 3e6)
    }

    #[test]
    fn a_table_shows_the_time_of_a_scan_and_the_page_a_plot_per_direction() {
        let rows = [
            row("forward", "forerun", 10),
            row("forward", "lmdb", 10),
            row("backward", "forerun", 100),
        ];
        let mut out = Vec::new();
        print(&rows, &[("fact".into(), "stated".into())], &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        for word in ["us per scan", "5.00", "50.0", "lmdb", "stated", "1.50x"] {
            assert!(text.contains(word), "{word} in {text}");
        }
        let mut report = Report::new("Scans", INTRO);
        fill(&mut report, &rows);
        let charts = report.sections.iter();
        let charts = charts.filter(|section| matches!(section, Section::Chart(_)));
        assert_eq!(charts.count(), 2);
        forerun_measure::report::check_html(&report.to_html()).unwrap();
    }
}
