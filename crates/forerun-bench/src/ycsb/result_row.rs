//! One result of the YCSB bench: a line of JSON with the names of
//! [`forerun_measure::result_row::Row`] and these.

use forerun_measure::result_row::Row;
use serde::{Deserialize, Serialize};

/// One cell of the table.
///
/// In the common fields, `case` is a workload's letter, or `load`; `keys` is the number of loaded
/// records; `keys_per_second` counts operations (in `load`, records) per second;
/// `speedup_vs_single` compares with the same engine's batches of one; `speedup_vs_peer` compares
/// with the peer at the same batch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct YcsbRow {
    /// The fields that every bench's rows have.
    #[serde(flatten)]
    pub common: Row,
    /// The cache size of the engines, in bytes; null if each had its own default.
    pub cache_bytes: Option<u64>,
    /// Operations per round; records in `load`.
    pub operations: u64,
    /// The median time of a batch in microseconds; in `load`, of a write of several records.
    pub batch_p50_us: f64,
    /// The 99th percentile of the time of a batch, in microseconds.
    pub batch_p99_us: f64,
    /// Facts that `load` reports about the store.
    #[serde(flatten)]
    pub loaded: Option<Loaded>,
}

/// Facts about a loaded store.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Loaded {
    /// Bytes of keys and values that were written.
    pub data_bytes: u64,
    /// Seconds from the last write's return until everything was written out and the store was
    /// idle.
    pub wait_idle_seconds: f64,
    /// Bytes of its files.
    pub disk_bytes: Option<u64>,
    /// `disk_bytes` over `data_bytes`.
    pub disk_bytes_per_byte: Option<f64>,
    /// Bytes written to files, including the log, over `data_bytes`.
    pub write_amplification: Option<f64>,
    /// How much more memory the process used once the store was idle than before it was opened.
    pub resident_bytes: Option<u64>,
}

impl YcsbRow {
    /// The names of each JSON line besides [`Row::NAMES`].
    pub const NAMES: [&str; 4] = ["cache_bytes", "operations", "batch_p50_us", "batch_p99_us"];

    /// The additional names of `load`.
    pub const LOADED_NAMES: [&str; 6] = [
        "data_bytes",
        "wait_idle_seconds",
        "disk_bytes",
        "disk_bytes_per_byte",
        "write_amplification",
        "resident_bytes",
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_json_is_flat_has_every_name_and_reads_back() {
        for loaded in [None, Some(Loaded::default())] {
            let row = YcsbRow {
                common: Row {
                    bench: "ycsb".into(),
                    threads: 1,
                    ..Row::default()
                }
                .with_rates(4e5, 3e5, 5e5),
                loaded: loaded.clone(),
                ..YcsbRow::default()
            };
            let line = serde_json::to_string(&row).unwrap();
            let fields: serde_json::Map<String, serde_json::Value> =
                serde_json::from_str(&line).unwrap();
            for name in Row::NAMES.iter().chain(&YcsbRow::NAMES) {
                assert!(fields.contains_key(*name), "{name} in {line}");
            }
            for name in YcsbRow::LOADED_NAMES {
                assert_eq!(fields.contains_key(name), loaded.is_some(), "{line}");
            }
            assert_eq!(serde_json::from_str::<YcsbRow>(&line).unwrap(), row);
        }
    }
}
