//! What follows from a row: a sentence about the source's figures, and one about ours.

use super::document::{Better, Format, Table, TableRow};
use super::result_row::{OurFigure, SeedRow};

/// Both sentences.
pub(super) fn conclusion(table: &Table, defined: &TableRow, row: &SeedRow) -> String {
    format!("{} {}", of_theirs(table, row), of_ours(table, defined, row))
}

fn of_theirs(table: &Table, row: &SeedRow) -> String {
    let figures = row.theirs.iter().zip(&table.theirs);
    let figures = figures
        .filter_map(|(figure, (name, format))| Some((*name, *format, format.write(figure.value?))));
    let figures: Vec<(&str, Format, String)> = figures.collect();
    if figures.is_empty() {
        return "The source has no such row.".to_owned();
    }
    if let Some((.., change)) = figures
        .iter()
        .find(|(_, format, _)| *format == Format::Change)
    {
        return format!("The source's change makes {change}.");
    }
    let figures: Vec<String> = figures
        .into_iter()
        .map(|(name, _, value)| format!("{name} {value}"))
        .collect();
    format!("The source has {}.", figures.join(", "))
}

/// A column's name and its figure.
type Candidate<'a> = (&'a str, &'a OurFigure, f64);

fn of_ours(table: &Table, defined: &TableRow, row: &SeedRow) -> String {
    let columns = row.ours.iter().zip(&table.columns);
    // Columns of other units are no rivals, unless the row has one unit of its own.
    let rivals = columns.filter(|(_, column)| {
        defined.value.is_some() || column.format == table.plotted && !column.is_apart
    });
    let rivals: Vec<Candidate<'_>> = rivals
        .filter_map(|(figure, column)| Some((column.name, figure, figure.value?)))
        .collect();
    let format = defined.value.map_or(table.plotted, |_| Format::Digits);
    let write = |(name, figure, value): &Candidate<'_>| {
        let device = figure.device.as_ref();
        let device = device
            .map(|device| format!(" ({device})"))
            .unwrap_or_default();
        format!("{name} {}{device}", format.write(*value))
    };
    let better = defined.better.unwrap_or(table.better);
    let best = rivals
        .iter()
        .enumerate()
        .max_by(|(_, a), (_, b)| match better {
            Better::Higher => a.2.total_cmp(&b.2),
            Better::Lower => b.2.total_cmp(&a.2),
        });
    let Some((at, best)) = best else {
        let why = match &*row.note {
            "" => format!("it needs {}", first_clause(table.lacks)),
            note => note.to_owned(),
        };
        return format!("Ours is not measured: {why}.");
    };
    // The first column is what the others improve on.
    let other = rivals.get(if at == 0 { 1 } else { 0 });
    match other {
        Some(other) => format!(
            "Of ours, the best is {}, next to {}.",
            write(best),
            write(other)
        ),
        None => format!("Ours is {}.", write(best)),
    }
}

/// What a text says before it explains itself.
fn first_clause(text: &str) -> &str {
    text.split(['.', ':', ';']).next().unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::super::document::Column;
    use super::super::result_row::TheirFigure;
    use super::*;
    use crate::bench_rows::figures::fields;

    fn table() -> Table {
        let column = |name| Column::here(name, "none", fields! {});
        Table {
            title: "rates",
            conditions: "another machine",
            unit: "keys/s",
            plotted: Format::Rate,
            better: Better::Higher,
            theirs: vec![("before", Format::Rate), ("change", Format::Change)],
            columns: vec![
                column("single"),
                column("batched"),
                column("ratio").of("ratio", Format::Times),
            ],
            rows: Vec::new(),
            lacks: "a GPU. It was not there",
            follows: "",
        }
    }

    fn row(theirs: [Option<f64>; 2], ours: [Option<f64>; 3]) -> SeedRow {
        let theirs = theirs.map(|value| TheirFigure {
            column: String::new(),
            value,
        });
        let ours = ours.map(|value| OurFigure {
            value,
            ..OurFigure::default()
        });
        SeedRow {
            theirs: theirs.into(),
            ours: ours.into(),
            ..SeedRow::default()
        }
    }

    #[test]
    fn the_best_of_one_unit_is_named_beside_the_first() {
        let plain = TableRow::new("a", &[], fields! {});
        let of = |defined: &TableRow, row: &SeedRow| conclusion(&table(), defined, row);
        let both = row([Some(2e6), Some(0.05)], [Some(1e6), Some(9e6), Some(9.0)]);
        assert_eq!(
            of(&plain, &both),
            "The source's change makes +5.0%. Of ours, the best is batched 9.00 M, next to single \
             1.00 M."
        );
        let lower = TableRow {
            better: Some(Better::Lower),
            ..TableRow::new("a", &[], fields! {})
        };
        assert!(of(&lower, &both).contains("the best is single 1.00 M, next to batched"));
        let mut one = row([Some(2e6), None], [None, Some(9e6), None]);
        one.ours[1].device = Some("an H200".to_owned());
        assert_eq!(
            of(&plain, &one),
            "The source has before 2.00 M. Ours is batched 9.00 M (an H200)."
        );
    }

    #[test]
    fn a_row_without_figures_says_why() {
        let plain = TableRow::new("a", &[], fields! {});
        let none = row([None, None], [None, None, Some(3.0)]);
        assert_eq!(
            conclusion(&table(), &plain, &none),
            "The source has no such row. Ours is not measured: it needs a GPU."
        );
        let noted = SeedRow {
            note: "no Arm machine was measured".to_owned(),
            ..none
        };
        let text = conclusion(&table(), &plain, &noted);
        assert!(
            text.ends_with("not measured: no Arm machine was measured."),
            "{text}"
        );
    }
}
