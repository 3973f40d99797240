//! One result of the bench `workloads`: a line of JSON with the names of
//! [`forerun_measure::result_row::Row`] and these.

use super::over_time::Point;
use forerun_measure::result_row::Row;
use serde::{Deserialize, Serialize};

/// A class of operations of one shape on one engine.
///
/// In the common fields, `case` is the shape, and `strategy` the class, such as `cold puts`; `keys`
/// is the number of loaded rows, `batch` the keys per call, and `keys_per_second` counts keys that
/// were read or written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkloadRow {
    /// The fields that every bench's rows have.
    #[serde(flatten)]
    pub common: Row,
    /// Calls, including those that had not begun at the end.
    pub operations: u64,
    /// Calls that were due but had not begun at the end.
    pub unbegun: u64,
    /// The median latency, in microseconds; for paced clients from when a call was due.
    pub p50_us: f64,
    /// The 99th percentile.
    pub p99_us: f64,
    /// The 99.9th percentile.
    pub p999_us: f64,
    /// The highest latency.
    pub max_us: f64,
    /// The longest call from its real start, in milliseconds.
    pub longest_call_ms: f64,
    /// The latencies of each second.
    pub over_time: Vec<Point>,
    /// What the run did to the store's files; the same in all rows of a shape and an engine.
    #[serde(flatten)]
    pub store: StoreFacts,
}

/// What a run did to a store's files.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StoreFacts {
    /// The longest call that wrote, in milliseconds.
    pub longest_stall_ms: f64,
    /// Bytes of keys and values that the run wrote.
    pub put_bytes: u64,
    /// Bytes that were written to files from the beginning of the run until the store was idle.
    pub written_bytes: Option<u64>,
    /// `written_bytes` over `put_bytes`.
    pub write_amplification: Option<f64>,
    /// Seconds from the end of the run until the store was idle.
    pub wait_idle_seconds: f64,
    /// Files of the idle store.
    pub files: Option<u64>,
    /// Bytes of its files.
    pub disk_bytes: Option<u64>,
}

impl WorkloadRow {
    /// The names of each JSON line besides [`Row::NAMES`].
    pub const NAMES: [&str; 15] = [
        "operations",
        "unbegun",
        "p50_us",
        "p99_us",
        "p999_us",
        "max_us",
        "longest_call_ms",
        "over_time",
        "longest_stall_ms",
        "put_bytes",
        "written_bytes",
        "write_amplification",
        "wait_idle_seconds",
        "files",
        "disk_bytes",
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_json_has_every_name_and_reads_back() {
        let row = WorkloadRow {
            common: Row {
                bench: "workloads".into(),
                threads: 1,
                ..Row::default()
            }
            .with_rates(4e5, 3e5, 5e5),
            over_time: vec![Point::default(); 2],
            ..WorkloadRow::default()
        };
        let line = serde_json::to_string(&row).unwrap();
        let fields: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(&line).unwrap();
        for name in Row::NAMES.iter().chain(&WorkloadRow::NAMES) {
            assert!(fields.contains_key(*name), "{name} in {line}");
        }
        assert_eq!(serde_json::from_str::<WorkloadRow>(&line).unwrap(), row);
    }
}
