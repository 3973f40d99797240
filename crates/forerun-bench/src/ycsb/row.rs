//! One result of the YCSB bench: a line of JSON with the names of [`forerun_measure::row::Row`] and
//! these.

use forerun_measure::row::Row;
use serde::{Deserialize, Serialize};

/// One cell of the table.
///
/// The common names mean: `case` is a workload's letter, or `load`; `keys` are the records loaded;
/// `keys_per_second` are operations (in `load`, records) a second; `speedup_vs_single` compares
/// with the same engine's batches of one; `speedup_vs_peer` with the peer at the same batch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct YcsbRow {
    /// What every bench's rows have.
    #[serde(flatten)]
    pub common: Row,
    /// Bytes of cache that engines were given; null where each had its own default.
    pub cache_bytes: Option<u64>,
    /// Operations a round; records in `load`.
    pub operations: u64,
    /// Microseconds that half of the batches took at most; of a write of several records in `load`.
    pub batch_p50_us: f64,
    /// Microseconds that 99% of the batches took at most.
    pub batch_p99_us: f64,
    /// What `load` tells of the store.
    #[serde(flatten)]
    pub loaded: Option<Loaded>,
}

/// What a loaded store is like.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Loaded {
    /// Bytes of keys and values that were written.
    pub data_bytes: u64,
    /// Seconds from the last write's return until all was written out and the store at rest.
    pub settle_seconds: f64,
    /// Bytes its files take.
    pub disk_bytes: Option<u64>,
    /// `disk_bytes` over `data_bytes`.
    pub disk_bytes_per_byte: Option<f64>,
    /// Bytes written to files, log included, over `data_bytes`.
    pub write_amplification: Option<f64>,
    /// How much more memory the process took when it was at rest than before it was opened.
    pub resident_bytes: Option<u64>,
}

impl YcsbRow {
    /// The names that every line of JSON has besides [`Row::NAMES`].
    pub const NAMES: [&str; 4] = ["cache_bytes", "operations", "batch_p50_us", "batch_p99_us"];

    /// The names that `load` has besides.
    pub const LOADED_NAMES: [&str; 6] = [
        "data_bytes",
        "settle_seconds",
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
