//! The results as tables and as a page.

use super::result_row::TableRow;
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
pub const INTRO: &str = "Rows found per second in a table that is partly in memory and otherwise \
on disk, by access, memory budget and batch, in alternating rounds on this machine.";

/// Prints the rows of one access and budget.
///
/// # Errors
/// Errors of the stream.
pub fn print(rows: &[TableRow], out: &mut dyn Write) -> Result<()> {
    let (constant, table) = table(rows);
    writeln!(out)?;
    write_facts(out, &constant)?;
    writeln!(out, "\n{}", table.to_text())?;
    out.flush()?;
    Ok(())
}

/// The table without the columns that never change, and the names and values of those columns.
fn table(rows: &[TableRow]) -> (Vec<(String, String)>, TextTable) {
    let peer = rows.iter().any(|r| r.common.speedup_vs_peer.is_some());
    let mut headings = vec![
        "access",
        "rows",
        "row",
        "budget",
        "memory",
        "rounds",
        "threads",
        "batch",
        "engine",
        "policy",
        "rows/s",
        "slowest-fastest",
        "ns per row",
        "lines",
        "from memory",
        "moved",
    ];
    headings.extend(peer.then_some("vs peer"));
    let mut table = TextTable::new(headings);
    for row in rows {
        let common = &row.common;
        // An engine that does not report its memory does not report hits there either.
        let if_reported = |figure: f64| (row.host_bytes > 0).then_some(figure);
        let mut cells = vec![
            common.case.clone(),
            count(common.keys),
            format!("{} B", common.value_bytes),
            percent(row.budget),
            or_dash(if_reported(row.host_bytes as f64), |bytes| {
                format!("{}B", short(bytes))
            }),
            common.rounds.to_string(),
            common.threads.to_string(),
            common.batch.to_string(),
            common.engine.clone(),
            common.strategy.clone(),
            short(common.keys_per_second),
            spread(common.keys_per_second_min, common.keys_per_second_max),
            digits(common.ns_per_key),
            or_dash(common.roofline_share, percent),
            or_dash(if_reported(row.host_hit_rate), percent),
            or_dash(if_reported(row.moved_per_found), percent),
        ];
        cells.extend(peer.then(|| or_dash(common.speedup_vs_peer, times)));
        table.push(cells);
    }
    let keep = [
        "batch",
        "engine",
        "rows/s",
        "slowest-fastest",
        "ns per row",
        "lines",
        "from memory",
        "moved",
        "vs peer",
    ];
    (table.take_constant(&keep), table)
}

fn percent(share: f64) -> String {
    format!("{:.1}%", 100.0 * share)
}

/// Explains the columns, for below the tables.
pub fn legend(rows: &[TableRow]) -> String {
    let rounds = rows.iter().map(|row| row.common.rounds).max().unwrap_or(0);
    let lines = rows.first().map_or(0, |row| row.lines_per_row);
    let mut text = format!(
        "rows/s: medians of {rounds} alternating rounds.\nlines: rows per second times {lines}, \
         the cache lines of a row and its bucket, over the random cache lines per second that the \
         same number of threads read in the same rounds; above 100% if caches hold some of \
         them.\nfrom memory: the share of the found rows that the table had in memory; the others \
         came from its store, whose pages the system may have in memory as well.\nmoved: bytes of \
         rows moved between memory and disk, over bytes found.\nmemory: rows in memory, their \
         index and metadata, without the store's cache."
    );
    if rows.iter().any(|r| r.common.speedup_vs_peer.is_some()) {
        text.push_str(
            "\nvs peer: speed relative to the peer at the same batch, the median of the \
            rounds' ratios.",
        );
    }
    text
}

/// Adds tiles, plots and tables of `rows` to a page.
pub fn fill(report: &mut Report, rows: &[TableRow]) {
    let found = |fits: &dyn Fn(&TableRow) -> bool| {
        let ours = rows
            .iter()
            .filter(|row| row.common.engine == "forerun" && fits(row));
        typical(
            ours,
            |row| row.common.batch,
            |row| Some(row.common.keys_per_second),
        )
    };
    for (what, found) in [
        ("rows/s, all in memory", found(&|row| row.budget >= 1.0)),
        ("rows/s, a part in memory", found(&|row| row.budget < 1.0)),
    ] {
        if let Some((row, rate)) = found {
            let label = format!(
                "{what}: {}, batches of {}, a typical cell",
                row.common.case, row.common.batch
            );
            report.tiles.push(Tile::new(label, short(rate)));
        }
    }
    for (name, of_panel) in panels(rows, panel) {
        report.sections.push(Section::Heading(name));
        report.sections.push(Section::Chart(plot(&of_panel)));
    }
    push_table(report, "All results", table(rows));
    push_legend(report, &legend(rows));
}

/// Describes what the rows of one plot have in common.
fn panel(row: &TableRow) -> String {
    let plural = if row.common.threads == 1 { "" } else { "s" };
    format!("{}, {} thread{plural}", row.common.case, row.common.threads)
}

/// Bars of the budgets and engines, by batch.
fn plot(rows: &[&TableRow]) -> Chart {
    let mut chart = Chart::new("Rows per second", Shape::Bars);
    chart.note = "Medians; thin lines reach from the slowest to the fastest round.".into();
    chart.y_label = "rows per second".into();
    chart.x_label = "batch".into();
    chart.x = batches(rows, |row| row.common.batch);
    let series = |row: &TableRow| {
        format!(
            "{} {}, {} in memory",
            row.common.engine,
            row.common.strategy,
            percent(row.budget)
        )
    };
    push_series(
        &mut chart,
        rows,
        series,
        |row| row.common.batch.to_string(),
        |row| Some(row.common.rates()),
    );
    chart
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun_measure::result_row::Row;

    fn row(batch: u64, budget: f64) -> TableRow {
        TableRow {
            common: Row {
                case: "zipf:1".into(),
                engine: "forerun".into(),
                keys: 1000,
                value_bytes: 256,
                batch,
                threads: 1,
                rounds: 5,
                roofline_share: Some(0.75),
                ..Row::default()
            }
            .with_rates(4e6, 3e6, 5e6),
            budget,
            host_bytes: 1 << 20,
            host_hit_rate: 0.875,
            lines_per_row: 5,
            ..TableRow::default()
        }
    }

    #[test]
    fn constant_values_are_stated_once_and_the_rest_in_columns() {
        let mut out = Vec::new();
        print(&[row(64, 0.1), row(256, 0.1)], &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.matches("10.0%").count(), 1);
        for word in ["zipf:1", "4.00 M", "75.0%", "87.5%", "256"] {
            assert!(text.contains(word), "{word} in {text}");
        }
    }

    #[test]
    fn the_page_has_one_plot_per_access_and_is_well_formed() {
        let mut report = Report::new("Tables", INTRO);
        fill(&mut report, &[row(64, 1.0), row(256, 1.0), row(64, 0.1)]);
        assert_eq!(report.tiles.len(), 2);
        forerun_measure::report::check_html(&report.to_html()).unwrap();
    }
}
