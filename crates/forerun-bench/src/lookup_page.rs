//! The rows of a lookup bench as a table and as a page.

use crate::panels::{Range, batches, panels, push_legend, push_series, push_table};
use forerun_measure::report::{Chart, Report, Section, Shape, Tile};
use forerun_measure::result_row::Row;
use forerun_measure::size::{count, digits, short, spread};
use forerun_measure::text_table::TextTable;
use forerun_measure::typical::typical;

/// The introduction of a lookup bench's page.
pub const INTRO: &str = "Keys looked up per second, by strategy and batch size, in alternating \
rounds on this machine. The gain of a strategy that overlaps the cache misses of a batch grows \
with the batch; the rate of one key at a time does not.";

/// The table of `rows` without the columns that never change, and the names and values of those
/// columns.
pub fn table(rows: &[Row]) -> (Vec<(String, String)>, TextTable) {
    let peer = rows.iter().any(|row| row.speedup_vs_peer.is_some());
    let inserts = rows.iter().any(|row| row.inserts_per_second.is_some());
    let access = rows.iter().any(|row| row.access.is_some());
    let mut headings = vec![
        "workload", "keys", "key B", "prefix B", "value B", "pages", "rounds", "threads",
        "hit rate",
    ];
    headings.extend(access.then_some("access"));
    headings.extend(inserts.then_some("writers"));
    headings.extend([
        "batch",
        "strategy",
        "keys/s",
        "ns per key",
        "slowest-fastest",
        "vs single",
        "of best",
    ]);
    headings.extend(peer.then_some("vs peer"));
    headings.push("roofline");
    headings.extend(inserts.then_some("inserts/s"));
    let mut table = TextTable::new(headings);
    for row in rows {
        let mut cells = vec![
            row.case.clone(),
            count(row.keys),
            row.key_bytes.to_string(),
            row.prefix_bytes.to_string(),
            row.value_bytes.to_string(),
            row.pages.clone(),
            row.rounds.to_string(),
            row.threads.to_string(),
            or_dash(row.hit_rate, |rate| rate.to_string()),
        ];
        cells.extend(access.then(|| row.access.clone().unwrap_or_else(|| "-".to_owned())));
        cells.extend(inserts.then(|| or_dash(row.writers.map(|n| n as f64), |n| n.to_string())));
        cells.extend([
            row.batch.to_string(),
            row.label(),
            short(row.keys_per_second),
            digits(row.ns_per_key),
            spread(row.keys_per_second_min, row.keys_per_second_max),
            or_dash(row.speedup_vs_single, times),
            or_dash(row.share_of_best, percent),
        ]);
        cells.extend(peer.then(|| or_dash(row.speedup_vs_peer, times)));
        cells.push(or_dash(row.roofline_share, percent));
        cells.extend(inserts.then(|| or_dash(row.inserts_per_second, short)));
        table.push(cells);
    }
    let keep = [
        "batch",
        "strategy",
        "keys/s",
        "ns per key",
        "slowest-fastest",
        "vs single",
        "vs peer",
        "roofline",
    ];
    (table.take_constant(&keep), table)
}

/// Explains the columns, for below the table.
pub fn legend(rows: &[Row]) -> String {
    let rounds = rows.first().map_or(0, |row| row.rounds);
    let mut text = format!(
        "Medians of {rounds} alternating rounds.\nvs single: speed relative to one key after the \
         other in the same cell, the median of the rounds' ratios.\nof best: speed relative to the \
         same engine's fastest strategy in the cell, likewise.\nroofline: keys/s over the random \
         cache lines/s that the same number of threads can read on this machine; 100% would be a \
         lookup that costs one line and nothing else."
    );
    if rows.iter().any(|row| row.case == "fillrandom") {
        text.push_str("\nfillrandom: entries written per second, one per write, without a log.");
    }
    if rows.iter().any(|row| row.inserts_per_second.is_some()) {
        text.push_str("\ninserts/s: entries that the writers overwrote concurrently.");
    }
    text
}

/// Adds tiles, plots and tables of `rows` to a page.
pub fn fill(report: &mut Report, rows: &[Row]) {
    report.tiles.extend(tiles(rows));
    for (cell, of_panel) in panels(rows, panel) {
        report.sections.push(Section::Heading(cell));
        if of_panel[0].case == "fillrandom" {
            let mut chart = plot(&of_panel, "Entries written per second", |row| {
                Some(row.rates())
            });
            chart.y_label = "entries per second".into();
            report.sections.push(Section::Chart(chart));
            continue;
        }
        let mut rates = plot(&of_panel, "Keys per second", |row| Some(row.rates()));
        rates.y_label = "keys per second".into();
        rates.note = "Medians; thin lines reach from the slowest to the fastest round.".into();
        report.sections.push(Section::Chart(rates));
        // The baseline itself is the reference line.
        let others: Vec<&Row> = of_panel
            .iter()
            .copied()
            .filter(|row| !is_baseline(row))
            .collect();
        if others.is_empty() {
            continue;
        }
        let mut ratios = plot(&others, "Against one key at a time", |row| {
            row.speedup_vs_single.map(|ratio| (ratio, ratio, ratio))
        });
        ratios.y_label = "times as fast".into();
        ratios.format = times;
        ratios.reference = Some((1.0, "one key at a time".into()));
        report.sections.push(Section::Chart(ratios));
    }
    push_table(report, "All results", table(rows));
    push_legend(report, &legend(rows));
}

/// The headline figures: the gain of a batch with the default strategy in a typical cell, and the
/// rate there.
fn tiles(rows: &[Row]) -> Vec<Tile> {
    let ours: Vec<&Row> = rows
        .iter()
        .filter(|row| row.case != "fillrandom" && row.engine == "forerun" && !is_baseline(row))
        .collect();
    let has_default = ours.iter().any(|row| row.strategy == "auto");
    let fits = |row: &&Row| !has_default || row.strategy == "auto";
    let candidates = ours.into_iter().filter(fits);
    let mut tiles = Vec::new();
    if let Some((row, ratio)) = typical(candidates, |row| row.batch, |row| row.speedup_vs_single) {
        let label = format!(
            "one key at a time: {} at batch {}, a typical cell",
            row.label(),
            row.batch
        );
        tiles.push(Tile::new(label, times(ratio)));
        tiles.push(Tile::new(
            "keys per second there",
            short(row.keys_per_second),
        ));
        tiles.push(Tile::new(
            "a key there, as one thread sees it",
            format!("{} ns", digits(row.ns_per_key)),
        ));
    }
    let fills = rows.iter().filter(|row| row.case == "fillrandom");
    if let Some((_, rate)) = typical(fills, |row| row.batch, |row| Some(row.keys_per_second)) {
        tiles.push(Tile::new("entries written per second", short(rate)));
    }
    tiles
}

/// Whether a row is the base of Forerun's speedups.
fn is_baseline(row: &Row) -> bool {
    row.engine == "forerun" && matches!(row.strategy.as_str(), "single" | "plain")
}

/// Describes what the rows of one plot have in common.
fn panel(row: &Row) -> String {
    let threads = if row.threads == 1 {
        "thread"
    } else {
        "threads"
    };
    let mut text = format!(
        "{}, {} keys, {} {threads}",
        row.case,
        count(row.keys),
        row.threads
    );
    match row.writers {
        None => {}
        Some(1) => text.push_str(", one writer"),
        Some(writers) => text.push_str(&format!(", {writers} writers")),
    }
    if let Some(rate) = row.hit_rate {
        text.push_str(&format!(", hit rate {rate}"));
    }
    if let Some(access) = &row.access {
        text.push_str(&format!(", {access}"));
    }
    text.push_str(&format!(
        ", keys of {} B, values of {} B",
        row.key_bytes, row.value_bytes
    ));
    text
}

/// A plot over the batch sizes of one panel's rows: lines if there are several, otherwise bars.
fn plot(rows: &[&Row], title: &str, value: impl Fn(&Row) -> Option<Range>) -> Chart {
    let batches = batches(rows, |row| row.batch);
    let shape = if batches.len() > 1 {
        Shape::Lines
    } else {
        Shape::Bars
    };
    let mut chart = Chart::new(title, shape);
    chart.x_label = "batch".into();
    chart.x = batches;
    push_series(
        &mut chart,
        rows,
        Row::label,
        |row| row.batch.to_string(),
        value,
    );
    chart
}

pub(crate) fn or_dash(value: Option<f64>, write: impl Fn(f64) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), write)
}

/// A ratio as `4.82x`.
pub fn times(ratio: f64) -> String {
    format!("{}x", digits(ratio))
}

pub(crate) fn percent(share: f64) -> String {
    format!("{}%", digits(100.0 * share))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Row> {
        let mut rows = Vec::new();
        for batch in [8, 64] {
            for (strategy, rate) in [("single", 4e5), ("interleaved", 2e6)] {
                rows.push(
                    Row {
                        case: "multireadrandom".into(),
                        engine: "forerun".into(),
                        strategy: strategy.into(),
                        keys: 2_000_000,
                        batch,
                        threads: 1,
                        hit_rate: Some(0.5),
                        speedup_vs_single: Some(rate / 4e5),
                        share_of_best: Some(rate / 2e6),
                        roofline_share: Some(0.02),
                        ..Row::default()
                    }
                    .with_rates(rate, rate * 0.9, rate * 1.1),
                );
            }
        }
        rows
    }

    #[test]
    fn constant_columns_are_in_the_heading_of_the_table() {
        let (constant, table) = table(&rows());
        assert!(constant.contains(&("keys".into(), "2M".into())));
        assert_eq!(table.headings[..2], ["batch", "strategy"]);
        assert_eq!(
            table.rows[3],
            [
                "64",
                "interleaved",
                "2.00 M",
                "500",
                "1.80 M - 2.20 M",
                "5.00x",
                "100%",
                "2.00%"
            ]
        );
    }

    #[test]
    fn the_headline_is_a_typical_cell_and_not_the_luckiest() {
        let mut rows = rows();
        for (strategy, batch, ratio) in [
            ("finger", 64, 3.0),
            ("partition", 64, 4.0),
            ("finger", 1024, 90.0),
        ] {
            let lucky = Row {
                strategy: strategy.into(),
                batch,
                speedup_vs_single: Some(ratio),
                ..rows[3].clone()
            };
            rows.push(lucky);
        }
        assert_eq!(tiles(&rows)[0].value, "4.00x");
        // If the default strategy was measured, the headline is about it.
        rows[3].strategy = "auto".into();
        assert_eq!(tiles(&rows)[0].value, "5.00x");
    }

    #[test]
    fn the_page_has_one_panel_per_cell_and_a_headline() {
        let mut report = Report::new("t", INTRO);
        fill(&mut report, &rows());
        let charts = report
            .sections
            .iter()
            .filter(|section| matches!(section, Section::Chart(_)));
        assert_eq!(charts.count(), 2);
        assert_eq!(report.tiles[0].value, "5.00x");
        assert!(report.tiles[0].label.contains("at batch 64"), "{report:?}");
        forerun_measure::report::check_html(&report.to_html()).unwrap();
    }
}
