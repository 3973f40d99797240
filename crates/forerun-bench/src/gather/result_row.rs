//! One result of `forerun-bench gather`: a line of JSON with these names.

use super::setting::Setting;
use forerun_gpu::gather::Plan;
use forerun_measure::harness::Outcome;
use serde::{Deserialize, Serialize};

/// How fast one method copied one batch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GatherRow {
    /// `gather`.
    pub bench: String,
    /// The study.
    pub study: String,
    /// Where the copy ran: `gpu`, or `cpu` if no GPU was found.
    pub engine: String,
    /// The GPU's name; null without one.
    pub device: Option<String>,
    /// The method: a version of the kernel, or an alternative.
    pub method: String,
    /// `gather` or `scatter`.
    pub direction: String,
    /// Requests per batch.
    pub requests: u64,
    /// Rows per request.
    pub rows_per_request: u64,
    /// Rows on each side.
    pub slots: u64,
    /// Bytes per row.
    pub row_bytes: u64,
    /// The order of the indices.
    pub indices: String,
    /// Bytes before the host's first row.
    pub offset_bytes: u64,
    /// The maximum number of multiprocessors: a number, `all`, or null for the default.
    pub multiprocessors: Option<String>,
    /// The kernel's unit, if a kernel ran.
    pub unit_bytes: Option<u64>,
    /// Its blocks.
    pub blocks: Option<u64>,
    /// Why it was chosen.
    pub why: Option<String>,
    /// Bytes that a batch copies.
    pub bytes: u64,
    /// Bytes of the destination that were compared before timing.
    pub bytes_checked: u64,
    /// Rounds.
    pub rounds: u64,
    /// The time of a batch: the median of the rounds.
    pub ms: f64,
    /// Units of 1024^3 bytes per second: the median of the rounds.
    pub gib_per_second: f64,
    /// The slowest round.
    pub gib_per_second_min: f64,
    /// The fastest round.
    pub gib_per_second_max: f64,
    /// Units of 10^9 bytes per second: the median of the rounds.
    pub gb_per_second: f64,
    /// The rate relative to that of a contiguous copy of the same number of bytes in the same
    /// rounds.
    pub share_of_contiguous: Option<f64>,
    /// Bytes of the host memory that are on huge pages; null if they were not requested or the
    /// system does not report them. Absent in results of earlier versions.
    #[serde(default)]
    pub huge_bytes: Option<u64>,
    /// For a kernel that gathers: `share_of_contiguous` relative to what the link allows. Absent in
    /// results of earlier versions.
    #[serde(default)]
    pub share_of_limit: Option<f64>,
    /// The rate relative to that of v3 in the same rounds.
    pub ratio_to_v3: Option<f64>,
    /// With a concurrent matrix product: by what factor the product's time grew.
    pub product_slowdown: Option<f64>,
}

impl GatherRow {
    /// The fields that are known before anything is measured.
    pub(super) fn of(setting: &Setting, engine: &str, method: &str) -> GatherRow {
        GatherRow {
            bench: "gather".into(),
            study: setting.study.name().into(),
            engine: engine.into(),
            method: method.into(),
            direction: setting.direction.to_string(),
            requests: setting.requests as u64,
            rows_per_request: setting.rows_per_request as u64,
            slots: setting.slots as u64,
            row_bytes: setting.row_bytes as u64,
            indices: setting.order.to_string(),
            offset_bytes: setting.offset as u64,
            multiprocessors: setting.cap.map(|cap| cap.to_string()),
            bytes: setting.bytes(),
            ..GatherRow::default()
        }
    }

    /// Adds the rates of an outcome in bytes per second.
    pub(super) fn with_outcome(mut self, outcome: &Outcome) -> GatherRow {
        const GIB: f64 = (1u64 << 30) as f64;
        let rate = outcome.per_second();
        self.rounds = outcome.samples.len() as u64;
        self.ms = self.bytes as f64 / rate * 1e3;
        self.gib_per_second = rate / GIB;
        self.gib_per_second_min = outcome.per_second_min() / GIB;
        self.gib_per_second_max = outcome.per_second_max() / GIB;
        self.gb_per_second = rate / 1e9;
        self
    }

    /// Adds the kernel that ran.
    pub(super) fn with_plan(mut self, plan: Option<&Plan>) -> GatherRow {
        self.unit_bytes = plan.map(|plan| plan.unit.bytes());
        self.blocks = plan.map(|plan| plan.blocks.into());
        self.why = plan.map(|plan| plan.why.clone());
        self
    }
}
