//! One result: what was measured, on what, and how fast. It is one line of JSON with these field
//! names.

use serde::{Deserialize, Serialize};

/// One row of a bench's results.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The bench: `memtable`, `btree`, `roofline`.
    pub bench: String,
    /// The workload: `multireadrandom`, `multireadwhilewriting`, `fillrandom`; `dependent`,
    /// `independent`.
    pub case: String,
    /// The engine: `forerun`, or a peer's name.
    pub engine: String,
    /// The lookup strategy.
    pub strategy: String,
    /// Number of entries; in `roofline`, lines of the buffer.
    pub keys: u64,
    /// Length of a key in bytes.
    pub key_bytes: u64,
    /// Length of the prefix that all keys share, in bytes.
    pub prefix_bytes: u64,
    /// Length of a value in bytes.
    pub value_bytes: u64,
    /// Keys per batch; in `roofline`, lines in flight per thread; in `fillrandom`, entries per
    /// write.
    pub batch: u64,
    /// Number of threads that look up (in `fillrandom`, that write).
    pub threads: u64,
    /// Number of threads that overwrite entries meanwhile, if any do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writers: Option<u64>,
    /// Share of the keys looked up that were present; null if nothing is looked up.
    pub hit_rate: Option<f64>,
    /// The distribution of the present keys that were looked up: `uniform`, `zipf:0.99`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<String>,
    /// Small or huge pages.
    pub pages: String,
    /// The instruction set in use.
    pub isa: String,
    /// Number of rounds.
    pub rounds: u64,
    /// Keys per second, all threads together: the median of the rounds.
    pub keys_per_second: f64,
    /// Keys per second in the slowest round.
    pub keys_per_second_min: f64,
    /// Keys per second in the fastest round.
    pub keys_per_second_max: f64,
    /// Nanoseconds per key as one thread sees it: `threads / keys_per_second`.
    pub ns_per_key: f64,
    /// Speed relative to the same engine with one key at a time, at the same batch size: the median
    /// of the ratios of all rounds. Null if there is no such measurement.
    pub speedup_vs_single: Option<f64>,
    /// `keys_per_second` relative to the same engine's fastest strategy in the same cell: the
    /// median of the ratios of all rounds. It is 1 for the fastest strategy. It may slightly exceed
    /// 1, because the fastest strategy is chosen by its median rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_of_best: Option<f64>,
    /// Speed relative to the peer that the run compares with, computed in the same way, if there is
    /// a peer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speedup_vs_peer: Option<f64>,
    /// `keys_per_second` divided by the random cache lines per second that as many threads can read
    /// on this machine. A value of 1 means that a lookup costs exactly one cache line.
    pub roofline_share: Option<f64>,
    /// Entries per second that the concurrent writers inserted together, if there were any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inserts_per_second: Option<f64>,
    /// The backing that the buffer got, in `roofline`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backing: Option<String>,
}

impl Row {
    /// The field names that every JSON line has.
    pub const NAMES: [&str; 13] = [
        "bench",
        "case",
        "strategy",
        "keys",
        "key_bytes",
        "value_bytes",
        "batch",
        "threads",
        "hit_rate",
        "keys_per_second",
        "ns_per_key",
        "speedup_vs_single",
        "roofline_share",
    ];

    /// Sets the rates from the keys per second of the median, slowest and fastest round and from
    /// the row's number of threads.
    #[must_use]
    pub fn with_rates(mut self, median: f64, min: f64, max: f64) -> Row {
        self.keys_per_second = median;
        self.keys_per_second_min = min;
        self.keys_per_second_max = max;
        self.ns_per_key = 1e9 * self.threads as f64 / median;
        self
    }

    /// Keys per second in the median, slowest and fastest round.
    pub fn rates(&self) -> (f64, f64, f64) {
        (
            self.keys_per_second,
            self.keys_per_second_min,
            self.keys_per_second_max,
        )
    }

    /// The row as one line of JSON, without a line end.
    ///
    /// # Errors
    /// No error is known: every field can be written as JSON, and a rate that is not finite becomes
    /// null.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }

    /// The engine and strategy as one name: `interleaved` for Forerun itself, `rocksdb get` for a
    /// peer.
    pub fn label(&self) -> String {
        match self.engine.as_str() {
            "forerun" => self.strategy.clone(),
            peer => format!("{peer} {}", self.strategy),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_json_has_every_name_and_reads_back() {
        let row = Row {
            bench: "memtable".into(),
            threads: 2,
            speedup_vs_single: Some(5.0),
            ..Row::default()
        }
        .with_rates(4e6, 3e6, 5e6);
        assert_eq!(row.ns_per_key, 500.0);
        let line = row.to_json().unwrap();
        assert!(!line.contains('\n'));
        let fields: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(&line).unwrap();
        for name in Row::NAMES {
            assert!(fields.contains_key(name), "{name} in {line}");
        }
        assert_eq!(serde_json::from_str::<Row>(&line).unwrap(), row);
    }
}
