//! The tables as text and as sections of a page.
//!
//! ```text
//!   004  multireadrandom, one thread                    title, conditions
//!           seed: baseline  change  single  default     theirs, then ours
//!   batch 2        363,593   +3.6%   410 k  2.10 M a    a: docs/results/…, the machine
//!   what is missing, what follows
//! ```

use super::document::{Document, Format, Table};
use super::result_row::SeedRow;
use crate::lookup_page::or_dash;
use crate::panels::distinct;
use forerun_measure::report::{Chart, Report, Section, Shape};
use forerun_measure::text_table::TextTable;

/// The introduction of the page.
pub(super) const INTRO: &str = "The tables of the five documents in which Forerun's methods \
began. Columns that begin with \"seed\" are the documents' figures, from their own machines; the \
others are ours, from this machine, or, marked with a letter, from a committed result. Ratios \
within a row are comparable, rates of different machines are not.";

/// A document's heading.
pub(super) fn heading(document: &Document) -> String {
    format!("Seed {}: {}", document.seed.number(), document.source)
}

/// Adds a document's heading to the page.
pub(super) fn begin(report: &mut Report, document: &Document) {
    report.sections.push(Section::Heading(heading(document)));
}

/// The files that committed figures of these rows are from, with their machines.
fn files(rows: &[SeedRow]) -> Vec<(String, String)> {
    let figures = rows.iter().flat_map(|row| &row.ours);
    let files = figures.filter_map(|figure| figure.file.clone().zip(figure.device.clone()));
    distinct(files)
}

/// The letter that marks the figures of a file.
fn letter(at: usize) -> char {
    char::from(b'a' + (at % 26) as u8)
}

/// The cells, and lines of remarks.
fn cells(table: &Table, rows: &[SeedRow]) -> (TextTable, Vec<String>) {
    let files = files(rows);
    let theirs = table.theirs.iter().map(|(name, _)| format!("seed: {name}"));
    let ours = table.columns.iter().map(|column| column.name.to_owned());
    let heading = table.unit.to_owned();
    let mut cells = TextTable::new([heading].into_iter().chain(theirs).chain(ours));
    for (row, defined) in rows.iter().zip(&table.rows) {
        let theirs = row.theirs.iter().zip(&table.theirs);
        let mut theirs: Vec<String> = theirs
            .map(|(figure, (_, format))| or_dash(figure.value, |value| format.write(value)))
            .collect();
        theirs.resize(table.theirs.len(), "-".to_owned());
        let ours = row.ours.iter().zip(&table.columns).map(|(figure, column)| {
            // A row with a field of its own has the unit that it names.
            let format = defined.value.map_or(column.format, |_| Format::Digits);
            let mut cell = or_dash(figure.value, |value| format.write(value));
            let file = figure.file.as_ref();
            let at = file.and_then(|file| files.iter().position(|(known, _)| known == file));
            if let Some(at) = at {
                cell.push_str(&format!(" {}", letter(at)));
            }
            cell
        });
        cells.push([row.row.clone()].into_iter().chain(theirs).chain(ours));
    }
    let mut remarks: Vec<String> = files
        .iter()
        .enumerate()
        .map(|(at, (file, device))| format!("{}: {device}, {file}", letter(at)))
        .collect();
    for row in rows.iter().filter(|row| !row.note.is_empty()) {
        remarks.push(format!("{}: {}", row.row, row.note));
    }
    let is_missing = |row: &SeedRow| {
        let mut ours = row.ours.iter();
        ours.any(|figure| figure.value.is_none() || figure.file.is_some())
    };
    if rows.iter().any(is_missing) {
        remarks.push(format!("What is not measured here needs {}.", table.lacks));
    }
    remarks.push(table.follows.to_owned());
    (cells, remarks)
}

/// A table for the terminal.
pub(super) fn text(table: &Table, rows: &[SeedRow]) -> String {
    let (cells, remarks) = cells(table, rows);
    format!(
        "{}\n  seed: {}\n\n{}\n{}",
        table.title,
        table.conditions,
        cells.to_text(),
        remarks.join("\n")
    )
}

/// A table and its plot on the page.
pub(super) fn section(report: &mut Report, table: &Table, rows: &[SeedRow]) {
    let (mut cells, remarks) = cells(table, rows);
    cells.headings.push("what follows".to_owned());
    for (cells, row) in cells.rows.iter_mut().zip(rows) {
        cells.push(row.follows.clone());
    }
    let chart = chart(table, rows);
    if chart.series.len() > 1 && chart.x.len() > 1 {
        report.sections.push(Section::Chart(chart));
    }
    report.sections.push(Section::Table {
        caption: format!("{}. Seed: {}", table.title, table.conditions),
        table: cells,
    });
    report
        .sections
        .extend(remarks.into_iter().map(Section::Text));
}

/// The plotted columns, theirs first, over the rows.
fn chart(table: &Table, rows: &[SeedRow]) -> Chart {
    let mut chart = Chart::new(table.title, Shape::Bars);
    chart.y_label = table.unit.to_owned();
    chart.format = match table.plotted {
        Format::Rate => |value| Format::Rate.write(value),
        Format::Times => |value| Format::Times.write(value),
        _ => |value| Format::Digits.write(value),
    };
    // Rows with fields of their own have other units.
    let plotted: Vec<usize> = (0..rows.len())
        .filter(|&at| table.rows[at].value.is_none())
        .collect();
    chart.x = plotted.iter().map(|&at| rows[at].row.clone()).collect();
    let point = |value: Option<f64>| value.map(|value| (value, value, value));
    for (at, (name, format)) in table.theirs.iter().enumerate() {
        if *format == table.plotted {
            let of_row = |&row: &usize| point(rows[row].theirs.get(at).and_then(|one| one.value));
            chart.push(format!("seed: {name}"), plotted.iter().map(of_row));
        }
    }
    for (at, column) in table.columns.iter().enumerate() {
        let values = || plotted.iter().map(|&row| point(rows[row].ours[at].value));
        if column.format == table.plotted && values().any(|value| value.is_some()) {
            chart.push(column.name, values());
        }
    }
    chart
}

#[cfg(test)]
mod tests {
    use super::super::document::{Better, Column, TableRow};
    use super::super::result_row::{OurFigure, TheirFigure};
    use super::*;
    use crate::bench_rows::figures::fields;

    fn table() -> Table {
        Table {
            title: "rates",
            conditions: "another machine",
            unit: "keys/s",
            plotted: Format::Rate,
            better: Better::Higher,
            theirs: vec![("before", Format::Rate), ("change", Format::Change)],
            columns: vec![
                Column::here("ours", "none", fields! {}),
                Column::here("ratio", "none", fields! {}).of("ratio", Format::Times),
            ],
            rows: [2, 8]
                .map(|batch| TableRow::new(format!("batch {batch}"), &[1.0, 0.5], fields! {}))
                .into(),
            lacks: "a GPU",
            follows: "It is faster.",
        }
    }

    fn row(name: &str, ours: [Option<f64>; 2], file: Option<&str>) -> SeedRow {
        let theirs = [("before", 2e6), ("change", 0.036)];
        let figure = |(column, value): (&str, Option<f64>)| OurFigure {
            column: column.to_owned(),
            value,
            file: file.filter(|_| value.is_some()).map(str::to_owned),
            device: file.map(|_| "a GPU".to_owned()),
            ..OurFigure::default()
        };
        SeedRow {
            row: name.to_owned(),
            theirs: theirs
                .map(|(column, value)| TheirFigure {
                    column: column.to_owned(),
                    value: Some(value),
                })
                .to_vec(),
            ours: ["ours", "ratio"]
                .into_iter()
                .zip(ours)
                .map(figure)
                .collect(),
            ..SeedRow::default()
        }
    }

    #[test]
    fn theirs_come_first_and_committed_figures_are_marked() {
        let rows = [
            row("batch 2", [Some(4e6), Some(2.0)], None),
            row("batch 8", [Some(5e6), None], Some("docs/results/x.jsonl")),
        ];
        let text = text(&table(), &rows);
        let squeezed = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in [
            "keys/s seed: before seed: change ours ratio",
            "batch 2 2.00 M +3.6% 4.00 M 2.00x",
            "batch 8 2.00 M +3.6% 5.00 M a -",
            "a: a GPU, docs/results/x.jsonl",
            "What is not measured here needs a GPU.",
            "It is faster.",
        ] {
            assert!(squeezed.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn a_complete_row_of_this_machine_lacks_nothing_and_is_plotted() {
        let rows = ["batch 2", "batch 8"].map(|name| row(name, [Some(4e6), Some(2.0)], None));
        assert!(!text(&table(), &rows).contains("not measured"));
        let chart = chart(&table(), &rows);
        let names: Vec<&str> = chart.series.iter().map(|series| &*series.name).collect();
        assert_eq!(names, ["seed: before", "ours"]);
        let mut report = Report::new("t", INTRO);
        section(&mut report, &table(), &rows);
        forerun_measure::report::check_html(&report.to_html()).unwrap();
    }
}
