//! One result of a hash-table study: a line of JSON with the names of
//! [`forerun_measure::result_row::Row`] and these.

use forerun_measure::result_row::Row;
use serde::{Deserialize, Serialize};

/// One cell of a study's table.
///
/// In the common fields, `case` is `lookup`, or `insert` or `remove` in the study of writes; `keys`
/// is the number of entries in the table; `isa` is the instruction set that was measured;
/// `speedup_vs_single` compares with `get` of the same design and set, or writes with batches of
/// one; `roofline_share` compares with the random lines that the same number of threads read in the
/// same rounds; `inserts_per_second` counts the concurrent updates, which are of the kind in
/// `update_kind`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HashRow {
    /// The fields that every bench's rows have.
    #[serde(flatten)]
    pub common: Row,
    /// The study's number; null for custom lists.
    pub study: Option<u8>,
    /// The design.
    pub design: String,
    /// The requested size: slots times the bytes of a key and a value.
    pub size_bytes: u64,
    /// The memory that the table used, if known.
    pub memory_bytes: Option<u64>,
    /// `memory_bytes` over the entries.
    pub bytes_per_entry: Option<f64>,
    /// The requested entries over slots.
    pub load_factor: f64,
    /// The actual entries over slots, for a design that made more slots than requested, if known.
    pub load_factor_had: Option<f64>,
    /// The load factor at which the design was full, if that is below the requested one. Then
    /// nothing was measured, and the rates are 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_at: Option<f64>,
    /// How the requested keys were chosen: `uniform`, `zipf:0.99`.
    pub skew: String,
    /// The requested share of all operations that an additional thread makes as updates.
    pub updates: f64,
    /// The kind of an update.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_kind: Option<String>,
    /// Cache lines of the table that a lookup reads, averaged over the requested keys.
    pub lines_per_lookup: Option<f64>,
    /// Speed relative to MemC3's table with the same strategy, if that was measured too.
    pub speedup_vs_memc3: Option<f64>,
    /// Speed relative to the same design and strategy without vector instructions.
    pub speedup_vs_scalar: Option<f64>,
    /// Speed relative to one thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speedup_vs_one_thread: Option<f64>,
    /// The rate relative to that of the same cell without updates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_of_quiet: Option<f64>,
}

impl HashRow {
    /// The names of each JSON line besides [`Row::NAMES`].
    pub const NAMES: [&str; 9] = [
        "design",
        "isa",
        "load_factor",
        "size_bytes",
        "memory_bytes",
        "bytes_per_entry",
        "lines_per_lookup",
        "skew",
        "updates",
    ];

    /// The design, with its owner's name if that is a peer with a different name.
    pub fn label(&self) -> String {
        let engine = &self.common.engine;
        if engine == "forerun" || *engine == self.design {
            self.design.clone()
        } else {
            format!("{engine} {}", self.design)
        }
    }

    /// Whether the rates were measured.
    pub fn is_measured(&self) -> bool {
        self.full_at.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_json_is_flat_has_every_name_and_reads_back() {
        let row = HashRow {
            common: Row {
                bench: "hash".into(),
                threads: 1,
                hit_rate: Some(1.0),
                isa: "avx2".into(),
                ..Row::default()
            }
            .with_rates(4e6, 3e6, 5e6),
            design: "memc3".into(),
            lines_per_lookup: Some(1.5),
            ..HashRow::default()
        };
        let line = serde_json::to_string(&row).unwrap();
        let fields: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(&line).unwrap();
        for name in Row::NAMES.iter().chain(&HashRow::NAMES) {
            assert!(fields.contains_key(*name), "{name} in {line}");
        }
        assert_eq!(serde_json::from_str::<HashRow>(&line).unwrap(), row);
    }
}
