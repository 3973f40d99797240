//! The rows of the study of indexes as a table and plots.

use super::result_row::{IndexRow, PhaseTimes};
use super::{is_memc3, label};
use crate::lookup_page::{or_dash, percent, times};
use crate::panels::{batches, distinct, panels, push_legend, push_series, push_table};
use forerun_measure::report::{Chart, Report, Section, Shape, Tile};
use forerun_measure::size::{count, digits, short, spread};
use forerun_measure::text_table::TextTable;

pub(super) const INTRO: &str = "One server with one thread, its protocol and its sockets, and the \
index behind it exchanged. Server and client are on separate cores of one machine.";

/// A phase's name, and its time.
type PhaseColumn = (&'static str, fn(&PhaseTimes) -> f64);

/// A ratio's name, and its value.
type RatioColumn = (&'static str, fn(&IndexRow) -> Option<f64>);

const PHASES: [PhaseColumn; 6] = [
    ("receive", |times| times.receive_ns),
    ("parse", |times| times.parse_ns),
    ("hash", |times| times.hash_ns),
    ("probe", |times| times.probe_ns),
    ("copy", |times| times.copy_ns),
    ("send", |times| times.send_ns),
];

/// The table of `rows` without the columns that never change, and the names and values of those
/// columns.
pub(super) fn table(rows: &[IndexRow]) -> (Vec<(String, String)>, TextTable) {
    let own = [
        "keys per request",
        "index",
        "keys/s",
        "slowest-fastest",
        "rate",
        "vs tcp",
        "p50 us",
        "p50",
        "p99 us",
        "mean us",
        "mean",
    ];
    let last = [
        "table",
        "server",
        "core ns",
        "core",
        "client",
        "server core",
        "B per item",
    ];
    let headings = [
        "items",
        "value",
        "access",
        "connections",
        "transport",
        "client waits",
    ];
    let phases = PHASES.map(|(name, _)| name);
    let headings = [&headings[..], &own, &phases, &last].concat();
    let kept = [&own[..], &phases, &last].concat();
    let mut table = TextTable::new(headings);
    for row in rows {
        let common = &row.common;
        let mut cells = vec![
            count(common.keys),
            format!("{}B", count(common.value_bytes)),
            common.access.clone().unwrap_or_default(),
            row.connections.to_string(),
            row.transport.clone(),
            row.client_wait.clone(),
            common.batch.to_string(),
            label(row),
            short(common.keys_per_second),
            spread(common.keys_per_second_min, common.keys_per_second_max),
            or_dash(row.rate_vs_memc3, times),
            or_dash(row.vs_tcp, times),
            digits(row.p50_us),
            or_dash(row.p50_vs_memc3, times),
            digits(row.p99_us),
            digits(row.mean_us),
            or_dash(row.mean_vs_memc3, times),
        ];
        let of_phases = row.phases.as_ref();
        let phase = |(_, time): &PhaseColumn| or_dash(of_phases.map(time), digits);
        cells.extend(PHASES.iter().map(phase));
        cells.push(or_dash(of_phases.map(|all| all.table_vs_memc3), times));
        cells.push(or_dash(of_phases.map(|all| all.server_vs_memc3), times));
        cells.push(or_dash(row.core_ns_per_key, digits));
        cells.push(or_dash(row.core_vs_memc3, times));
        cells.push(percent(row.client_share));
        cells.push(or_dash(row.server_share, percent));
        cells.push(or_dash(row.index_bytes_per_item, digits));
        table.push(cells);
    }
    (table.take_constant(&kept), table)
}

/// Explains the columns, for below the table.
pub(super) fn legend(rows: &[IndexRow]) -> String {
    let rounds = rows.iter().map(|row| row.common.rounds).max().unwrap_or(0);
    format!(
        "Medians of {rounds} alternating rounds; ratios are to memc3 over the same transport, and \
         are medians of the rounds' ratios.\nrate: keys/s over memc3's. vs tcp: keys/s over those \
         over tcp. p50, mean: the latency over memc3's; below 1 is faster.\nreceive to send: \
         nanoseconds per key in each phase of the server; the rest of its time is the \
         poll.\ntable: the speed of hash and probe over memc3's. server: the speed \
         of parse, hash, probe and copy over memc3's.\ncore ns: core time of the server per key, \
         system calls included. core: memc3's over this one's.\nclient: the share of its core that \
         the load generator used; near 100%, it is the bottleneck.\nB per item: bytes of the \
         index, without the items.\nforerun, memcached: complete servers, \
         measured in the same rounds."
    )
}

/// Adds tiles, plots and a table of `rows` to a page.
pub(super) fn fill(report: &mut Report, rows: &[IndexRow]) {
    report.tiles.extend(tiles(rows));
    for (name, of_panel) in panels(rows, panel) {
        let ratios: [RatioColumn; 3] = [
            ("Keys per second over MemC3's", |row| row.rate_vs_memc3),
            ("Hash and probe: speed over MemC3's", |row| {
                row.phases.as_ref().map(|all| all.table_vs_memc3)
            }),
            ("Median latency over MemC3's", |row| row.p50_vs_memc3),
        ];
        for (title, value) in ratios {
            let mut chart = Chart::new(format!("{title}: {name}"), Shape::Lines);
            chart.x_label = "keys per request".to_owned();
            chart.x = batches(&of_panel, |row| row.common.batch);
            chart.format = times;
            chart.reference = Some((1.0, "MemC3".to_owned()));
            push_series(
                &mut chart,
                &of_panel,
                label,
                |row| row.common.batch.to_string(),
                |row| value(row).map(|value| (value, value, value)),
            );
            report.sections.push(Section::Chart(chart));
        }
        for keys in distinct(of_panel.iter().map(|row| row.common.batch)) {
            let of_keys = of_panel.iter().filter(|row| row.common.batch == keys);
            let of_keys: Vec<&&IndexRow> = of_keys.filter(|row| row.phases.is_some()).collect();
            let title = format!("Time per key in each phase, {keys} keys per request: {name}");
            let mut chart = Chart::new(title, Shape::Bars);
            chart.y_label = "ns per key".to_owned();
            chart.format = digits;
            chart.x = of_keys.iter().map(|row| label(row)).collect();
            for (phase, time) in PHASES {
                let times = of_keys.iter().map(|row| row.phases.as_ref().map(time));
                let times = times.map(|ns| ns.map(|ns| (ns, ns, ns)));
                chart.push(phase, times);
            }
            report.sections.push(Section::Chart(chart));
        }
    }
    push_table(report, "All results", table(rows));
    push_legend(report, &legend(rows));
}

/// Describes what the rows of some plots have in common.
fn panel(row: &IndexRow) -> String {
    let common = &row.common;
    format!(
        "values of {} B, {}, {} connections over {}, clients that {}",
        common.value_bytes,
        common.access.as_deref().unwrap_or_default(),
        row.connections,
        row.transport,
        row.client_wait
    )
}

/// The headline figures: the index with the highest rate at the most keys per request.
fn tiles(rows: &[IndexRow]) -> Vec<Tile> {
    let keys_max = rows.iter().map(|row| row.common.batch).max();
    let widest = rows.iter().filter(|row| Some(row.common.batch) == keys_max);
    let widest = widest.filter(|row| row.phases.is_some() && !is_memc3(row));
    let rate = |row: &&IndexRow| row.rate_vs_memc3.unwrap_or(0.0);
    let best = widest.max_by(|one, other| rate(one).total_cmp(&rate(other)));
    let Some(row) = best else {
        return Vec::new();
    };
    let of_memc3 = |what: &str| {
        format!(
            "{what} over MemC3's, {}, {} keys per request over {}",
            row.common.strategy, row.common.batch, row.transport
        )
    };
    let mut tiles = Vec::new();
    for (what, value) in [
        ("keys/s", row.rate_vs_memc3),
        (
            "speed of hash and probe",
            row.phases.as_ref().map(|all| all.table_vs_memc3),
        ),
        ("median latency", row.p50_vs_memc3),
    ] {
        tiles.extend(value.map(|value| Tile::new(of_memc3(what), times(value))));
    }
    tiles
}

#[cfg(test)]
mod tests {
    use super::super::index_name::MEMC3;
    use super::*;
    use forerun_measure::result_row::Row;

    fn rows() -> Vec<IndexRow> {
        let row = |engine: &str, strategy: &str, rate: f64| IndexRow {
            common: Row {
                engine: engine.into(),
                strategy: strategy.into(),
                batch: 100,
                rounds: 5,
                value_bytes: 64,
                access: Some("uniform".into()),
                ..Row::default()
            }
            .with_rates(1e6 * rate, 0.9e6 * rate, 1.1e6 * rate),
            phases: (engine == "study").then(|| PhaseTimes {
                probe_ns: 90.0 / rate,
                table_vs_memc3: 2.0 * rate,
                ..PhaseTimes::default()
            }),
            transport: "tcp".into(),
            client_wait: "sleep".into(),
            rate_vs_memc3: Some(rate),
            p50_vs_memc3: Some(1.0 / rate),
            ..IndexRow::default()
        };
        vec![
            row("study", &MEMC3.to_string(), 1.0),
            row("study", "table/find/avx2", 1.25),
            row("memcached", "classic", 0.5),
        ]
    }

    #[test]
    fn the_table_has_a_row_for_each_server_and_dashes_for_unknown_phases() {
        let (constant, table) = table(&rows());
        assert!(constant.contains(&("value".into(), "64B".into())));
        assert_eq!(table.headings[..2], ["keys per request", "index"]);
        assert!(table.rows[1].contains(&"1.25x".to_owned()), "{table:?}");
        assert!(table.rows[1].contains(&"2.50x".to_owned()), "{table:?}");
        assert_eq!(table.rows[2][1], "memcached");
        assert!(table.rows[2].contains(&"-".to_owned()), "{table:?}");
    }

    #[test]
    fn the_page_names_the_best_index_and_plots_every_phase() {
        let mut report = Report::new("Indexes", INTRO);
        fill(&mut report, &rows());
        let values: Vec<&str> = report.tiles.iter().map(|tile| &*tile.value).collect();
        assert_eq!(values, ["1.25x", "2.50x", "0.80x"]);
        let html = report.to_html();
        forerun_measure::report::check_html(&html).unwrap();
        assert_eq!(html.matches("<svg").count(), 4);
        assert!(html.contains("table/find/avx2") && html.contains("receive"));
    }
}
