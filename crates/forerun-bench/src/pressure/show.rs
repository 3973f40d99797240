//! What was seen over time: a table of the phases, and a page with plots.

use super::{Phase, PressureRow};
use crate::panels::push_table;
use forerun_measure::report::{Chart, Report, Section, Shape, Tile};
use forerun_measure::size::short;
use forerun_measure::text_table::TextTable;

/// The introduction of the page.
pub(super) const INTRO: &str = "A store with default options beside a program that takes memory \
and frees it, both within one limit.";

/// The phases in order, each with its rows.
fn phases(rows: &[PressureRow]) -> impl Iterator<Item = &[PressureRow]> {
    rows.chunk_by(|a, b| a.neighbour == b.neighbour)
}

/// The middle of the values; 0 if there is none.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Free => "free",
        Phase::Taking => "taking",
        Phase::Holding => "holding",
    }
}

fn bytes(bytes: f64) -> String {
    format!("{}B", short(bytes))
}

/// One line for each phase.
pub(super) fn table(rows: &[PressureRow]) -> TextTable {
    let mut table = TextTable::new([
        "neighbour",
        "from s",
        "to s",
        "keys/s",
        "slowest",
        "store at the end",
        "neighbour's memory",
        "most in the group",
        "limit",
    ]);
    for rows in phases(rows) {
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else {
            continue;
        };
        let rates = || rows.iter().map(|row| row.keys_per_second);
        let most = rows.iter().map(|row| row.group_bytes).max();
        table.push([
            phase_name(first.neighbour).to_owned(),
            format!("{:.1}", first.second),
            format!("{:.1}", last.second),
            short(median(rates())),
            short(rates().fold(f64::INFINITY, f64::min)),
            bytes(last.store_resident_bytes as f64),
            bytes(last.neighbour_resident_bytes as f64),
            bytes(most.unwrap_or(0) as f64),
            bytes(last.limit_bytes as f64),
        ]);
    }
    table
}

/// Adds tiles, plots and a table to a page.
pub(super) fn fill(report: &mut Report, rows: &[PressureRow]) {
    for phase in [Phase::Free, Phase::Holding] {
        let rate = median(
            rows.iter()
                .filter(|row| row.neighbour == phase)
                .map(|row| row.keys_per_second),
        );
        let label = format!("keys per second, neighbour {}", phase_name(phase));
        report.tiles.push(Tile::new(label, short(rate)));
    }
    let over_time = |title: &str, unit: &str| {
        let mut chart = Chart::new(title, Shape::Lines);
        chart.x_label = "second".into();
        chart.y_label = unit.into();
        chart.x = rows
            .iter()
            .map(|row| format!("{:.1}", row.second))
            .collect();
        chart
    };
    let line = |chart: &mut Chart, name: &str, value: fn(&PressureRow) -> f64| {
        let values = rows
            .iter()
            .map(value)
            .map(|value| Some((value, value, value)));
        chart.push(name, values);
    };
    let mut rates = over_time("Throughput", "keys per second");
    line(&mut rates, "lookups", |row| row.keys_per_second);
    let mut memory = over_time("Memory", "bytes");
    if let Some(row) = rows.first() {
        memory.reference = Some((row.limit_bytes as f64, "limit".to_owned()));
    }
    line(&mut memory, "store", |row| row.store_resident_bytes as f64);
    line(&mut memory, "neighbour", |row| {
        row.neighbour_resident_bytes as f64
    });
    line(&mut memory, "both and cached files", |row| {
        row.group_bytes as f64
    });
    report.sections.push(Section::Chart(rates));
    report.sections.push(Section::Chart(memory));
    push_table(report, "Phases", (Vec::new(), table(rows)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun_measure::report::check_html;

    fn rows() -> Vec<PressureRow> {
        let phases = [
            Phase::Free,
            Phase::Free,
            Phase::Taking,
            Phase::Holding,
            Phase::Free,
        ];
        let row = |(second, neighbour): (usize, Phase)| PressureRow {
            second: second as f64,
            neighbour,
            keys_per_second: 1000.0 * (second + 1) as f64,
            store_resident_bytes: 1 << 30,
            limit_bytes: 6 << 30,
            ..PressureRow::default()
        };
        phases.into_iter().enumerate().map(row).collect()
    }

    #[test]
    fn each_phase_has_a_line_and_the_page_plots_all_of_them() {
        let text = table(&rows()).to_text();
        // Headings, a rule and four phases.
        let free = text.lines().filter(|line| line.contains("free")).count();
        assert_eq!(free, 2, "{text}");
        assert!(
            text.contains("holding") && text.contains("6.44 GB"),
            "{text}"
        );
        let mut report = Report::new("t", INTRO);
        fill(&mut report, &rows());
        let html = report.to_html();
        check_html(&html).unwrap();
        assert_eq!(html.matches("<svg").count(), 2);
    }
}
