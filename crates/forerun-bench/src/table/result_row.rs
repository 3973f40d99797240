//! One result of the table bench: a line of JSON with the names of
//! [`forerun_measure::result_row::Row`] and these.

use forerun_measure::result_row::Row;
use serde::{Deserialize, Serialize};

/// One cell of the table.
///
/// In the common fields, `case` is the access; `strategy` the policy by which rows stay in memory;
/// `keys` the number of rows, `value_bytes` the size of a row; `keys_per_second` the rows found per
/// second; `roofline_share` counts the cache lines of a row and its bucket.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TableRow {
    /// The fields that every bench's rows have.
    #[serde(flatten)]
    pub common: Row,
    /// The share of the rows that memory may hold.
    pub budget: f64,
    /// Bytes of memory that rows and their index take, if the engine reports them.
    pub host_bytes: u64,
    /// The share of the found rows that were in memory, in the measured rounds.
    pub host_hit_rate: f64,
    /// Bytes of rows that moved between memory and disk for each byte found.
    pub moved_per_found: f64,
    /// Cache lines of a row and its bucket.
    pub lines_per_row: u64,
}

impl TableRow {
    /// The names of each JSON line besides [`Row::NAMES`].
    pub const NAMES: [&str; 5] = [
        "budget",
        "host_bytes",
        "host_hit_rate",
        "moved_per_found",
        "lines_per_row",
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_json_is_flat_has_every_name_and_reads_back() {
        let row = TableRow {
            common: Row {
                bench: "table".into(),
                threads: 1,
                hit_rate: Some(1.0),
                ..Row::default()
            }
            .with_rates(4e6, 3e6, 5e6),
            budget: 0.1,
            ..TableRow::default()
        };
        let line = serde_json::to_string(&row).unwrap();
        let fields: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(&line).unwrap();
        for name in Row::NAMES.iter().chain(&TableRow::NAMES) {
            assert!(fields.contains_key(*name), "{name} in {line}");
        }
        assert_eq!(serde_json::from_str::<TableRow>(&line).unwrap(), row);
    }
}
