//! One result of `forerun-bench gpu-table`: a line of JSON with these names, which peers also
//! print.

use super::operation::OpVariant;
use super::setting::Setting;
use crate::on_gpu::CommandTimes;
use forerun_measure::harness::Outcome;
use serde::{Deserialize, Serialize};

/// The unit B-KV/s as HierarchicalKV prints it.
const BINARY: f64 = (1u64 << 30) as f64;

/// The speed of one operation in one setting. A peer may leave out what it does not know.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuTableRow {
    /// `gpu-table`.
    pub bench: String,
    /// The study.
    pub study: String,
    /// The owner of the table: `gpu`, `cpu` if no GPU was found, or a peer's name.
    pub engine: String,
    /// The GPU's name; null without one.
    pub device: Option<String>,
    /// The operation.
    pub op: String,
    /// For `find_ptr`: how slots were found.
    pub lookup: Option<String>,
    /// Slots of the table.
    pub slots: u64,
    /// Candidates and slots of a bucket: `2x128`.
    pub buckets: String,
    /// 4-byte numbers per row.
    pub dim: u64,
    /// The requested load: entries per slot.
    pub load: f64,
    /// The requested share of present keys.
    pub hit_rate: f64,
    /// Keys per call; slots, for operations that process slots.
    pub batch: u64,
    /// How requests spread over the keys.
    pub skew: String,
    /// Keys per bag of pooled lookups.
    pub bag_keys: u64,
    /// The share of keys that the preceding check found.
    pub found: f64,
    /// Rounds.
    pub rounds: u64,
    /// The time of a call by events on its stream, in microseconds: the median of the rounds.
    pub us: f64,
    /// The same by the host's clock, from the call to the end of the wait.
    pub us_wall: f64,
    /// Keys per second by events: the median of the rounds.
    pub keys_per_second: f64,
    /// The slowest round.
    pub keys_per_second_min: f64,
    /// The fastest round.
    pub keys_per_second_max: f64,
    /// Keys per second by the host's clock: the median of the rounds.
    pub keys_per_second_wall: f64,
    /// Units of 2^30 keys per second, by events.
    pub bkv_per_second: f64,
    /// Units of 2^30 keys per second, by the host's clock: the record's figure.
    pub bkv_per_second_wall: f64,
    /// For `find_ptr`: the rate relative to that of one thread per key in the same rounds.
    pub ratio_to_thread: Option<f64>,
    /// For `find_ptr`: the rate relative to that of HierarchicalKV's rule in the same rounds.
    pub ratio_to_seed_rule: Option<f64>,
    /// For lookups: random requests per key.
    pub requests_per_lookup: Option<f64>,
    /// For lookups: bytes per key, including sequential traffic.
    pub bytes_per_lookup: Option<f64>,
    /// For lookups on a GPU: the minimum time that their requests take, divided by the actual time.
    pub share_of_ceiling: Option<f64>,
}

impl GpuTableRow {
    /// The fields that are known before anything is measured.
    pub(super) fn of(
        setting: &Setting,
        engine: &str,
        variant: OpVariant,
        items: u64,
    ) -> GpuTableRow {
        GpuTableRow {
            bench: "gpu-table".into(),
            study: setting.study.name().into(),
            engine: engine.into(),
            op: variant.op.name().into(),
            lookup: (variant.op == super::operation::Op::FindPtr)
                .then(|| variant.lookup.name().into()),
            slots: setting.slots,
            buckets: setting.buckets.to_string(),
            dim: setting.dim,
            load: setting.load,
            hit_rate: setting.hit_rate,
            batch: items,
            skew: setting.skew.to_string(),
            bag_keys: setting.bag_keys as u64,
            ..GpuTableRow::default()
        }
    }

    /// Adds the rates of an outcome by events, and of the same turns by the host's clock.
    pub(super) fn with_outcome(
        mut self,
        outcome: &Outcome,
        took: &[(u64, CommandTimes)],
    ) -> GpuTableRow {
        let mut wall: Vec<f64> = took
            .iter()
            .map(|(items, took)| *items as f64 / took.wall.as_secs_f64().max(1e-9))
            .collect();
        wall.sort_by(f64::total_cmp);
        self.rounds = outcome.samples.len() as u64;
        self.keys_per_second = outcome.per_second();
        self.keys_per_second_min = outcome.per_second_min();
        self.keys_per_second_max = outcome.per_second_max();
        self.keys_per_second_wall = wall.get(wall.len() / 2).copied().unwrap_or(f64::NAN);
        self.us = self.batch as f64 / self.keys_per_second * 1e6;
        self.us_wall = self.batch as f64 / self.keys_per_second_wall * 1e6;
        self.bkv_per_second = self.keys_per_second / BINARY;
        self.bkv_per_second_wall = self.keys_per_second_wall / BINARY;
        self
    }

    /// The operation, and how it finds slots if that was given.
    pub(super) fn variant(&self) -> String {
        match self.lookup.as_deref() {
            Some("by-load") | None => self.op.clone(),
            Some(lookup) => format!("{}:{lookup}", self.op),
        }
    }
}
