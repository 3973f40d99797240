//! The rows as tables for the terminal and as a page.

use super::mix::Workload;
use super::result_row::YcsbRow;
use crate::lookup_page::{or_dash, times};
use crate::output::write_facts;
use crate::panels::{batches, panels, push_legend, push_series, push_table};
use anyhow::Result;
use forerun_measure::report::{Chart, Report, Section, Shape, Tile};
use forerun_measure::size::{count, digits, short, spread};
use forerun_measure::text_table::TextTable;
use forerun_measure::typical::typical;
use std::io::Write;

/// The introduction of the page.
pub const INTRO: &str = "YCSB's core workloads, in operations per second, by engine and batch, in \
alternating rounds on this machine. The reads of a batch are looked up together.";

/// Prints the rows of one workload or of the loads, and facts.
///
/// # Errors
/// Errors of the stream.
pub fn print(rows: &[YcsbRow], facts: &[(String, String)], out: &mut dyn Write) -> Result<()> {
    writeln!(out)?;
    let (title, constant, table) = match rows.first() {
        None => (String::new(), Vec::new(), None),
        Some(row) if row.loaded.is_some() => {
            let (constant, table) = load_table(rows);
            ("Load".to_owned(), constant, Some(table))
        }
        Some(row) => {
            let (constant, table) = table(rows);
            (title(&row.common.case), constant, Some(table))
        }
    };
    if !title.is_empty() {
        writeln!(out, "{title}")?;
    }
    write_facts(out, &constant)?;
    write_facts(out, facts)?;
    if let Some(table) = table {
        writeln!(out, "\n{}", table.to_text())?;
    }
    out.flush()?;
    Ok(())
}

fn title(case: &str) -> String {
    let workload = Workload::ALL.iter().find(|w| w.name() == case);
    let about = workload.map_or("", |workload| workload.about());
    format!("Workload {}: {about}", case.to_uppercase())
}

/// The table of workloads' rows without the columns that never change, and the names and values of
/// those columns.
fn table(rows: &[YcsbRow]) -> (Vec<(String, String)>, TextTable) {
    let peer = rows.iter().any(|r| r.common.speedup_vs_peer.is_some());
    let mut headings = vec![
        "workload",
        "records",
        "cache",
        "ops per round",
        "rounds",
        "threads",
        "batch",
        "engine",
        "reads by",
        "ops/s",
        "slowest-fastest",
        "p50 us",
        "p99 us",
        "vs batch 1",
    ];
    headings.extend(peer.then_some("vs peer"));
    let mut table = TextTable::new(headings);
    for row in rows {
        let common = &row.common;
        let mut cells = vec![
            common.case.clone(),
            count(common.keys),
            cache(row),
            count(row.operations),
            common.rounds.to_string(),
            common.threads.to_string(),
            common.batch.to_string(),
            common.engine.clone(),
            common.strategy.clone(),
            short(common.keys_per_second),
            spread(common.keys_per_second_min, common.keys_per_second_max),
            digits(row.batch_p50_us),
            digits(row.batch_p99_us),
            or_dash(common.speedup_vs_single, times),
        ];
        cells.extend(peer.then(|| or_dash(common.speedup_vs_peer, times)));
        table.push(cells);
    }
    let keep = [
        "batch",
        "engine",
        "reads by",
        "ops/s",
        "slowest-fastest",
        "p50 us",
        "p99 us",
        "vs batch 1",
        "vs peer",
    ];
    (table.take_constant(&keep), table)
}

fn load_table(rows: &[YcsbRow]) -> (Vec<(String, String)>, TextTable) {
    let mut table = TextTable::new([
        "records",
        "cache",
        "data",
        "records per write",
        "engine",
        "records/s",
        "p50 us",
        "p99 us",
        "s until idle",
        "disk per byte",
        "written per byte",
        "resident",
    ]);
    for row in rows {
        let common = &row.common;
        let loaded = row.loaded.clone().unwrap_or_default();
        let bytes = |bytes: f64| format!("{}B", short(bytes));
        table.push([
            count(common.keys),
            cache(row),
            bytes(loaded.data_bytes as f64),
            common.batch.to_string(),
            common.engine.clone(),
            short(common.keys_per_second),
            digits(row.batch_p50_us),
            digits(row.batch_p99_us),
            digits(loaded.wait_idle_seconds),
            or_dash(loaded.disk_bytes_per_byte, digits),
            or_dash(loaded.write_amplification, digits),
            or_dash(loaded.resident_bytes.map(|b| b as f64), bytes),
        ]);
    }
    let keep = [
        "engine",
        "records/s",
        "p50 us",
        "p99 us",
        "s until idle",
        "disk per byte",
        "written per byte",
        "resident",
    ];
    (table.take_constant(&keep), table)
}

fn cache(row: &YcsbRow) -> String {
    match row.cache_bytes {
        None => "default".into(),
        Some(bytes) => format!("{}B", short(bytes as f64)),
    }
}

/// Explains the columns, for below the tables.
pub fn legend(rows: &[YcsbRow]) -> String {
    let rounds = rows.iter().map(|row| row.common.rounds).max().unwrap_or(0);
    let mut text = format!(
        "ops/s: medians of {rounds} alternating rounds; the load ran once.\np50, p99: percentiles \
         of the time per batch, over the batches of all rounds.\nvs batch 1: speed relative to the \
         same engine's batches of one, the median of the rounds' ratios.\ndisk per byte: bytes of \
         files over bytes of keys and values; written per byte: bytes passed to the system for \
         writing, including the log, likewise.\nresident: how much more memory the process used \
         after the load than before it."
    );
    if rows.iter().any(|r| r.common.speedup_vs_peer.is_some()) {
        text.push_str("\nvs peer: speed relative to the peer at the same batch, likewise.");
    }
    text
}

/// Adds tiles, plots and tables of `rows` to a page.
pub fn fill(report: &mut Report, rows: &[YcsbRow]) {
    let (loads, rows): (Vec<YcsbRow>, Vec<YcsbRow>) =
        rows.iter().cloned().partition(|row| row.loaded.is_some());
    report.tiles.extend(tiles(&rows));
    for (name, of_panel) in panels(&rows, panel) {
        report.sections.push(Section::Heading(name));
        report.sections.push(Section::Chart(plot(&of_panel)));
    }
    push_table(report, "All workloads", table(&rows));
    push_table(report, "The loaded stores", load_table(&loads));
    let all: Vec<YcsbRow> = loads.into_iter().chain(rows).collect();
    push_legend(report, &legend(&all));
}

/// The headline figures: how a typical workload compares with single operations, and with the peer.
fn tiles(rows: &[YcsbRow]) -> Vec<Tile> {
    let ours = || rows.iter().filter(|row| row.common.engine == "forerun");
    let found = |ratio: fn(&YcsbRow) -> Option<f64>| typical(ours(), |row| row.common.batch, ratio);
    let mut tiles = Vec::new();
    let mut push = |what: &str, found: Option<(&YcsbRow, f64)>| {
        if let Some((row, ratio)) = found {
            let (case, batch) = (row.common.case.to_uppercase(), row.common.batch);
            tiles.push(Tile::new(
                format!("{what}: workload {case} in batches of {batch}, a typical one"),
                times(ratio),
            ));
        }
    };
    push(
        "operations one by one",
        // Only a batch is compared with single operations.
        found(|row| {
            (row.common.batch > 1)
                .then_some(row.common.speedup_vs_single)
                .flatten()
        }),
    );
    push("the peer", found(|row| row.common.speedup_vs_peer));
    tiles
}

/// Describes what the rows of one plot have in common.
fn panel(row: &YcsbRow) -> String {
    let plural = if row.common.threads == 1 { "" } else { "s" };
    format!(
        "{}; {} thread{plural}, cache {}",
        title(&row.common.case),
        row.common.threads,
        cache(row)
    )
}

/// Bars of the engines, by batch.
fn plot(rows: &[&YcsbRow]) -> Chart {
    let mut chart = Chart::new("Operations per second", Shape::Bars);
    chart.note = "Medians; thin lines reach from the slowest to the fastest round.".into();
    chart.y_label = "operations per second".into();
    chart.x_label = "batch".into();
    chart.x = batches(rows, |row| row.common.batch);
    push_series(
        &mut chart,
        rows,
        |row| row.common.engine.clone(),
        |row| row.common.batch.to_string(),
        |row| Some(row.common.rates()),
    );
    chart
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ycsb::Loaded;
    use forerun_measure::result_row::Row;

    fn row(case: &str, engine: &str, batch: u64, rate: f64) -> YcsbRow {
        YcsbRow {
            common: Row {
                case: case.into(),
                engine: engine.into(),
                keys: 1000,
                batch,
                threads: 1,
                rounds: 5,
                speedup_vs_single: Some(rate / 1e5),
                speedup_vs_peer: Some(rate / 5e4),
                ..Row::default()
            }
            .with_rates(rate, rate, rate),
            cache_bytes: Some(1 << 20),
            loaded: (case == "load").then(Loaded::default),
            ..YcsbRow::default()
        }
    }

    #[test]
    fn a_workload_prints_constant_columns_once() {
        let rows = [row("a", "forerun", 1, 1e5), row("a", "rocksdb", 1, 5e4)];
        let mut out = Vec::new();
        print(&rows, &[("fact".into(), "stated".into())], &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        for word in [
            "Workload A: 50% reads",
            "rocksdb",
            "stated",
            "2.00x",
            "100 k",
        ] {
            assert!(text.contains(word), "{word} in {text}");
        }
        assert_eq!(text.matches("1.05 MB").count(), 1);
    }

    #[test]
    fn a_load_prints_facts_about_the_store() {
        let mut out = Vec::new();
        print(&[row("load", "forerun", 100, 1e5)], &[], &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.contains("Load") && text.contains("s until idle"),
            "{text}"
        );
    }

    #[test]
    fn the_page_has_one_plot_per_workload_and_a_headline() {
        let rows = [
            row("load", "forerun", 100, 1e5),
            row("a", "forerun", 1, 1e5),
            row("a", "forerun", 64, 4e5),
            row("b", "forerun", 1, 2e5),
        ];
        let mut report = Report::new("YCSB", INTRO);
        fill(&mut report, &rows);
        let charts = report.sections.iter();
        let charts = charts.filter(|section| matches!(section, Section::Chart(_)));
        assert_eq!(charts.count(), 2);
        assert_eq!(report.tiles[0].value, "4.00x");
        assert!(
            report.tiles[1]
                .label
                .contains("workload A in batches of 64")
        );
        forerun_measure::report::check_html(&report.to_html()).unwrap();
    }
}
