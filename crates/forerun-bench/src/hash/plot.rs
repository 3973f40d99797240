//! The rows of a study on a page: plots over its axis, the winners, and the table.
//!
//! ```text
//!  keys per second      one line per design, by the best instruction set; for each measured strategy
//!  times scalar         where vector instructions pay
//!  times get            where a batch pays
//!  lines per lookup     where the lines read change along the axis
//! ```

use super::case_studies::Study;
use super::contender::GET;
use super::result_row::HashRow;
use super::show::{self, cell};
use super::sweep::Axis;
use crate::lookup_page::times;
use crate::panels::{self, Range, distinct, push_legend, push_series};
use forerun_measure::report::{Chart, Report, Scale, Section, Shape};
use forerun_measure::size::digits;

/// The introduction of the page.
pub(super) const INTRO: &str = "Batches of lookups in hash tables of several designs, with and \
without vector instructions, in alternating rounds on this machine. Every design holds the same \
keys and answers the same lookups.";

/// The plotted figures of a row: the value, the minimum and the maximum.
type Value = fn(&HashRow) -> Option<Range>;

/// Adds a study to the page; `sweeps` holds the rows of each of its sweeps.
pub(super) fn fill(report: &mut Report, study: &Study, sweeps: &[Vec<HashRow>]) {
    let mut add = |section| report.sections.push(section);
    add(Section::Heading(show::title(study)));
    if !study.question.is_empty() {
        add(Section::Text(study.question.clone()));
    }
    for (rows, sweep) in sweeps.iter().zip(&study.sweeps) {
        for panel in panels(rows, sweep.axis) {
            charts(&panel, sweep.axis, &mut add);
        }
    }
    let all = sweeps.concat();
    add(Section::Table {
        caption: "The fastest of each cell".into(),
        table: show::winners(&all),
    });
    for rows in sweeps {
        let (constant, table) = show::table(rows);
        let constant = constant.iter().map(|(head, cell)| format!("{head} {cell}"));
        add(Section::Table {
            caption: constant.collect::<Vec<String>>().join(", "),
            table,
        });
    }
}

/// Explains the columns at the end of the page.
pub(super) fn finish(report: &mut Report, rounds: usize) {
    push_legend(report, &show::legend(rounds));
}

/// The rows that differ only along the axis, by design, set and strategy.
fn panels(rows: &[HashRow], axis: Axis) -> Vec<Vec<&HashRow>> {
    let measured = rows.iter().filter(|row| row.is_measured());
    let panels = panels::panels(measured, |row| panel(row, axis));
    panels.into_iter().map(|(_, rows)| rows).collect()
}

/// Describes what the rows of a panel have in common.
fn panel(row: &HashRow, axis: Axis) -> String {
    let others = Axis::ALL.into_iter().zip(cell(row));
    let others = others.filter(|(other, _)| *other != axis);
    let texts = others.map(|(other, text)| format!("{} {text}", other.name()));
    texts.collect::<Vec<String>>().join(", ")
}

fn charts(rows: &[&HashRow], axis: Axis, add: &mut dyn FnMut(Section)) {
    let note = panel(rows[0], axis);
    let strategies = distinct(rows.iter().map(|row| row.common.strategy.clone()));
    // The vector sets first: plain code is plotted only for designs without vector code.
    let best = |row: &&HashRow| {
        let set = |other: &&HashRow| other.design == row.design && other.common.isa != "scalar";
        row.common.isa != "scalar" || !rows.iter().any(set)
    };
    for strategy in &strategies {
        let of_strategy: Vec<&HashRow> = rows
            .iter()
            .copied()
            .filter(|row| row.common.strategy == *strategy)
            .collect();
        let own: Vec<&HashRow> = of_strategy.iter().copied().filter(best).collect();
        let mut rates = chart(
            &own,
            axis,
            &format!("Keys per second by {strategy}"),
            &note,
            |row| Some(row.common.rates()),
        );
        rates.y_label = "keys per second, logarithmic".into();
        rates.scale = Scale::Log;
        if axis != Axis::Threads {
            rates.reference =
                lines_per_second(&own).map(|rate| (rate, "random lines per second".into()));
        }
        add(Section::Chart(rates));
        let ratio = |name: &str, title: &str, rows: &[&HashRow], value: Value| {
            let measured: Vec<&HashRow> = rows
                .iter()
                .copied()
                .filter(|row| value(row).is_some())
                .collect();
            let mut chart = chart(&measured, axis, title, &note, value);
            chart.y_label = "times as fast".into();
            chart.format = times;
            chart.reference = Some((1.0, name.to_owned()));
            (!measured.is_empty()).then_some(Section::Chart(chart))
        };
        let vectors: Vec<&HashRow> = own
            .iter()
            .copied()
            .filter(|row| row.common.isa != "scalar")
            .collect();
        let scalar = ratio(
            "without vector instructions",
            &format!("What vector instructions gain, by {strategy}"),
            &vectors,
            |row| point(row.speedup_vs_scalar),
        );
        scalar.into_iter().for_each(&mut *add);
        if strategy != GET {
            let batch = ratio(
                "one key at a time",
                &format!("What a batch gains, by {strategy}"),
                &own,
                |row| point(row.common.speedup_vs_single),
            );
            batch.into_iter().for_each(&mut *add);
        }
    }
    let first: Vec<&HashRow> = rows
        .iter()
        .copied()
        .filter(|row| row.common.strategy == strategies[0] && row.lines_per_lookup.is_some())
        .filter(best)
        .collect();
    if matches!(axis, Axis::LoadFactor | Axis::HitRate | Axis::Width) && !first.is_empty() {
        let mut lines = chart(&first, axis, "Cache lines per lookup", &note, |row| {
            point(row.lines_per_lookup)
        });
        lines.y_label = "lines of the table".into();
        lines.format = digits;
        add(Section::Chart(lines));
    }
}

fn point(value: Option<f64>) -> Option<Range> {
    value.map(|value| (value, value, value))
}

/// The median random lines per second that the rows' shares refer to.
fn lines_per_second(rows: &[&HashRow]) -> Option<f64> {
    let rate = |row: &&HashRow| Some(row.common.keys_per_second / row.common.roofline_share?);
    let mut rates: Vec<f64> = rows.iter().filter_map(rate).collect();
    rates.sort_by(f64::total_cmp);
    rates
        .get(rates.len() / 2)
        .copied()
        .filter(|rate| rate.is_finite())
}

/// A plot over the axis with one series per design: lines if the axis has several values, otherwise
/// bars.
fn chart(rows: &[&HashRow], axis: Axis, title: &str, note: &str, value: Value) -> Chart {
    let x = distinct(rows.iter().map(|row| axis.of(row)));
    let shape = if x.len() > 1 {
        Shape::Lines
    } else {
        Shape::Bars
    };
    let mut chart = Chart::new(title, shape);
    chart.note = note.to_owned();
    chart.x_label = axis.name().into();
    chart.x = x;
    let series = |row: &HashRow| {
        let other =
            |other: &&HashRow| other.label() == row.label() && other.common.isa != row.common.isa;
        if rows.iter().any(other) {
            format!("{} {}", row.label(), row.common.isa)
        } else {
            row.label()
        }
    };
    push_series(&mut chart, rows, series, |row| axis.of(row), value);
    chart
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::sweep::Sweep;
    use forerun_measure::report::check_html;

    #[test]
    fn a_study_becomes_plots_winners_and_tables_on_a_page_that_is_well_formed() {
        let study = Study {
            number: Some(2),
            title: "Load".into(),
            question: "How full?".into(),
            sweeps: vec![Sweep {
                axis: Axis::LoadFactor,
                ..Sweep::cell()
            }],
        };
        let mut report = Report::new("t", INTRO);
        fill(&mut report, &study, &[show::tests::rows()]);
        finish(&mut report, 5);
        let html = report.to_html();
        check_html(&html).unwrap();
        // Rates, the gain of vectors, lines per lookup.
        assert_eq!(html.matches("<svg").count(), 3);
        assert!(html.contains("Study 2: Load") && html.contains("full at 0.61"));
        assert!(html.contains("random lines per second"));
    }
}
