//! The rows as tables for the terminal and as a page.

use super::over_time::Point;
use super::result_row::WorkloadRow;
use crate::lookup_page::or_dash;
use crate::output::write_facts;
use crate::panels::{distinct, panels, push_legend, push_table};
use anyhow::Result;
use forerun_measure::report::{Chart, Report, Scale, Section, Shape, Tile};
use forerun_measure::size::{digits, short};
use forerun_measure::text_table::TextTable;
use std::io::Write;

/// The introduction of the page.
pub(super) const INTRO: &str = "Latencies of stores with several keyspaces and default options, by \
shape of work. Those of paced clients count from when an operation was due.";

/// Explains the columns, for below the tables.
pub(super) const LEGEND: &str = "p50 to max: microseconds per call; for paced clients from when \
the call was due, whatever delayed it.\nlongest call: from its real start.\nunbegun: calls that \
were due but had not begun at the end; they count with their wait.\nlongest stall: the longest \
call that wrote.\nwritten per byte: bytes passed to the system for writing from the beginning of \
the run until the store was idle, including the log, over the bytes of keys and values that the \
run wrote.\nfiles, disk: of the idle store after the run.";

/// Prints the rows of one shape, and facts.
///
/// # Errors
/// Errors of the stream.
pub(super) fn print(
    title: &str,
    rows: &[WorkloadRow],
    facts: &[(String, String)],
    out: &mut dyn Write,
) -> Result<()> {
    writeln!(out, "\n{title}")?;
    write_facts(out, facts)?;
    if !rows.is_empty() {
        for (constant, table) in [latency_table(rows), store_table(rows)] {
            write_facts(out, &constant)?;
            writeln!(out, "\n{}", table.to_text())?;
        }
    }
    out.flush()?;
    Ok(())
}

/// The table of latencies without the columns that never change, and the names and values of those.
fn latency_table(rows: &[WorkloadRow]) -> (Vec<(String, String)>, TextTable) {
    let mut table = TextTable::new([
        "shape",
        "rows",
        "value bytes",
        "class",
        "engine",
        "threads",
        "keys per call",
        "calls",
        "unbegun",
        "keys/s",
        "p50 us",
        "p99 us",
        "p99.9 us",
        "max us",
        "longest call ms",
    ]);
    let mut sorted: Vec<&WorkloadRow> = Vec::new();
    for (_, of_class) in panels(rows, panel) {
        sorted.extend(of_class);
    }
    for row in sorted {
        let common = &row.common;
        table.push([
            common.case.clone(),
            short(common.keys as f64),
            common.value_bytes.to_string(),
            common.strategy.clone(),
            common.engine.clone(),
            common.threads.to_string(),
            common.batch.to_string(),
            row.operations.to_string(),
            row.unbegun.to_string(),
            short(common.keys_per_second),
            digits(row.p50_us),
            digits(row.p99_us),
            digits(row.p999_us),
            digits(row.max_us),
            digits(row.longest_call_ms),
        ]);
    }
    let keep = [
        "class",
        "engine",
        "calls",
        "keys/s",
        "p50 us",
        "p99 us",
        "p99.9 us",
        "max us",
        "longest call ms",
    ];
    (table.take_constant(&keep), table)
}

/// What the runs did to the files.
fn store_table(rows: &[WorkloadRow]) -> (Vec<(String, String)>, TextTable) {
    let mut table = TextTable::new([
        "shape",
        "engine",
        "longest stall ms",
        "put",
        "written",
        "written per byte",
        "s until idle",
        "files",
        "disk",
    ]);
    let bytes = |bytes: f64| format!("{}B", short(bytes));
    // All rows of a shape and an engine have the same facts.
    let name = |row: &WorkloadRow| (row.common.case.clone(), row.common.engine.clone());
    for pair in distinct(rows.iter().map(name)) {
        let Some(row) = rows.iter().find(|row| name(row) == pair) else {
            continue;
        };
        let store = &row.store;
        table.push([
            pair.0,
            pair.1,
            digits(store.longest_stall_ms),
            bytes(store.put_bytes as f64),
            or_dash(store.written_bytes.map(|written| written as f64), bytes),
            or_dash(store.write_amplification, digits),
            digits(store.wait_idle_seconds),
            or_dash(store.files.map(|files| files as f64), |files| {
                files.to_string()
            }),
            or_dash(store.disk_bytes.map(|disk| disk as f64), bytes),
        ]);
    }
    let keep = ["engine", "longest stall ms", "files", "disk"];
    (table.take_constant(&keep), table)
}

/// Adds tiles, plots and tables of `rows` to a page.
pub(super) fn fill(report: &mut Report, rows: &[WorkloadRow]) {
    report.tiles.extend(tiles(rows));
    for (name, of_panel) in panels(rows, panel) {
        if of_panel.iter().any(|row| row.operations > 1) {
            report.sections.push(Section::Heading(name));
            report.sections.push(Section::Chart(plot(&of_panel)));
        }
    }
    push_table(report, "All latencies", latency_table(rows));
    push_table(report, "The stores", store_table(rows));
    push_legend(report, LEGEND);
}

/// The headline figures: Forerun's longest stall in each shape.
fn tiles(rows: &[WorkloadRow]) -> Vec<Tile> {
    let ours = rows.iter().filter(|row| row.common.engine == "forerun");
    let shapes = panels(ours, |row| row.common.case.clone());
    let tile = |(shape, rows): (String, Vec<&WorkloadRow>)| {
        let longest = rows.first()?.store.longest_stall_ms;
        let label = format!("{shape}: longest stall");
        Some(Tile::new(label, format!("{} ms", digits(longest))))
    };
    shapes.into_iter().filter_map(tile).collect()
}

/// Describes what the rows of one plot have in common.
fn panel(row: &WorkloadRow) -> String {
    format!("{}: {}", row.common.case, row.common.strategy)
}

/// A figure of a second.
type Figure = fn(&Point) -> f64;

/// Lines of the percentiles and the maximum of each engine, over time.
fn plot(rows: &[&WorkloadRow]) -> Chart {
    let mut chart = Chart::new("Latency over time", Shape::Lines);
    chart.note = "The median, high percentiles and the maximum of each second.".into();
    chart.y_label = "microseconds".into();
    chart.x_label = "second".into();
    chart.scale = Scale::Log;
    let points = rows.iter().flat_map(|row| &row.over_time);
    let mut seconds: Vec<f64> = points.map(|point| point.second).collect();
    seconds.sort_by(f64::total_cmp);
    seconds.dedup();
    chart.x = seconds.iter().map(|second| second.to_string()).collect();
    for row in rows {
        let lines: [(&str, Figure); 4] = [
            ("max", |point| point.max_us),
            ("p99.9", |point| point.p999_us),
            ("p99", |point| point.p99_us),
            ("p50", |point| point.p50_us),
        ];
        for (name, value_of) in lines {
            let at = |second: &f64| {
                let mut points = row.over_time.iter();
                let value = value_of(points.find(|point| point.second == *second)?);
                Some((value, value, value))
            };
            let values: Vec<_> = seconds.iter().map(at).collect();
            chart.push(format!("{} {name}", row.common.engine), values);
        }
    }
    chart
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::StoreFacts;
    use forerun_measure::report::check_html;
    use forerun_measure::result_row::Row;

    fn row(engine: &str, class: &str, max_us: f64) -> WorkloadRow {
        let point = |second| Point {
            second,
            operations: 7,
            p50_us: max_us / 100.0,
            p99_us: max_us / 10.0,
            p999_us: max_us / 2.0,
            max_us,
        };
        WorkloadRow {
            common: Row {
                case: "queue".into(),
                engine: engine.into(),
                strategy: class.into(),
                keys: 10_000,
                threads: 1,
                ..Row::default()
            }
            .with_rates(1e5, 1e5, 1e5),
            operations: 14,
            max_us,
            over_time: vec![point(0.0), point(2.0)],
            store: StoreFacts {
                longest_stall_ms: max_us / 1000.0,
                write_amplification: Some(2.5),
                ..StoreFacts::default()
            },
            ..WorkloadRow::default()
        }
    }

    fn rows() -> [WorkloadRow; 4] {
        [
            row("forerun", "pushes", 700.0),
            row("forerun", "pops", 900.0),
            row("fjall", "pushes", 8000.0),
            row("fjall", "pops", 9000.0),
        ]
    }

    #[test]
    fn a_shape_prints_its_classes_by_engine_and_its_facts() {
        let mut out = Vec::new();
        let facts = [("lmdb, queue".into(), "skipped: it has no keyspaces".into())];
        print("queue: push and pop", &rows(), &facts, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        for word in ["queue: push and pop", "skipped", "p99.9 us", "9000", "2.50"] {
            assert!(text.contains(word), "{word} in {text}");
        }
        let class = |line: &&str| line.trim_start().starts_with("pushes");
        assert_eq!(text.lines().filter(class).count(), 2, "{text}");
    }

    #[test]
    fn the_page_has_a_plot_over_time_of_each_class() {
        let mut report = Report::new("Workloads", INTRO);
        fill(&mut report, &rows());
        let charts: Vec<&Chart> = report
            .sections
            .iter()
            .filter_map(|section| match section {
                Section::Chart(chart) => Some(chart),
                _ => None,
            })
            .collect();
        assert_eq!(charts.len(), 2);
        assert_eq!(charts[0].x, ["0", "2"]);
        let names: Vec<&str> = charts[0].series.iter().map(|s| &*s.name).collect();
        let figures = ["max", "p99.9", "p99", "p50"];
        let expected =
            ["forerun", "fjall"].map(|engine| figures.map(|figure| format!("{engine} {figure}")));
        assert_eq!(names, expected.concat());
        let second = |at: usize| charts[0].series[at].values[1];
        assert_eq!(second(4), Some((8000.0, 8000.0, 8000.0)));
        assert_eq!(second(7), Some((80.0, 80.0, 80.0)));
        assert_eq!(report.tiles[0].value, "0.70 ms");
        check_html(&report.to_html()).unwrap();
    }
}
