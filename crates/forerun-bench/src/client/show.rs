//! The rows of the client bench as a table and plots.

use super::result_row::ClientRow;
use crate::lookup_page::times;
use crate::panels::{panels, push_legend, push_series, push_table};
use forerun_measure::report::{Chart, Report, Section, Shape};
use forerun_measure::size::{count, digits, short, spread};
use forerun_measure::text_table::TextTable;

pub(super) const INTRO: &str = "Batches of one client over the loopback interface, to one server \
and to several, which are asked at once or one after the other. Every value is compared.";

/// The table of `rows` without the columns that never change, and the names and values of those
/// columns.
pub(super) fn table(rows: &[ClientRow]) -> (Vec<(String, String)>, TextTable) {
    const KEPT: [&str; 7] = [
        "keys per batch",
        "servers",
        "asked",
        "us per batch",
        "keys/s",
        "slowest-fastest",
        "of one server",
    ];
    let mut table = TextTable::new([
        "engine",
        "items",
        "value",
        "protocol",
        "keys per batch",
        "servers",
        "asked",
        "us per batch",
        "keys/s",
        "slowest-fastest",
        "of one server",
    ]);
    for row in rows {
        let common = &row.common;
        table.push([
            common.engine.clone(),
            count(common.keys),
            format!("{}B", count(common.value_bytes)),
            common.case.clone(),
            common.batch.to_string(),
            row.servers.to_string(),
            common.strategy.clone(),
            digits(row.batch_us),
            short(common.keys_per_second),
            spread(common.keys_per_second_min, common.keys_per_second_max),
            times(row.of_fewest_servers),
        ]);
    }
    (table.take_constant(&KEPT), table)
}

/// Explains the columns, for below the table.
pub(super) fn legend(rows: &[ClientRow]) -> String {
    let rounds = rows.iter().map(|row| row.common.rounds).max().unwrap_or(0);
    let fewest = rows.iter().map(|row| row.servers).min().unwrap_or(1);
    format!(
        "us per batch, keys/s: medians of {rounds} alternating rounds.\nof one server: the time of \
         a batch divided by that with {fewest} server(s), overlapped; the median of the rounds' \
         ratios."
    )
}

/// Adds plots and a table of `rows` to a page.
pub(super) fn fill(report: &mut Report, rows: &[ClientRow]) {
    for (name, of_panel) in panels(rows, |row| {
        format!("{}, {} keys", row.common.case, row.common.batch)
    }) {
        let mut chart = Chart::new(format!("Keys per second: {name}"), Shape::Lines);
        chart.x_label = "servers".to_owned();
        chart.y_label = "keys/s".to_owned();
        chart.x = crate::panels::batches(&of_panel, |row| row.servers);
        push_series(
            &mut chart,
            &of_panel,
            |row| row.common.strategy.clone(),
            |row| row.servers.to_string(),
            |row| Some(row.common.rates()),
        );
        report.sections.push(Section::Chart(chart));
    }
    push_table(report, "All batches", table(rows));
    push_legend(report, &legend(rows));
}
