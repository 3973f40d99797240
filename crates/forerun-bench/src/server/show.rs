//! The rows of the server bench as tables and plots.

use super::form::{Form, Protocol};
use super::result_row::ServerRow;
use crate::lookup_page::{or_dash, percent, times};
use crate::panels::{batches, panels, push_legend, push_series, push_table};
use forerun_measure::report::{Chart, Report, Section, Shape, Tile};
use forerun_measure::size::{count, digits, short, spread};
use forerun_measure::text_table::TextTable;
use forerun_measure::typical::typical;

pub(super) const INTRO: &str = "Requests over the loopback interface, with server and client on \
separate cores. Every reply is recognised by its length, and a sample is compared byte by byte.";

/// The table of `rows` without the columns that never change, and the names and values of those
/// columns.
pub(super) fn table(rows: &[ServerRow]) -> (Vec<(String, String)>, TextTable) {
    const KEPT: [&str; 12] = [
        "form",
        "keys per request",
        "server",
        "keys/s",
        "slowest-fastest",
        "p50 us",
        "p99 us",
        "p99.9 us",
        "client",
        "server core",
        "core ns/key",
        "vs peer",
    ];
    let mut table = TextTable::new([
        "items",
        "value",
        "access",
        "transport",
        "client waits",
        "form",
        "keys per request",
        "server",
        "keys/s",
        "slowest-fastest",
        "vs peer",
        "vs get",
        "vs tcp",
        "p50 us",
        "p99 us",
        "p99.9 us",
        "p99 vs peer",
        "client",
        "server core",
        "core ns/key",
        "core vs peer",
        "found",
    ]);
    for row in rows {
        let common = &row.common;
        table.push([
            count(common.keys),
            format!("{}B", count(common.value_bytes)),
            common.access.clone().unwrap_or_default(),
            row.transport.clone(),
            row.client_wait.clone(),
            common.case.clone(),
            common.batch.to_string(),
            common.engine.clone(),
            short(common.keys_per_second),
            spread(common.keys_per_second_min, common.keys_per_second_max),
            or_dash(common.speedup_vs_peer, times),
            or_dash(row.vs_get, times),
            or_dash(row.vs_tcp, times),
            digits(row.p50_us),
            digits(row.p99_us),
            digits(row.p999_us),
            or_dash(row.p99_vs_peer, times),
            percent(row.client_share),
            or_dash(row.server_share, percent),
            or_dash(row.core_ns_per_key, digits),
            or_dash(row.core_vs_peer, times),
            or_dash(common.hit_rate, percent),
        ]);
    }
    (table.take_constant(&KEPT), table)
}

/// Explains the columns, for below the tables.
pub(super) fn legend(rows: &[ServerRow]) -> String {
    let rounds = rows.iter().map(|row| row.common.rounds).max().unwrap_or(0);
    format!(
        "keys/s: medians of {rounds} alternating rounds; ratios are medians of the rounds' \
         ratios. The peer is memcached in its protocol, whose get stands for multi_get, and in \
         RESP the first of --peer.\nvs get: over the same server's get.\nvs tcp: over the same \
         server and form over TCP, with clients that wait in the same way.\np50, p99, p99.9: \
         percentiles over the requests of all rounds, from sending a request until its last byte \
         arrived.\nclient: the share of its core that the load generator used; below 100%, it is \
         not the bottleneck.\nserver core: the share of the cores for its threads that the server \
         used.\ncore ns/key: core time that the server used per key, however fast the client was. \
         core vs peer: the peer's over this server's.\nfound: the share of the requested \
         keys that the server still had."
    )
}

/// Adds tiles, plots and a table of `rows` to a page.
pub(super) fn fill(report: &mut Report, rows: &[ServerRow]) {
    report.tiles.extend(tiles(rows));
    for (name, of_panel) in panels(rows, panel) {
        report.sections.push(Section::Chart(plot(&name, &of_panel)));
    }
    push_table(report, "All requests", table(rows));
    push_legend(report, &legend(rows));
}

/// Describes what the rows of one plot have in common.
fn panel(row: &ServerRow) -> String {
    let common = &row.common;
    format!(
        "{}, values of {} B, {}, {}, clients {}",
        common.case,
        common.value_bytes,
        common.access.as_deref().unwrap_or_default(),
        row.transport,
        row.client_wait
    )
}

fn plot(name: &str, rows: &[&ServerRow]) -> Chart {
    let mut chart = Chart::new(format!("Keys per second: {name}"), Shape::Lines);
    chart.x_label = "keys per request".to_owned();
    chart.y_label = "keys/s".to_owned();
    chart.x = batches(rows, |row| row.common.batch);
    push_series(
        &mut chart,
        rows,
        |row| row.common.engine.clone(),
        |row| row.common.batch.to_string(),
        |row| Some(row.common.rates()),
    );
    chart
}

/// The headline figure: the median over the requests with about 64 keys, in each form.
fn tiles(rows: &[ServerRow]) -> Vec<Tile> {
    let mut tiles: Vec<Tile> = Vec::new();
    let forms = [Protocol::Memcached, Protocol::Resp]
        .map(Form::all_of)
        .concat();
    for form in forms.iter().map(Form::to_string) {
        let of_form = rows.iter().filter(|row| row.common.case == form);
        let compared = of_form.filter_map(|row| Some((row, row.common.speedup_vs_peer?)));
        // The first rows are this server's.
        let ours = compared.filter(|(row, _)| row.common.engine == rows[0].common.engine);
        let ours: Vec<_> = ours.collect();
        let found = typical(
            &ours,
            |(row, _)| row.common.batch,
            |(_, ratio)| Some(*ratio),
        );
        if let Some(((row, _), ratio)) = found {
            let common = &row.common;
            tiles.push(Tile::new(
                format!(
                    "the peer's keys/s, {form}, {} keys per request",
                    common.batch
                ),
                times(ratio),
            ));
        }
    }
    tiles
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun_measure::result_row::Row;

    fn rows() -> Vec<ServerRow> {
        let mut rows = Vec::new();
        for (batch, engine, rate) in [
            (1, "forerun", 2e5),
            (1, "memcached", 1.4e5),
            (100, "forerun", 3.6e6),
            (100, "memcached", 1.1e6),
        ] {
            let common = Row {
                engine: engine.into(),
                case: "get".into(),
                batch,
                keys: 2_000_000,
                threads: 1,
                rounds: 5,
                value_bytes: 64,
                access: Some("uniform".into()),
                hit_rate: Some(1.0),
                speedup_vs_peer: Some(rate / if batch == 1 { 1.4e5 } else { 1.1e6 }),
                ..Row::default()
            };
            rows.push(ServerRow {
                common: common.with_rates(rate, rate * 0.9, rate * 1.1),
                client_share: 0.5,
                ..ServerRow::default()
            });
        }
        rows
    }

    #[test]
    fn the_table_omits_constant_columns() {
        let (constant, table) = table(&rows());
        assert_eq!(table.headings[..3], ["form", "keys per request", "server"]);
        assert!(constant.contains(&("items".into(), "2M".into())));
        assert!(constant.contains(&("found".into(), "100%".into())));
        assert!(table.rows[2].contains(&"3.27x".to_owned()), "{table:?}");
        assert!(table.rows[2].contains(&"50.0%".to_owned()), "{table:?}");
    }

    #[test]
    fn the_page_shows_the_ratio_of_the_widest_requests_and_one_line_per_server() {
        let mut report = Report::new("Server", INTRO);
        fill(&mut report, &rows());
        assert_eq!(report.tiles.len(), 1);
        assert_eq!(report.tiles[0].value, "3.27x");
        assert!(report.tiles[0].label.contains("100 keys"));
        let html = report.to_html();
        forerun_measure::report::check_html(&html).unwrap();
        assert!(html.contains("<svg") && html.contains("memcached"));
    }
}
