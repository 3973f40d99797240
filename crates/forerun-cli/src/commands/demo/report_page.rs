//! The demo's page: key figures, plots of rates and ratios for each store, and the tables.

use forerun_measure::machine;
use forerun_measure::report::{Chart, Report, Section, Shape, Tile};
use forerun_measure::result_row::Row;
use forerun_measure::size::short;
use forerun_measure::typical::typical;

use super::cities::CREDIT;
use crate::measure::comparison;
use crate::output;

/// Builds the page from the rows of each store.
pub fn page(sets: &[Vec<Row>]) -> Report {
    let mut report = Report::new(
        "What batched lookups gain",
        "Lookups of present keys in a Forerun store on this machine: one key at a time, \
         and a batch whose cache misses overlap.",
    );
    for rows in sets.iter().filter(|rows| !rows.is_empty()) {
        let name = name(&rows[0]);
        if let Some((row, ratio)) = headline(rows) {
            let label = format!(
                "faster than one key at a time: {name}, batches of {}",
                row.batch
            );
            report.tiles.push(Tile::new(label, format!("{ratio:.1}x")));
            report.tiles.push(Tile::new(
                "keys per second at that size, one thread",
                short(row.keys_per_second),
            ));
        }
        report.sections.push(Section::Heading(name));
        report.sections.push(Section::Chart(rates(rows)));
        report.sections.push(Section::Chart(ratios(rows)));
        let caption = format!("Medians of {}.", output::counted(rows[0].rounds, "round"));
        report.sections.push(Section::Table {
            caption,
            table: comparison(rows),
        });
    }
    report.facts = machine::facts();
    report.facts.push(("data".to_owned(), CREDIT.to_owned()));
    report
}

/// A name for a store: its kind, its size and the lengths of its keys and values.
fn name(row: &Row) -> String {
    let what = if row.case == "cities" {
        "cities"
    } else {
        "entries"
    };
    format!(
        "{} {what}, keys of {} bytes, values of {}",
        output::count(row.keys),
        row.key_bytes,
        row.value_bytes
    )
}

/// The batch that the headline reports.
fn headline(rows: &[Row]) -> Option<(&Row, f64)> {
    let batches = rows.iter().filter(|row| row.strategy == "multiget");
    typical(batches, |row| row.batch, |row| row.speedup_vs_single)
}

/// The strategies in order, each with its rows in the order of the batch sizes.
fn by_strategy(rows: &[Row]) -> Vec<(&str, Vec<&Row>)> {
    let mut strategies: Vec<(&str, Vec<&Row>)> = Vec::new();
    for row in rows {
        match strategies
            .iter_mut()
            .find(|(name, _)| *name == row.strategy)
        {
            Some((_, own)) => own.push(row),
            None => strategies.push((&row.strategy, vec![row])),
        }
    }
    strategies
}

fn chart(rows: &[Row], title: &str, y_label: &str) -> Chart {
    let mut chart = Chart::new(title, Shape::Lines);
    chart.x_label = "keys per batch".to_owned();
    chart.y_label = y_label.to_owned();
    chart.x = by_strategy(rows).first().map_or(Vec::new(), |(_, own)| {
        own.iter().map(|row| row.batch.to_string()).collect()
    });
    chart
}

fn rates(rows: &[Row]) -> Chart {
    let mut chart = chart(rows, "Keys per second", "keys/s, one thread");
    chart.note = "The median of the rounds; bars span the slowest to the fastest round.".to_owned();
    for (strategy, own) in by_strategy(rows) {
        chart.push(shown(strategy), own.iter().map(|row| Some(row.rates())));
    }
    chart
}

fn ratios(rows: &[Row]) -> Chart {
    let mut chart = chart(
        rows,
        "How many times faster than one key at a time",
        "times",
    );
    chart.reference = Some((1.0, "one key at a time".to_owned()));
    chart.format = |value| format!("{value:.1}x");
    for (strategy, own) in by_strategy(rows)
        .into_iter()
        .filter(|(strategy, _)| *strategy != "get")
    {
        chart.push(
            shown(strategy),
            own.iter()
                .map(|row| row.speedup_vs_single.map(|ratio| (ratio, ratio, ratio))),
        );
    }
    chart
}

fn shown(strategy: &str) -> &str {
    match strategy {
        "get" => "one key at a time",
        "multiget" => "a batch",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_well_formed_and_credits_the_data() {
        let row = |case: &str, strategy: &str, batch, rate: f64, speedup| {
            Row {
                case: case.to_owned(),
                strategy: strategy.to_owned(),
                batch,
                threads: 1,
                keys: 1000,
                rounds: 5,
                speedup_vs_single: Some(speedup),
                ..Row::default()
            }
            .with_rates(rate, rate * 0.9, rate * 1.1)
        };
        let set = |case: &str| {
            vec![
                row(case, "get", 1, 1e6, 1.0),
                row(case, "multiget", 1, 1e6, 1.0),
                row(case, "get", 64, 1e6, 1.0),
                row(case, "multiget", 64, 5e6, 5.2),
            ]
        };
        let page = page(&[set("cities"), set("large")]);
        let html = page.to_html();
        forerun_measure::report::check_html(&html).unwrap();
        assert!(html.contains("CC BY 4.0") && html.contains("5.2x") && html.contains("<svg"));
        assert_eq!(page.tiles.len(), 4);
    }
}
