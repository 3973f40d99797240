//! The rows of a study as tables.

use super::case_studies::Study;
use super::result_row::HashRow;
use super::sweep::Axis;
use crate::lookup_page::{or_dash, percent, times};
use forerun_measure::size::{count, digits, short, spread};
use forerun_measure::text_table::TextTable;

impl Axis {
    /// The dimension's name, used as a column head.
    pub(super) fn name(self) -> &'static str {
        match self {
            Axis::Operation => "operation",
            Axis::Size => "size",
            Axis::Width => "key+value B",
            Axis::LoadFactor => "load",
            Axis::HitRate => "hit rate",
            Axis::Skew => "skew",
            Axis::Batch => "batch",
            Axis::Threads => "threads",
            Axis::Updates => "updates",
        }
    }

    /// A row's value in the dimension.
    pub(super) fn of(self, row: &HashRow) -> String {
        match self {
            Axis::Operation => row.common.case.clone(),
            Axis::Size => format!("{}B", count(row.size_bytes)),
            Axis::Width => format!("{}+{}", row.common.key_bytes, row.common.value_bytes),
            Axis::LoadFactor => row.load_factor.to_string(),
            Axis::HitRate => or_dash(row.common.hit_rate, |rate| rate.to_string()),
            Axis::Skew => row.skew.clone(),
            Axis::Batch => row.common.batch.to_string(),
            Axis::Threads => row.common.threads.to_string(),
            Axis::Updates => match &row.update_kind {
                Some(kind) => format!("{}% {kind}", digits(100.0 * row.updates)),
                None => "none".to_owned(),
            },
        }
    }
}

/// A row's values in all dimensions.
pub(super) fn cell(row: &HashRow) -> [String; 9] {
    Axis::ALL.map(|axis| axis.of(row))
}

/// A column's head and its content.
type Column = (&'static str, fn(&HashRow) -> Option<String>);

/// Columns that describe a row in addition to its cell, in order. A column that is empty for all
/// rows is left out.
const COLUMNS: &[Column] = &[
    ("design", |row| Some(row.label())),
    ("isa", |row| Some(row.common.isa.clone())),
    ("strategy", |row| Some(row.common.strategy.clone())),
    ("keys/s", |row| {
        Some(match row.full_at {
            Some(full) => format!("full at {}", digits(full)),
            None => short(row.common.keys_per_second),
        })
    }),
    ("ns per key", |row| {
        measured(row, |row| digits(row.common.ns_per_key))
    }),
    ("slowest-fastest", |row| {
        measured(row, |row| {
            spread(
                row.common.keys_per_second_min,
                row.common.keys_per_second_max,
            )
        })
    }),
    ("lines", |row| row.common.roofline_share.map(percent)),
    ("vs memc3", |row| row.speedup_vs_memc3.map(times)),
    ("vs scalar", |row| row.speedup_vs_scalar.map(times)),
    ("vs get", |row| row.common.speedup_vs_single.map(times)),
    ("vs peer", |row| row.common.speedup_vs_peer.map(times)),
    ("vs 1 thread", |row| row.speedup_vs_one_thread.map(times)),
    ("of quiet", |row| row.share_of_quiet.map(percent)),
    ("updates/s", |row| row.common.inserts_per_second.map(short)),
    ("rounds", |row| Some(row.common.rounds.to_string())),
];

/// The costs of a design, which the strategies and sets share.
const COSTS: &[Column] = &[
    ("B per entry", |row| row.bytes_per_entry.map(digits)),
    ("lines per lookup", |row| row.lines_per_lookup.map(digits)),
];

fn measured(row: &HashRow, write: impl Fn(&HashRow) -> String) -> Option<String> {
    row.is_measured().then(|| write(row))
}

/// The table of `rows` without the columns that never change, and the names and values of those
/// columns.
pub(super) fn table(rows: &[HashRow]) -> (Vec<(String, String)>, TextTable) {
    let said = |column: &&Column| rows.iter().any(|row| column.1(row).is_some());
    let columns: Vec<_> = COLUMNS.iter().chain(COSTS).filter(said).collect();
    let axes = Axis::ALL.map(Axis::name);
    let headings = axes.iter().chain(columns.iter().map(|(head, _)| head));
    let mut table = TextTable::new(headings.copied());
    for row in rows {
        let cells = columns.iter().map(|(_, write)| write(row));
        let cells = cells.map(|cell| cell.unwrap_or_else(|| "-".to_owned()));
        table.push(cell(row).into_iter().chain(cells));
    }
    let keep: Vec<&str> = columns
        .iter()
        .map(|(head, _)| *head)
        .filter(|head| *head != "rounds")
        .collect();
    (table.take_constant(&keep), table)
}

/// The fastest variant in each cell, with the fastest without vector instructions.
pub(super) fn winners(rows: &[HashRow]) -> TextTable {
    let mut table = TextTable::new(Axis::ALL.map(Axis::name).into_iter().chain([
        "fastest",
        "isa",
        "strategy",
        "keys/s",
        "ns per key",
        "lines",
        "vs memc3",
        "fastest scalar",
        "its keys/s",
    ]));
    let mut cells: Vec<[String; 9]> = Vec::new();
    for row in rows.iter().filter(|row| row.is_measured()) {
        if !cells.contains(&cell(row)) {
            cells.push(cell(row));
        }
    }
    for place in cells {
        let of_cell = || {
            rows.iter()
                .filter(|row| row.is_measured() && cell(row) == place)
        };
        let rate = |row: &&HashRow| row.common.keys_per_second;
        let fastest = of_cell().max_by(|a, b| rate(a).total_cmp(&rate(b)));
        let scalar = of_cell()
            .filter(|row| row.common.isa == "scalar")
            .max_by(|a, b| rate(a).total_cmp(&rate(b)));
        let Some(row) = fastest else {
            continue;
        };
        table.push(place.into_iter().chain([
            row.label(),
            row.common.isa.clone(),
            row.common.strategy.clone(),
            short(row.common.keys_per_second),
            digits(row.common.ns_per_key),
            or_dash(row.common.roofline_share, percent),
            or_dash(row.speedup_vs_memc3, times),
            scalar.map_or_else(|| "-".to_owned(), HashRow::label),
            or_dash(scalar.map(|row| row.common.keys_per_second), short),
        ]));
    }
    table.take_constant(&[
        "fastest",
        "isa",
        "strategy",
        "keys/s",
        "ns per key",
        "lines",
        "vs memc3",
        "fastest scalar",
        "its keys/s",
    ]);
    table
}

/// The heading of a study.
pub(super) fn heading(study: &Study) -> String {
    let mut text = title(study);
    if !study.question.is_empty() {
        text.push('\n');
        text.push_str(&study.question);
    }
    text
}

/// A study's number and title.
pub(super) fn title(study: &Study) -> String {
    match study.number {
        Some(number) => format!("Study {number}: {}", study.title),
        None => study.title.clone(),
    }
}

/// Explains the columns, for below the tables.
pub(super) fn legend(rounds: usize) -> String {
    format!(
        "Medians of {rounds} alternating rounds; ratios are medians of the rounds' ratios. Every \
         answer was checked.\nsize: slots times the bytes of a key and a value. load: entries over \
         slots.\nlines: keys/s over the random cache lines/s that the same number of threads read \
         in the same rounds.\nvs memc3: speed relative to MemC3's design with the same strategy. \
         vs scalar: relative to the same without vector instructions.\nvs get: relative to one key \
         after the other, or, of writes, to batches of one. of quiet: relative to the rate without \
         updates.\nlines a lookup: cache lines of the table that a lookup reads, averaged over the \
         requested keys.\nfull at: the load factor at which the design could take no more entries."
    )
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use forerun_measure::result_row::Row;

    /// Rows of two designs; the second is full in the second cell.
    pub(crate) fn rows() -> Vec<HashRow> {
        let mut rows = Vec::new();
        for (load_factor, rates) in [(0.5, [9e7, 4e7]), (0.9, [7e7, 0.0])] {
            for (design, isa, rate) in [("a", "avx2", rates[0]), ("b", "scalar", rates[1])] {
                let common = Row {
                    engine: "forerun".into(),
                    strategy: "find".into(),
                    isa: isa.into(),
                    batch: 64,
                    threads: 1,
                    rounds: 5,
                    hit_rate: Some(1.0),
                    roofline_share: Some(rate / 1e8),
                    ..Row::default()
                };
                rows.push(HashRow {
                    common: common.with_rates(rate, rate * 0.9, rate * 1.1),
                    design: design.into(),
                    size_bytes: 1 << 30,
                    load_factor,
                    bytes_per_entry: (rate > 0.0).then_some(20.0),
                    lines_per_lookup: (rate > 0.0).then_some(1.2),
                    full_at: (rate == 0.0).then_some(0.61),
                    speedup_vs_scalar: Some(1.0),
                    skew: "uniform".into(),
                    ..HashRow::default()
                });
            }
        }
        rows
    }

    #[test]
    fn the_table_shows_varying_columns_and_where_a_design_was_full() {
        let (constant, table) = table(&rows());
        assert!(constant.contains(&("size".into(), "1GiB".into())));
        assert!(constant.contains(&("rounds".into(), "5".into())));
        assert_eq!(table.headings[..3], ["load", "design", "isa"]);
        assert!(!table.headings.contains(&"vs peer".to_owned()));
        let full = &table.rows[3];
        assert!(full.contains(&"full at 0.61".to_owned()), "{full:?}");
        assert_eq!(full.iter().filter(|cell| *cell == "-").count(), 4);
    }

    #[test]
    fn each_cell_has_one_winner_and_its_rival_without_vectors() {
        let table = winners(&rows());
        assert_eq!(table.rows.len(), 2);
        assert_eq!(table.rows[0][1..3], ["a", "avx2"]);
        assert_eq!(table.rows[0].last().map(String::as_str), Some("40.0 M"));
        assert_eq!(table.rows[1].last().map(String::as_str), Some("-"));
    }
}
