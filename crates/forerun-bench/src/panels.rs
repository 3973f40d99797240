//! Shared parts of the benches' pages: the rows of each panel, a chart of them, and the table and
//! its legend below all panels.

use forerun_measure::report::{Chart, Report, Section};
use forerun_measure::text_table::TextTable;

/// A value, the lowest and the highest.
pub(crate) type Range = (f64, f64, f64);

/// Each value once, in the order of first occurrence.
pub(crate) fn distinct<T: PartialEq>(all: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut distinct = Vec::new();
    for one in all {
        if !distinct.contains(&one) {
            distinct.push(one);
        }
    }
    distinct
}

/// The rows of each panel, with the panel's name. Rows and panels keep their order.
pub(crate) fn panels<'r, T>(
    rows: impl IntoIterator<Item = &'r T>,
    name: impl Fn(&T) -> String,
) -> Vec<(String, Vec<&'r T>)> {
    let mut panels: Vec<(String, Vec<&T>)> = Vec::new();
    for row in rows {
        let name = name(row);
        match panels.iter_mut().find(|(other, _)| *other == name) {
            Some((_, rows)) => rows.push(row),
            None => panels.push((name, vec![row])),
        }
    }
    panels
}

/// The batch sizes of rows, ascending, as a chart's axis.
pub(crate) fn batches<T>(rows: &[&T], batch: impl Fn(&T) -> u64) -> Vec<String> {
    let mut batches: Vec<u64> = rows.iter().map(|row| batch(row)).collect();
    batches.sort_unstable();
    batches.dedup();
    batches.iter().map(u64::to_string).collect()
}

/// Adds the rows to a chart that has its axis: one series for each name, with the value of the
/// first row at each place.
pub(crate) fn push_series<T>(
    chart: &mut Chart,
    rows: &[&T],
    name: impl Fn(&T) -> String,
    place: impl Fn(&T) -> String,
    value: impl Fn(&T) -> Option<Range>,
) {
    for series in distinct(rows.iter().map(|row| name(row))) {
        let at = |x: &String| {
            let is_it = |row: &&&T| name(row) == series && place(row) == *x;
            value(rows.iter().find(is_it)?)
        };
        let values: Vec<_> = chart.x.iter().map(at).collect();
        chart.push(series, values);
    }
}

/// Adds the facts that are not there yet.
pub(crate) fn add_facts(facts: &mut Vec<(String, String)>, more: Vec<(String, String)>) {
    for fact in more {
        if !facts.contains(&fact) {
            facts.push(fact);
        }
    }
}

/// Adds a table under a heading. Columns that never change become facts of the page.
pub(crate) fn push_table(
    report: &mut Report,
    heading: &str,
    (constant, table): (Vec<(String, String)>, TextTable),
) {
    add_facts(&mut report.facts, constant);
    report.sections.push(Section::Heading(heading.to_owned()));
    report.sections.push(Section::Table {
        caption: String::new(),
        table,
    });
}

/// Adds the lines that explain the columns.
pub(crate) fn push_legend(report: &mut Report, legend: &str) {
    for line in legend.lines() {
        report.sections.push(Section::Text(line.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun_measure::report::Shape;

    type Row = (&'static str, u64, f64);
    const ROWS: [Row; 4] = [("b", 64, 1.0), ("a", 8, 2.0), ("b", 8, 3.0), ("b", 8, 4.0)];

    #[test]
    fn panels_and_their_rows_keep_their_order() {
        let panels = panels(&ROWS, |row| row.0.to_owned());
        let names: Vec<&str> = panels.iter().map(|(name, _)| &**name).collect();
        assert_eq!(names, ["b", "a"]);
        assert_eq!(panels[0].1, [&ROWS[0], &ROWS[2], &ROWS[3]]);
    }

    #[test]
    fn a_series_has_a_gap_where_no_row_is() {
        let rows: Vec<&Row> = ROWS.iter().collect();
        let mut chart = Chart::new("t", Shape::Bars);
        chart.x = batches(&rows, |row| row.1);
        assert_eq!(chart.x, ["8", "64"]);
        push_series(
            &mut chart,
            &rows,
            |row| row.0.to_owned(),
            |row| row.1.to_string(),
            |row| Some((row.2, row.2, row.2)),
        );
        let values = |at: usize| -> Vec<Option<f64>> {
            let values = chart.series[at].values.iter();
            values.map(|value| value.map(|(y, ..)| y)).collect()
        };
        assert_eq!(
            (&*chart.series[0].name, values(0)),
            ("b", vec![Some(3.0), Some(1.0)])
        );
        assert_eq!(
            (&*chart.series[1].name, values(1)),
            ("a", vec![Some(2.0), None])
        );
    }

    #[test]
    fn a_fact_is_stated_once() {
        let mut report = Report::new("t", "lead");
        let fact = || vec![("keys".to_owned(), "2M".to_owned())];
        push_table(&mut report, "A", (fact(), TextTable::new(["x"])));
        push_table(&mut report, "B", (fact(), TextTable::new(["x"])));
        push_legend(&mut report, "one\ntwo");
        assert_eq!(report.facts, fact());
        assert_eq!(report.sections.len(), 6);
    }
}
