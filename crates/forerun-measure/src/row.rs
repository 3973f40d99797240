//! One result: what was measured, on what, and how fast it was. It is one line of JSON, with these
//! names.

use serde::{Deserialize, Serialize};

/// One cell of a bench's table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The bench: `memtable`, `btree`, `roofline`.
    pub bench: String,
    /// The workload within it: `multireadrandom`, `multireadwhilewriting`, `fillrandom`;
    /// `dependent`, `independent`.
    pub case: String,
    /// Whose store it is: `forerun`, or a peer's name.
    pub engine: String,
    /// How a batch was looked up.
    pub strategy: String,
    /// Entries; lines of the buffer in `roofline`.
    pub keys: u64,
    /// Bytes a key.
    pub key_bytes: u64,
    /// Of these, bytes that all keys begin with.
    pub prefix_bytes: u64,
    /// Bytes a value.
    pub value_bytes: u64,
    /// Keys a batch; lines in flight a thread in `roofline`; entries a write in `fillrandom`.
    pub batch: u64,
    /// Threads that look up (or write, in `fillrandom`).
    pub threads: u64,
    /// Share of the keys looked up that were present; null where nothing is looked up.
    pub hit_rate: Option<f64>,
    /// How the present keys looked up were chosen: `uniform`, `zipf:0.99`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<String>,
    /// Small or huge pages.
    pub pages: String,
    /// The instruction set in use.
    pub isa: String,
    /// Rounds.
    pub rounds: u64,
    /// Keys a second, all threads together: the median of the rounds.
    pub keys_per_second: f64,
    /// The slowest round.
    pub keys_per_second_min: f64,
    /// The fastest round.
    pub keys_per_second_max: f64,
    /// Nanoseconds a key as one thread sees it: `threads / keys_per_second`.
    pub ns_per_key: f64,
    /// How many times as fast as the same engine looking up one key after the other, at the same
    /// batch size: the median of the rounds' ratios. Null where there is nothing to compare with.
    pub speedup_vs_single: Option<f64>,
    /// `keys_per_second` over that of the same engine's fastest strategy in the same cell, the
    /// median of the rounds' ratios: 1 for the fastest itself. It may exceed 1 a little, since the
    /// fastest is told by its median rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_of_best: Option<f64>,
    /// How many times as fast as the peer the run compares with, likewise, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speedup_vs_peer: Option<f64>,
    /// `keys_per_second` over the random cache lines a second that as many threads of this machine
    /// can read: 1 would be a lookup that costs one cache line and nothing else.
    pub roofline_share: Option<f64>,
    /// Entries a second that the writer inserted meanwhile, where there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inserts_per_second: Option<f64>,
    /// What the buffer got, in `roofline`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backing: Option<String>,
}

impl Row {
    /// The names that every line of JSON has.
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

    /// Sets the rates from the keys a second of the median, slowest and fastest round, for the
    /// row's threads.
    #[must_use]
    pub fn with_rates(mut self, median: f64, min: f64, max: f64) -> Row {
        self.keys_per_second = median;
        self.keys_per_second_min = min;
        self.keys_per_second_max = max;
        self.ns_per_key = 1e9 * self.threads as f64 / median;
        self
    }

    /// The keys a second of the median, slowest and fastest round.
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
    /// None is known: every field has a place in JSON, and a rate that is not finite becomes null.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }

    /// The engine and strategy as one name: `interleaved` for Forerun's own, `rocksdb get` for a
    /// peer's.
    pub fn who(&self) -> String {
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
