//! One result of the client bench: a line of JSON with the names of
//! [`forerun_measure::result_row::Row`] and these.

use forerun_measure::result_row::Row;
use serde::{Deserialize, Serialize};

/// One cell of the table.
///
/// In the common fields, `case` is the protocol; `engine` the server; `strategy` is `overlapped` or
/// `in turn`; `keys` the items of a server; `batch` the keys per call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClientRow {
    /// The fields that every bench's rows have.
    #[serde(flatten)]
    pub common: Row,
    /// Servers that share the keys.
    pub servers: u64,
    /// Microseconds per batch: the median of the rounds' means.
    pub batch_us: f64,
    /// The time of a batch divided by that with the fewest servers, overlapped: the median of the
    /// rounds' ratios.
    pub of_fewest_servers: f64,
    /// Whether servers and client had separate cores.
    pub pinned_apart: bool,
}

impl ClientRow {
    /// The names of each JSON line besides [`Row::NAMES`].
    pub const NAMES: [&str; 4] = ["servers", "batch_us", "of_fewest_servers", "pinned_apart"];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_json_is_flat_has_every_name_and_reads_back() {
        let row = ClientRow {
            common: Row {
                bench: "client".into(),
                threads: 1,
                hit_rate: Some(1.0),
                ..Row::default()
            }
            .with_rates(4e6, 3e6, 5e6),
            servers: 4,
            ..ClientRow::default()
        };
        let line = serde_json::to_string(&row).unwrap();
        let fields: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(&line).unwrap();
        for name in Row::NAMES.iter().chain(&ClientRow::NAMES) {
            assert!(fields.contains_key(*name), "{name} in {line}");
        }
        assert_eq!(serde_json::from_str::<ClientRow>(&line).unwrap(), row);
    }
}
