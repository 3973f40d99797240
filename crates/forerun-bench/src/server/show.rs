//! The results as a table and as a page.

use super::row::ServerRow;
use crate::report::{Chart, Report, Section, Shape, Tile};
use crate::size::{count, digits, short, spread};
use crate::table::Table;

/// What the page says first.
pub(super) const LEAD: &str = "\
A cache server and memcached on the same machine, with the same memory and threads, driven in alternation over TCP on the \
loopback interface, each connection with one request under way.";

/// The rows, and what they have in common.
pub(super) fn table(rows: &[ServerRow]) -> (Vec<(String, String)>, Table) {
    let mut table = Table::new([
        "value B",
        "items",
        "operation",
        "protocol",
        "skew",
        "connections",
        "rounds",
        "keys",
        "server",
        "keys/s",
        "slowest-fastest",
        "p50 us",
        "p99 us",
        "p99.9 us",
        "client",
        "server's",
        "vs memcached",
        "p99 vs",
    ]);
    let times = |ratio: Option<f64>| ratio.map_or("-".into(), |x| format!("{}x", digits(x)));
    let percent = |share: f64| format!("{:.0}%", share * 100.0);
    for row in rows {
        table.push([
            row.value_bytes.to_string(),
            count(row.items),
            row.operation.clone(),
            row.protocol.clone(),
            row.skew.clone(),
            row.connections.to_string(),
            row.rounds.to_string(),
            row.keys_per_request.to_string(),
            row.server.clone(),
            short(row.keys_per_second),
            spread(row.keys_per_second_min, row.keys_per_second_max),
            digits(row.p50_us),
            digits(row.p99_us),
            digits(row.p999_us),
            percent(row.client_share),
            percent(row.server_share),
            times(row.ratio_to_memcached),
            times(row.p99_to_memcached),
        ]);
    }
    let keep = [
        "keys",
        "server",
        "keys/s",
        "p50 us",
        "p99 us",
        "client",
        "vs memcached",
    ];
    (table.take_constant(&keep), table)
}

/// What the columns mean.
pub(super) fn legend(rows: &[ServerRow]) -> String {
    let mut text = "\
keys/s: keys answered a second, the median of alternating rounds. p50, p99, p99.9: from a request's first byte to its \
reply's last, medians of the rounds'.
client, server's: shares of their cores that client and server used. Near 100%, the client is what was measured.
vs memcached: keys/s over memcached's, the median of the rounds' ratios; p99 vs: likewise, less is better."
        .to_owned();
    let tight = rows.iter().filter(|row| row.client_share > 0.95).count();
    if tight > 0 {
        text.push_str(&format!(
            "\nIn {tight} of {} rows the client used more than 95% of its core: there the server may be faster than it shows.",
            rows.len()
        ));
    }
    text
}

/// Puts charts and the table on a page.
pub(super) fn fill(report: &mut Report, rows: &[ServerRow]) {
    let best = |operation: &str| {
        let ratio = |row: &&ServerRow| row.ratio_to_memcached.unwrap_or(0.0);
        let of = rows.iter().filter(|row| row.operation == operation);
        of.max_by(|a, b| ratio(a).total_cmp(&ratio(b)))
    };
    if let Some(row) = best("get")
        && let Some(ratio) = row.ratio_to_memcached
    {
        let label = format!(
            "memcached, gets of {} keys, {}",
            row.keys_per_request, row.protocol
        );
        report
            .tiles
            .push(Tile::new(label, format!("{}x", digits(ratio))));
    }
    let panel = |row: &ServerRow| {
        format!(
            "{}, {}, {}, values of {} B, {} connections",
            row.operation, row.protocol, row.skew, row.value_bytes, row.connections
        )
    };
    let mut panels: Vec<String> = Vec::new();
    for name in rows.iter().map(panel) {
        if !panels.contains(&name) {
            panels.push(name);
        }
    }
    for name in panels {
        let of: Vec<&ServerRow> = rows.iter().filter(|row| panel(row) == name).collect();
        report.sections.push(Section::Heading(name));
        report.sections.push(Section::Chart(chart(&of)));
    }
    let (constant, table) = table(rows);
    report.facts.extend(constant);
    report.sections.push(Section::Heading("All results".into()));
    report.sections.push(Section::Table {
        caption: String::new(),
        table,
    });
    for line in legend(rows).lines() {
        report.sections.push(Section::Text(line.to_owned()));
    }
}

fn chart(rows: &[&ServerRow]) -> Chart {
    let mut chart = Chart::new("Keys a second", Shape::Bars);
    chart.x_label = "keys a request".into();
    chart.y_label = "keys a second".into();
    chart.note = "Medians; thin lines reach from the slowest to the fastest round.".into();
    let mut keys: Vec<u64> = rows.iter().map(|row| row.keys_per_request).collect();
    keys.sort_unstable();
    keys.dedup();
    chart.x = keys.iter().map(u64::to_string).collect();
    for server in ["forerun", "memcached"] {
        let values: Vec<_> = keys
            .iter()
            .map(|keys| {
                let row = rows
                    .iter()
                    .find(|row| row.server == server && row.keys_per_request == *keys)?;
                Some((
                    row.keys_per_second,
                    row.keys_per_second_min,
                    row.keys_per_second_max,
                ))
            })
            .collect();
        if values.iter().any(Option::is_some) {
            chart.push(server, values);
        }
    }
    chart
}
